"""Small modules made of a function, and what tests ask of their programs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from lostwax.capture import export


def Of(forward: Any, **state: Any) -> nn.Module:
    """A module made of a function and some state."""
    module = type("Of", (nn.Module,), {"forward": forward})()
    for name, value in state.items():
        setattr(module, name, value)
    return module


def same(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Export, run beside eager, compare; the program."""
    program = export(module, args, kwargs)
    program.validate()
    eager, ours = copy.deepcopy(module), program.module()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        call = copy.deepcopy((args, kwargs))  # what is one tensor stays one
        want = eager(*call[0], **call[1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        call = copy.deepcopy((args, kwargs))
        got = ours(*call[0], **call[1])
    torch.testing.assert_close(got, want)
    return program


def targets(program: Any) -> list[str]:
    nodes = program.graph.nodes
    return [str(n.target).removesuffix(".default") for n in nodes if n.op == "call_function"]


def inputs(program: Any) -> list[str]:
    return [n.name for n in program.graph.nodes if n.op == "placeholder"]


X = torch.randn(3, 4)


class Rounded(torch.autograd.Function):
    """Rounds, and passes gradients through: a backward that only the class itself knows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient
