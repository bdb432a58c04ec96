"""Where a program begins to differ from its module: both run node by node, and each value of the
program is compared with that of the module's own operators.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.capture.steps.provenance import Provenance
from lostwax.checking.result import Close, describe_node
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import shorten_trace
from lostwax.undo.undo import Undo, run_and_undo


def compare_nodes(
    program: ExportedProgram,
    modules: Mapping[str, nn.Module],
    call: Callable[[], Any],
    close: Close,
) -> ComparingInterpreter:
    """An interpreter of the program's graph that notes, as `found`, the first node whose value is
    not what the module computes there. `call` calls the module, whose `modules` have paths."""
    paths = {id(m): path for path, m in modules.items()}
    read_lines = _choose_lines(program)
    recorder = _ValueRecorder(paths, read_lines)

    def record(undo: Undo) -> None:
        recorder.provenance.catch_calls(list(modules.values()), undo)
        with recorder.provenance.watch_calls(sys._getframe()), recorder:
            call()

    run_and_undo(record)
    return ComparingInterpreter(program, recorder.values, close, read_lines)


Key = tuple[str, str, str, int]
"""The call of a module, the user's lines, the operator, and a number if there are several."""


class _ValueRecorder(TorchDispatchMode):
    """Keeps the values that the module's operators return, by where they are called."""

    def __init__(self, paths: Mapping[int, str], read_lines: Callable[[str], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.provenance, self.read_lines = Provenance(paths), read_lines
        self.values: dict[Key, Any] = {}
        self._count: Counter[tuple[str, str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        meta: dict[str, Any] = {}
        self.provenance.place_at(sys._getframe(1)).describe(func, meta)
        call = next(reversed(meta["nn_module_stack"]), "")
        key = (call, self.read_lines(meta["stack_trace"]), _operator_name(func))
        kept = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), out)
        self.values[*key, self._count[key]] = kept
        self._count[key] += 1
        return out


def _choose_lines(program: ExportedProgram) -> Callable[[str], str]:
    """What of a stack trace we compare with a program's nodes: those of a file may have but the
    innermost line, or nothing (`save(..., metadata=...)`), and folders of another machine, or
    relative to another working directory."""
    traces = {_node_trace(n) for n in program.graph.nodes if n.op == "call_function"}
    if not any(traces):
        return lambda trace: ""
    is_short = all(shorten_trace(t) == t for t in traces)

    def read_lines(trace: str) -> str:
        return _FOLDERS.sub('File "', shorten_trace(trace) if is_short else trace)

    return read_lines


_FOLDERS = re.compile(r'File "[^"\n]*/')


class ComparingInterpreter(Interpreter):
    """Runs the program's graph and compares each node with what the module computed there."""

    def __init__(
        self,
        program: ExportedProgram,
        values: Mapping[Key, Any],
        close: Close,
        read_lines: Callable[[str], str],
    ) -> None:
        super().__init__(program.graph_module)
        self.values, self.close, self.read_lines = values, close, read_lines
        self.found = ""
        self._count: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[tuple[str, str], list[Any]] = {}
        for (call, lines, *_), value in values.items():
            self._places.setdefault((call, lines), []).append(value)
        self._unknown: dict[Node, None] = {}
        """The nodes that we can compare with nothing that the module computed."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and not self.found:
            self._judge_node(n, value)
        return value

    def _judge_node(self, node: Node, value: Any) -> None:
        if not isinstance(node.target, OpOverload):
            if any(n in self._unknown for n in node.all_input_nodes):
                self._unknown[node] = None
            return
        key = (*self._place_of(node), _operator_name(node.target))
        want = self.values.get((*key, self._count[key]))
        self._count[key] += 1
        if "empty" in key[2]:
            return
        if want is None:
            if not any(
                self._find_difference(value, v) == ""
                for v in self._places.get(self._place_of(node), ())
            ):
                self._unknown[node] = None
        elif wrong := self._find_difference(value, want):
            self.found = self._describe_first(node, wrong)

    def _find_difference(self, value: Any, want: Any) -> str:
        pairs = zip(pytree.tree_leaves(value), pytree.tree_leaves(want), strict=False)
        return next((wrong for a, b in pairs if (wrong := self.close(a, b))), "")

    def _describe_first(self, node: Node, wrong: str) -> str:
        """The node where the difference begins: this one, unless it is computed from nodes that we
        could not compare. Then it is the last node on the first line of those."""
        before = self._unknown_before(node)
        known = [
            n
            for n in before
            if isinstance(n.target, OpOverload) and self._place_of(n) in self._places
        ]
        if known:
            node = [n for n in known if self._place_of(n) == self._place_of(known[0])][-1]
            wrong = "its value is none of those that the module computes there"
        return describe_node(node, wrong)

    def _place_of(self, node: Node) -> tuple[str, str]:
        """The call of a module in which a node stands, and the user's lines."""
        call = next(reversed(node.meta.get("nn_module_stack") or {}), "")
        return str(call), self.read_lines(_node_trace(node))

    def _unknown_before(self, node: Node) -> list[Node]:
        """The nodes that we could not compare and that this one is computed from, in order."""
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if each in self._unknown and each not in found:
                    found.add(each)
                    waiting.append(each)
        return [n for n in self._unknown if n in found]


def _node_trace(node: Node) -> str:
    return str(node.meta.get("stack_trace") or "")


def _operator_name(func: Any) -> str:
    """The operator's name, the same for its in-place and functional forms."""
    name = str(func._schema.name).rpartition("::")[2] if isinstance(func, OpOverload) else str(func)
    return name.removesuffix("_").removesuffix("_functional")
