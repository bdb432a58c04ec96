"""Exports a program with control flow, and runs it beside plain Python on inputs that take every
path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture import export
from lostwax.ir.program import ExportedProgram
from tests.capture.control.plain import plain

Program = Callable[..., Any]


class EagerError(Exception):
    """Eager cannot differentiate it: a tensor that it needs was written to."""


class Small(nn.Module):
    """A module with some state, whose forward is a function."""

    def __init__(self, function: Program) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(3, 3)
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def exported(
    function: Program, args: Sequence[Any], dynamic: Any = None, **how: Any
) -> ExportedProgram:
    """The program of a function of a `Small` and its arguments."""
    shapes = None if dynamic is None else {"args": tuple(dynamic)}
    program = export(Small(function), tuple(args), dynamic_shapes=shapes, **how)
    program.validate()
    return program


def agree(
    function: Program,
    *inputs: Sequence[Any],
    dynamic: Any = None,
    gradients: bool = False,
) -> ExportedProgram:
    """Export with the first inputs, then compare on all of them: results, inputs and buffers
    afterwards, and gradients."""
    example = deepcopy(tuple(inputs[0]))
    for x in example if gradients else ():
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x.requires_grad_()
    program = exported(function, example, dynamic)
    ours, eager = program.module(), Small(function)
    for args in inputs:
        if gradients:  # what is left in buffers would have a history
            ours, eager = program.module(), Small(function)
        mine, theirs = deepcopy(tuple(args)), deepcopy(tuple(args))
        if gradients:
            for x in (*mine, *theirs):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    x.requires_grad_()
        got = ours(*mine)
        with plain():
            want = eager(*theirs)
        torch.testing.assert_close(got, want)
        assert find_strides(got) == find_strides(want)
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
        if gradients:
            _compare_gradients(ours, eager, (got, mine), (want, theirs))
    return program


def find_strides(results: Any) -> list[Any]:
    """How the tensors lie in memory: the strides of dimensions that have more than one element."""
    tensors = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [
        [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]
        for t in tensors
        if t.numel()
    ]


def _compare_gradients(ours: nn.Module, eager: nn.Module, got: Any, want: Any) -> None:
    found = []
    for module, (out, args) in ((ours, got), (eager, want)):
        module.zero_grad()
        tensors = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        leaves = [t for t in tensors if t.requires_grad]
        loss = sum((t * torch.arange(1, t.numel() + 1).view(t.shape)).sum() for t in leaves)
        try:
            loss.backward()
        except RuntimeError as error:
            raise (EagerError(str(error)) if module is eager else error) from error
        inputs = [a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        parameters = [p.grad for p in module.parameters()]
        found.append([None if g is None else g for g in (*inputs, *parameters)])
    for g, w in zip(*found, strict=True):
        zero = (
            torch.zeros(()) if g is None and w is None else torch.zeros_like(g if w is None else w)
        )
        torch.testing.assert_close(zero if g is None else g, zero if w is None else w)
