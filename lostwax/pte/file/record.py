"""Reads ETRecords: which nodes, modules and lines of the user each instruction of a `.pte` file is
of. The file is taken as hostile: it is looked at as text, and nothing of it is run or unpickled.

Must not know how programs are written.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.ir.origin import NodeOrigin, locate

IDENTIFIER = "ETRECORD_V0"
PROGRAM = "edge_dialect_exported_program/"
OLD_PROGRAM = "edge_dialect_exported_program"
HANDLES, DELEGATES = "debug_handle_map", "delegate_map"
INPUTS = "representative_inputs"
_BESIDE = ("_state_dict", "_constants", "_example_inputs")
MOST_BYTES = 1 << 30


Handles = tuple[int, ...]


@dataclass(frozen=True)
class MethodRecord:
    """What the instructions of a method are of."""

    nodes: Mapping[int, NodeOrigin]
    """By their handles."""
    handles: Mapping[int, Handles]
    """By the numbers of instructions."""
    events: Mapping[int, Mapping[str, Handles]]
    """For instructions that call delegates: by what their backends note."""

    def find(self, instruction: int, event: str = "") -> list[NodeOrigin]:
        """The nodes that an instruction is of, or an event of the delegate that it calls. If the
        record does not know the event, these are all nodes of the delegate."""
        known = self.events.get(instruction, {})
        handles = known.get(event) or self.handles.get(instruction, ())
        return [self.nodes[each] for each in handles if each in self.nodes]


def read_record(file: str | os.PathLike[str]) -> dict[str, MethodRecord]:
    """The methods of an ETRecord, the `file` of that path, by their names."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(
            f"{os.fspath(file)} is no ETRecord, or a damaged one: {error}\n  instead: "
            "executable.save(path, etrecord=True) writes one"
        ) from error


def read_inputs(file: str | os.PathLike[str]) -> list[Any] | None:
    """The example of the method "forward" in an ETRecord, flat; None if there is none."""
    with zipfile.ZipFile(file) as archive:
        if INPUTS not in archive.namelist():
            return None
        found: list[Any] = torch.load(io.BytesIO(archive.read(INPUTS)), weights_only=True)
        return found


def _read(archive: zipfile.ZipFile) -> dict[str, MethodRecord]:
    names = archive.namelist()
    if IDENTIFIER not in names:
        raise ValueError(f"it has no {IDENTIFIER}")

    def load(name: str) -> Any:
        info = archive.getinfo(name)
        if info.file_size > MOST_BYTES:
            raise ValueError(f"{name} has {info.file_size:,} bytes")
        return json.loads(archive.read(info))

    programs = {n.removeprefix(PROGRAM): n for n in names if n.startswith(PROGRAM)}
    programs = {n: p for n, p in programs.items() if not n.endswith(_BESIDE)}
    if OLD_PROGRAM in names:
        programs.setdefault("forward", OLD_PROGRAM)
    handles = load(HANDLES)
    delegates = load(DELEGATES) if DELEGATES in names else {}
    found = {}
    for method, listed in handles.items():
        nodes: dict[int, NodeOrigin] = {}
        if method in programs:
            _read_nodes(load(programs[method])["graph_module"]["graph"], nodes)
        events = {
            int(at): {str(e): _handles(h) for e, h in (about.get("delegate_map") or {}).items()}
            for at, about in (delegates.get(method) or {}).items()
        }
        by_number = {int(at): _handles(each) for at, each in listed.items()}
        found[method] = MethodRecord(nodes, by_number, events)
    return found


def _handles(given: Any) -> Handles:
    """Negative ones say that a value has another form than the node's."""
    several = given if isinstance(given, list) else [given]
    return tuple(int(each) for each in several if int(each) > 0)


def _read_nodes(graph: Any, nodes: dict[int, NodeOrigin]) -> None:
    """The nodes of a graph and its sub-graphs that have handles. Of several with one, the first."""
    for node in graph["nodes"]:
        meta = node["metadata"]
        if str(meta.get("debug_handle", "")).isdecimal():
            nodes.setdefault(int(meta["debug_handle"]), _read_node(node, meta))
        for each in node["inputs"]:
            inner = each["arg"].get("as_graph")
            if inner is not None:
                _read_nodes(inner["graph"], nodes)


def _read_node(node: Any, meta: Any) -> NodeOrigin:
    operator = str(node["target"]).removeprefix("torch.ops.")
    stack = [part.split(",", 2) for part in str(meta.get("nn_module_stack") or "").split(";")]
    _, path, kind = stack[-1] if stack and len(stack[-1]) == 3 else ("", "", "")
    name = _name(node) or operator
    place = locate(str(meta.get("stack_trace") or ""))
    return NodeOrigin(name, operator, path, kind.rpartition(".")[2], *place)


def _name(node: Any) -> str:
    """Files of torch's have no names of nodes, but of what they compute."""
    outputs = node.get("outputs") or [{}]
    tensor = outputs[0].get("as_tensor") or {}
    return str(node.get("name") or tensor.get("name") or "")
