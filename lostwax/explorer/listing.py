"""A `.pte` file as data for a page: its instructions as a graph, and where its tensors lie.

A file has neither modules nor source lines. The file is taken as hostile: `read_file` checks it.
Nothing of it is run.
"""

from __future__ import annotations

from typing import Any

from lostwax.explorer.graph import KIND, Tables
from lostwax.pte.file.reader import File
from lostwax.pte.file.text import (
    describe_step,
    describe_type,
    describe_value,
    find_tensors,
    list_tensors,
)
from lostwax.pte.file.writers import Writers, tensor_bytes

_NODE = ("name", "kind", "target", "type", "call", "module", "stack", "graph", "inputs", "bytes")


class PlanWriter:
    """Writes one method of a file."""

    def __init__(self, tables: Tables, plan: dict[str, Any], file: File) -> None:
        self.tables = tables
        self.plan = plan
        self.file = file
        self.values = [v["val"] for v in plan["values"] or ()]
        self.columns: dict[str, list[Any]] = {name: [] for name in (*_NODE, "origin", "note")}
        self.writers = Writers(self.values)
        self.writer: dict[int, int] = {}
        """The node that wrote a value last."""
        self.lives: dict[int, list[int]] = {}
        """For each tensor its first step, its last step, and the node that writes it first."""
        self.steps: list[int] = []

    def write(self) -> dict[str, Any]:
        for index in self.plan["inputs"] or ():
            at = self._add("input", f"t{index}", "", "", [], index)
            self._touch([index], at, writes=True)
        instructions = [i for c in self.plan["chains"] or () for i in c["instructions"] or ()]
        for number, instruction in enumerate(instructions):
            self._write_step(number, instruction["instr_args"])
        self.steps.append(-1)
        outputs = list(self.plan["outputs"] or ())
        inputs = self._read(outputs)
        at = self._add("output", "output", "", "return", inputs, None)
        self.steps[-1] = at
        self._touch(outputs, at, writes=False)
        text = self.tables.text
        return {
            "columns": self.columns,
            "graphs": [{"name": "", "owner": -1, "kind": "program"}],
            "modules": [(-1, text(""), text(""))],
            "origins": [],
            "symbols": [],
            "memory": self._memory(),
        }

    def _write_step(self, number: int, step: dict[str, Any]) -> None:
        name, called, _ = describe_step(step, self.plan)
        read, results = find_tensors(step, self.plan, self.writers)
        inputs = self._read(read)
        kind = "delegate" if step[""] == "DelegateCall" else "operator"
        kind = "control" if step[""] in ("JumpFalseCall", "MoveCall", "FreeCall") else kind
        call = f"{name}({', '.join(describe_value(self.values, i) for i in called)})"
        self.steps.append(len(self.columns["name"]))
        shown = results[0] if results else None
        at = self._add(kind, f"i{number}", name, call, inputs, shown)
        self._touch(read, at, writes=False)
        self._touch(results, at, writes=True)

    def _read(self, indices: list[int]) -> list[int]:
        found = [i for each in list_tensors(self.values, indices) for i in self.writers.find(each)]
        return list(dict.fromkeys(self.writer[i] for i in found))

    def _touch(self, indices: list[int], at: int, writes: bool) -> None:
        step = max(len(self.steps) - 1, 0)
        for index in list_tensors(self.values, indices):
            life = self.lives.setdefault(index, [step, step, at])
            life[1] = step
            if writes:
                self.writer[index] = at
                self.writers.write(index)
            else:
                self.writers.read(index)

    def _add(
        self, kind: str, name: str, target: str, call: str, inputs: list[int], shown: int | None
    ) -> int:
        text, columns = self.tables.text, self.columns
        value = {} if shown is None else self.values[shown]
        is_tensor = value.get("") == "Tensor"
        row: dict[str, Any] = {
            "name": name,
            "kind": KIND[kind],
            "target": text(target),
            "type": text(describe_type(value) if is_tensor else ""),
            "call": text(call),
            "module": 0,
            "stack": -1,
            "graph": 0,
            "inputs": inputs,
            "bytes": tensor_bytes(value) if is_tensor else 0,
            "origin": -1,
            "note": text(""),
        }
        for column, cell in row.items():
            columns[column].append(cell)
        return len(columns["name"]) - 1

    def _memory(self) -> dict[str, Any]:
        blocks = []
        arena = 0
        for index, (first, last, at) in self.lives.items():
            value = self.values[index]
            place = value["allocation_info"]
            if place is None or place["memory_id"] != 1:
                continue
            offset = place["memory_offset_low"] + (place["memory_offset_high"] << 32)
            size = tensor_bytes(value)
            blocks.append([at, first, last, offset, size])
            arena = max(arena, offset + size)
        blocks = _join_blocks(blocks)
        weights = self.file.data_size
        found = {"kind": "plan", "steps": self.steps, "blocks": blocks, "weights": weights}
        return found | {"unknown": 0, "arena": arena}


def _join_blocks(blocks: list[list[int]]) -> list[list[int]]:
    """Make one block of those that take over each other's memory, and of views."""
    joined: list[list[int]] = []
    for block in sorted(blocks, key=lambda b: (b[3], b[4], b[1])):
        last = joined[-1] if joined else [0, 0, -1, -1, 0]
        if last[3:] == block[3:] and block[1] <= last[2]:
            last[2] = max(last[2], block[2])
        else:
            joined.append(block)
    return joined
