"""Writes the payload of a part of a program, node by node, by the table of operators.

XNNPACK's convolutions and pools want channels last. So each value may be there in two layouts: as
the program has it (*plain*), or with channels last (*last*). It is computed in one of them, and
transposed when the other is read. Must not know how single operators are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.spec import Payload
from lostwax.backends.xnnpack.calls import Sizes, bound_of, find_clamp, is_static, size_of
from lostwax.backends.xnnpack.payload import (
    FLOATS,
    Clamp,
    ElementForm,
    PayloadWriter,
    name_events,
)
from lostwax.backends.xnnpack.quantized.quantum import find_form
from lostwax.dialects.edge import COPIES
from lostwax.errors import LoweringError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import InputKind
from lostwax.pte.lowering.state import has_data
from lostwax.sym import Size

LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The order of dimensions with channels last, by the number of dimensions."""
PLAIN = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""The way back."""
_VIEWS: dict[Any, Any] = {copied: view for view, copied in COPIES.items()}
_VIEWS[torch.ops.aten.view_copy.default] = torch.reshape  # what cannot be viewed is copied


def permute(items: Sequence[Any], order: Sequence[int]) -> list[Any]:
    return [items[i] for i in order]


@dataclass(frozen=True)
class Result:
    """What a node's kernel computes, with what is done to its result at once: the node whose value
    that is, and its limits."""

    node: Node
    clamp: Clamp | None = None


class Constants(dict[Node, torch.Tensor]):
    """Constants by their nodes. Those that are computed from others are computed when they are
    read: nobody may want the floats of weights that are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: set[Node] = set()

    def __contains__(self, node: object) -> bool:
        return super().__contains__(node) or node in self.computed

    def __missing__(self, node: Node) -> torch.Tensor:
        if node not in self.computed:
            raise KeyError(node)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.__getitem__)
        target: Any = node.target
        with torch.no_grad():  # as views: large weights are not copied
            self[node] = _VIEWS.get(getattr(target, "overload", target), target)(*args, **kwargs)
        return self[node]

    def get(self, node: Any, default: Any = None) -> Any:
        if node not in self:
            return default
        return self[node]


class PartWriter:
    """Writes one part."""

    def __init__(self, program: ExportedProgram, operators: Mapping[str, Any]) -> None:
        self.program, self.operators = program, operators
        self.payload = PayloadWriter()
        self.constants = Constants()
        self.ids: dict[tuple[Node, bool], int] = {}
        """The number of each value, plain and with channels last, as far as it is there."""
        self.same: dict[Node, Node] = {}
        """Nodes whose values are those of others."""
        self.written: set[Node] = set()
        self.writing: list[Node] = []
        """The nodes that are being written, each for the one before."""
        self.steps: list[tuple[str, dict[str, Any], Node]] = []
        """The nodes of the payload: kind, fields, and for which node they were written."""
        self.places: dict[Node, int] = {}
        """The places of results among the arguments of the delegate."""

    def run(self) -> Payload:
        nodes = list(self.program.graph.nodes)
        results: Any = nodes[-1].args[0]
        self._add_inputs(nodes)
        count = len(self.program.graph_signature.user_inputs)
        self.places = {node: count + i for i, node in enumerate(results)}
        self.payload.externals = count + len(results)
        for node in nodes:
            if node.op != "call_function" or _is_number(node) or self._fold(node):
                continue
            if node.target is not getitem and not self._find_entry(node).lazy:
                self.write(node)
        for node in results:
            self.writing.append(node)
            self._write_result(node)
            self.writing.pop()
        return replace(self.payload.write(), events=self._name_events())

    def _name_events(self) -> dict[int | str, Sequence[str]]:
        made: dict[int, list[str]] = {}
        for (node, _), number in self.ids.items():
            made.setdefault(number, []).append(node.name)
        steps = [
            (
                kind,
                fields,
                tuple(dict.fromkeys([node.name, *made.get(fields.get("output_id", -1), ())])),
            )
            for kind, fields, node in self.steps
        ]
        named: dict[int | str, Sequence[str]] = {}
        named.update(name_events(steps, self.payload.datatypes))
        return named

    def _add_inputs(self, nodes: Sequence[Node]) -> None:
        program, place = self.program, 0
        inputs = [n for n in nodes if n.op == "placeholder"]
        for node, spec in zip(inputs, program.graph_signature.input_specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT:
                self.constants[node] = self._find_data(str(spec.target))
                continue
            if isinstance(node.meta["val"], torch.Tensor):
                size, form = self._bounds(size_of(node)), find_form(node)
                self.ids[node, False] = self.payload.add_input(size, place, form)
                self.written.add(node)
            place += 1

    def _find_data(self, name: str) -> torch.Tensor:
        found: Any = self.program.state_dict.get(name, self.program.constants.get(name))
        if not has_data(found):
            raise LoweringError.at(
                f"the state {name!r} has no data",
                "",
                why="its tensor is a fake, or lies on the device 'meta'",
                instead="load the weights into the module, and export it again",
            )
        return found

    def _fold(self, node: Node) -> bool:
        """Note a node of constants alone. Is it one?"""
        if any(n not in self.constants for n in node.all_input_nodes):
            return False
        self.constants.computed.add(node)
        return True

    def _find_entry(self, node: Node) -> Any:
        return self.operators[node.target.name()]  # type: ignore[union-attr]

    def _write_result(self, node: Node) -> None:
        """Let a result be where the runtime reads it, if it is not there yet."""
        source = self.read(node)
        if source not in self.payload.outputs or node in self.same:
            size, form = self._bounds(size_of(node)), find_form(node)
            made = self.payload.add_output(size, self.places[node], form)
            self.add("XNNCopy", input_id=source, output_id=made)

    # ---------------------------------------------------------------------------- for operators

    def write(self, node: Node) -> None:
        """Write a node, unless it is there."""
        if node in self.written:
            return
        self.written.add(node)
        if node.target is getitem:
            self.write(node.args[0])  # type: ignore[arg-type]
        else:
            self.writing.append(node)
            self._find_entry(node).write(self, node)
            self.writing.pop()

    def is_there(self, node: Node) -> bool:
        """Is the value there, in any layout?"""
        return node in self.same or (node, False) in self.ids or (node, True) in self.ids

    def is_last(self, node: Node) -> bool:
        """Is the value there with channels last, and not as the program has it?"""
        if node in self.constants:
            return False
        node = self._resolve(node)
        return (node, True) in self.ids and (node, False) not in self.ids

    def read(self, node: Node, last: bool = False) -> int:
        """The number of a value, in this layout."""
        if node in self.constants:
            data = self.constants[node]
            return self.add_constant(data.permute(LAST[data.ndim]) if last else data)
        node = self._resolve(node)
        if (node, last) not in self.ids:
            order = (LAST if last else PLAIN)[len(size_of(node))]
            made = self.define(node, last)
            fields = {"num_dims": len(order), "perm": list(order)}
            self.add(
                "XNNStaticTranspose", input_id=self.ids[node, not last], output_id=made, **fields
            )
        return self.ids[node, last]

    def _resolve(self, node: Node) -> Node:
        """The node whose value this one has; it is written."""
        self.write(node)
        while node in self.same:
            node = self.same[node]
            self.write(node)
        return node

    def define(self, node: Node, last: bool = False) -> int:
        """The number of a new value, which a node is to compute in this layout."""
        size, form = size_of(node), find_form(node)
        if not last and node in self.places:
            made = self.payload.add_output(self._bounds(size), self.places[node], form)
        else:
            made = self.new(permute(size, LAST[len(size)]) if last else size, form)
        self.ids[node, last] = made
        self.written.add(node)
        return made

    def new(self, size: Sequence[Size], form: ElementForm = FLOATS) -> int:
        """The number of a value that is read inside of one operator."""
        return self.payload.add_value(self._bounds(tuple(size)), form)

    def name(self, node: Node, source: Node) -> None:
        """Let a node's value be that of another."""
        self.same[node] = source

    def see(self, node: Node, number: int, last: bool) -> None:
        """Let a node's value be this one, in this layout."""
        self.ids[node, last] = number

    def add_constant(self, data: torch.Tensor) -> int:
        return self.payload.add_constant(data)

    def add(self, kind: str, clamp: Clamp | None = None, /, **fields: Any) -> None:
        """Add a node to the payload."""
        self.payload.add_node(kind, clamp, **fields)
        self.steps.append((kind, fields, self.writing[-1]))

    def find_result(self, node: Node) -> Result:
        """The result of a node, limited at once if its only reader does nothing else."""
        reader = self.find_only_reader(node)
        clamp = None if reader is None else find_clamp(reader)
        if reader is None or clamp is None:
            return Result(node)
        return Result(reader, clamp)

    def find_only_reader(self, node: Node) -> Node | None:
        if len(node.users) != 1 or node in self.places:
            return None
        (reader,) = node.users
        return reader if reader.op == "call_function" else None

    def _bounds(self, size: Sizes) -> list[int]:
        found = [bound_of(s) for s in size]
        assert all(b is not None for b in found), size
        return found  # type: ignore[return-value]


def _is_number(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def shape_to(size: Sequence[Size]) -> list[int]:
    """Sizes as XNNPACK's reshaping takes them: one that varies is 0, which is what is left."""
    return [int(s) if is_static(s) else 0 for s in size]
