"""The values of a program's nodes, as eager computes them, and as the runtime does.

Must not change the program, nor what it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from lostwax.checking.result import state_values
from lostwax.ir.program import ExportedProgram
from lostwax.pte.executable import ExecutableProgram, emit_recording
from lostwax.pte.runtime import load_runtime

Values = dict[str, list[torch.Tensor]]
"""For the name of a node the tensors that it computes."""


class _StageInterpreter(Interpreter):
    """Runs a graph, and keeps what each node computes. Where there is another value in place of
    one, the nodes after it read that: what they have wrong is then their own."""

    def __init__(self, program: ExportedProgram, instead: Mapping[str, Any]) -> None:
        super().__init__(program.graph_module)
        self.values: Values = {}
        self.instead = instead

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and "empty" not in str(n.target):  # that has no value
            self.values[n.name] = _keep(value)
        return _replace(value, self.instead[n.name]) if n.name in self.instead else value


def _replace(value: Any, kept: Sequence[torch.Tensor]) -> Any:
    """The kept tensors in the form of a value, if they are of its type."""
    leaves, spec = pytree.tree_flatten(value)
    is_alike = len(leaves) == len(kept) and all(
        isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(leaves, kept, strict=True)
    )
    if not is_alike:
        return value
    moved = [b.to(a.device, copy=True) for a, b in zip(leaves, kept, strict=True)]
    return pytree.tree_unflatten(moved, spec)


def _keep(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [t.detach().to("cpu", copy=True) for t in leaves if isinstance(t, torch.Tensor)]


def list_sizes(values: Sequence[torch.Tensor]) -> list[torch.Size]:
    """The sizes of what a node computes."""
    return [t.shape for t in values]


def record(
    program: ExportedProgram, given: Sequence[Any], instead: Mapping[str, Any] | None = None
) -> tuple[Values, list[Any]]:
    """What each node of a program computes in eager, and the results. `instead` are values that
    are read in place of those of nodes."""
    recorder = _StageInterpreter(program, instead or {})
    state = copy.deepcopy(state_values(program))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = recorder.run(*state, *copy.deepcopy(given))
    written = len(results) - len(program.graph_signature.user_outputs)
    return recorder.values, list(results[written:])


def run_recording(executable: ExecutableProgram, given: Sequence[Any]) -> tuple[Values, list[Any]]:
    """What each node of an executable computes in the runtime, and the results."""
    buffer, nodes = emit_recording(executable, "forward")
    got = load_runtime(buffer).run(copy.deepcopy(list(given)))
    count = len(got) - len(nodes)
    values = {n.name: _keep(v) for n, v in zip(nodes, got[count:], strict=True)}
    return values, got[:count]
