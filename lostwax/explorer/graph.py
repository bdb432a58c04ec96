"""The graph of a program as data for a page: nodes in columns, modules as a tree, sub-graphs.

Names, types and source lines are those that `print(program)` shows. Must not change a program.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.explorer.strings import Numbered, Sources
from lostwax.fake import FakeTensor
from lostwax.ir.data import Program
from lostwax.ir.graph.delegate import LoweredBackendModule, find_delegate
from lostwax.ir.graph.handles import REASONS
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import InputKind
from lostwax.ir.text import (
    argument_text,
    call_text,
    target_text,
    value_text,
)
from lostwax.sym import Expr
from lostwax.types import product

KINDS = (
    *("input", "parameter", "buffer", "constant", "operator", "item", "attribute", "output"),
    *("control", "delegate", "size"),
)
KIND = {name: number for number, name in enumerate(KINDS)}
_STATE = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.CUSTOM_OBJ: "constant",
}


class Tables:
    """What all stages of a page share: texts, and source lines."""

    def __init__(self, source: bool) -> None:
        self.strings = Numbered()
        self.sources = Sources(source)

    def text(self, text: str) -> int:
        return self.strings.number(text)


class ProgramWriter:
    """Writes the graphs of one program: its own, those of its control flow and of its delegates.

    Nodes of all of them are numbered through; `numbers` has the number of each.
    """

    def __init__(self, tables: Tables, program: Program) -> None:
        self.tables = tables
        self.program = program
        self.numbers: dict[Node, int] = {}
        self.nodes: list[Node] = []
        self.graphs: list[dict[str, Any]] = []
        self.modules = Numbered()
        self.modules.number((-1, self.tables.text(""), self.tables.text("")), "")
        names: tuple[str, ...] = ("name", "kind", "target", "type", "call", "module", "stack")
        names += ("graph", "inputs", "bytes", "origin", "note")
        self.columns: dict[str, list[Any]] = {name: [] for name in names}
        self.origins = Numbered()

    def write(self) -> dict[str, Any]:
        self._write_graph(self.program.graph, "", -1, "program", self._state(self.program))
        return {
            "columns": self.columns,
            "graphs": self.graphs,
            "modules": self.modules.items,
            "origins": self.origins.items,
            "symbols": list_symbols(self.program, self.nodes),
        }

    def _state(self, program: Program) -> dict[str, tuple[str, str]]:
        """The kind and the name in the module of each input that is state."""
        specs = program.graph_signature.input_specs
        return {
            s.arg.name: (_STATE[s.kind], s.target or "")
            for s in specs
            if s.kind in _STATE and s.arg is not None
        }

    def _write_graph(
        self, graph: Graph, name: str, owner: int, kind: str, state: dict[str, tuple[str, str]]
    ) -> int:
        number = len(self.graphs)
        self.graphs.append({"name": name, "owner": owner, "kind": kind})
        inner: list[tuple[Node, int]] = []
        for node in graph.nodes:
            at = self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self._write_node(node, number, state)
            if isinstance(node.target, HigherOrderOperator):
                inner.append((node, at))
        for node, at in inner:
            delegate = find_delegate(node)
            if delegate is not None:
                self._write_delegate(delegate, str(node.args[0]), at)
                continue
            for path, child in _bodies(node):
                self._write_graph(child.graph, path, at, "body", {})
        return number

    def _write_delegate(self, delegate: LoweredBackendModule, name: str, owner: int) -> None:
        state = self._state(delegate.program)
        number = self._write_graph(delegate.graph, name, owner, "delegate", state)
        self.graphs[number] |= {
            "backend": delegate.backend_id,
            "bytes": len(delegate.processed_bytes),
        }

    def _write_node(self, node: Node, graph: int, state: dict[str, tuple[str, str]]) -> None:
        kind, note = _kind(node, state)
        meta, text = node.meta, self.tables.text
        value = meta.get("val")
        reasons = meta.get(REASONS, ())
        called = node.op in ("call_function", "call_module")
        row = {
            "name": node.name,
            "kind": KIND[kind],
            "target": text(target_text(node.target) if called else str(node.target)),
            "type": text(value_text(value)) if node.op != "output" else text(""),
            "call": text(_call(node)),
            "module": self._module(meta.get("nn_module_stack") or {}),
            "stack": self.tables.sources.number(str(meta.get("stack_trace") or "")),
            "graph": graph,
            "inputs": [self.numbers[n] for n in node.all_input_nodes],
            "bytes": _nbytes(value),
            "origin": self._origin(meta.get("decomposed_from") or ()),
            "note": text(note or "; ".join(reasons)),
        }
        for name, cell in row.items():
            self.columns[name].append(cell)

    def _origin(self, origins: tuple[Any, ...]) -> int:
        text = self.tables.text
        if not origins:
            return -1
        return self.origins.number(
            tuple((text(o.name), text(target_text(o.target))) for o in origins)
        )

    def _module(self, stack: dict[str, Any]) -> int:
        """The innermost module that a node stands in; each knows that around it."""
        number, text = 0, self.tables.text
        for path, kind in stack.values():
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            if path == "":
                self.modules.items[0] = (-1, text(""), text(name))
                continue
            number = self.modules.number((number, text(path), text(name)), (number, path))
        return number


def _bodies(node: Node) -> Iterator[tuple[str, GraphModule]]:
    """The sub-graphs that a call of control flow is given."""
    for given in node.all_input_nodes:
        if given.op == "get_attr":
            found = find_attribute(node.graph.owning_module, str(given.target))
            if isinstance(found, GraphModule):
                yield str(given.target), found


def _kind(node: Node, state: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if node.op == "placeholder":
        return state.get(node.name, ("input", ""))
    if node.op in ("output", "get_attr"):
        return "output" if node.op == "output" else "attribute", ""
    if node.target is operator.getitem:
        return "item", ""
    if find_delegate(node) is not None:
        return "delegate", ""
    if isinstance(node.target, HigherOrderOperator):
        return "control", ""
    return ("size" if isinstance(node.meta.get("val"), SYMBOLIC) else "operator"), ""


def _call(node: Node) -> str:
    if node.op == "output":
        return f"return {argument_text(node.args[0])}"
    return call_text(node) if node.op in ("call_function", "call_module") else ""


# ------------------------------------------------------------------------------------------ values


def _nbytes(value: Any) -> int:
    """The bytes of what a node computes, at the sizes of the example; -1 if they are not known."""
    if isinstance(value, (tuple, list)):
        each = [_nbytes(v) for v in value]
        return -1 if -1 in each else sum(each)
    if isinstance(value, FakeTensor):
        count = product(value.fake_type.size)
        known = count.hint if isinstance(count, Expr) else int(count)
        return -1 if known is None else known * value.dtype.itemsize
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def list_symbols(program: Program, nodes: list[Node]) -> list[dict[str, Any]]:
    """The sizes that vary: their names, ranges, the example's size, and what the user calls
    them."""
    known = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            for size in value.fake_type.size:
                if isinstance(size, Expr):
                    known.update({str(s.expr): s for s in size.symbols()})
    found = []
    limits = limits_by_name(program.range_constraints)
    for name in dict.fromkeys((*limits, *known)):
        symbol = known.get(name)
        lo, hi = limits.get(name) or ((symbol.lo, symbol.hi) if symbol else (None, None))
        entry = {"name": name, "lo": lo, "hi": hi}
        if symbol is not None:
            entry |= {"example": symbol.hint, "place": symbol.source}
            entry["declared"] = None if symbol.declared == name else symbol.declared
        found.append(entry)
    return found
