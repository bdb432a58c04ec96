"""The exported module gives the original's gradients: to parameters and to inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.ir.program import ExportedProgram


class With(nn.Module):
    """A forward of a parameter and an input."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Any], *size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(*size))
        self.of = forward

    def forward(self, x: Tensor) -> Any:
        return self.of(self.w, x)


def seen(module: nn.Module, x: Tensor) -> list[Any]:
    """Results with their strides, and all gradients; no gradient counts as zeros."""
    x = x.detach().clone().requires_grad_()
    torch.manual_seed(0)
    out = module(x)
    results = list(out) if isinstance(out, (tuple, list)) else [out]
    weights = (torch.arange(r.numel()).view(r.shape) + 1.0 for r in results)
    pairs = zip(results, weights, strict=True)
    leaves = [*module.parameters(), x]
    sums = [(r * w).sum() for r, w in pairs if r.requires_grad]
    grads = torch.autograd.grad(sum(sums), leaves, allow_unused=True) if sums else []
    zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=False)]
    return [[r.detach() for r in results], [r.stride() for r in results], zeros]


def same(forward: Callable[[Tensor, Tensor], Any], *size: int) -> ExportedProgram:
    """Export, and compare with eager; the program."""
    module, x = With(forward, *size), torch.randn(*size)
    program = export(module, (x.clone().requires_grad_(),))
    program.validate()
    torch.testing.assert_close(seen(program.module(), x), seen(deepcopy(module), x))
    return program


def targets(program: ExportedProgram) -> list[str]:
    nodes = program.graph.nodes
    return [str(n.target).removesuffix(".default") for n in nodes if n.op == "call_function"]


# ------------------------------------------------------------------------------------------- writes


def _into(make: Callable[[], Tensor]) -> Callable[[Tensor, Tensor], Any]:
    """A tensor of some layout takes what is computed, and is written again."""

    def forward(w: Tensor, x: Tensor) -> Any:
        y = make()
        y.copy_(w * x)
        z = y * 2
        y[0] = x[1]
        return y, z

    return forward


def _add_to_part(w: Tensor, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:] += w[:, 1:]
    return y


def _other_dtype(w: Tensor, x: Tensor) -> Any:
    wide = torch.zeros(2, 3, 4, dtype=torch.float64).copy_(w * x)
    whole = torch.zeros(3, 4, dtype=torch.int64).copy_(w * 10)
    truth = torch.zeros(3, 4, dtype=torch.bool)
    truth[1] = w[1]
    return wide, whole * x, truth * x


def _read_without_gradients(w: Tensor, x: Tensor) -> Tensor:
    y = x * w
    first = y[0]
    y.mul_(w)
    with torch.no_grad():
        _ = first.sum()
    return first * x


def _copy_stays_apart(w: Tensor, x: Tensor) -> Any:
    source = x * w
    y = torch.empty_like(x)
    y.view(-1).copy_(source.view(-1))
    return y.add_(1), source


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "row-major": _into(lambda: torch.empty(3, 4)),
    "turned": _into(lambda: torch.empty(4, 3).t()),
    "with gaps": _into(lambda: torch.empty_strided((3, 4), (9, 2))),
    "a part": _into(lambda: torch.zeros(3, 8)[:, ::2]),
    "another dtype": _other_dtype,
    "in place through a slice": _add_to_part,
    "a view read without gradients": _read_without_gradients,
    "a copy": _copy_stays_apart,
}


@pytest.mark.parametrize("forward", WRITES.values(), ids=WRITES)
def test_writes(forward: Callable[[Tensor, Tensor], Any]) -> None:
    assert "aten.copy" not in targets(same(forward, 3, 4))


def test_channels_last_is_kept() -> None:
    def forward(w: Tensor, x: Tensor) -> Tensor:
        y = (w * x).to(memory_format=torch.channels_last)
        y[:, 0] = x[:, 1]
        return y

    same(forward, 2, 3, 4, 5)


def test_random_numbers_stop_gradients() -> None:
    def forward(w: Tensor, x: Tensor) -> Any:
        y, z, v = w * x, w * x, w * x
        y.bernoulli_(0.5)
        z.normal_()
        v[0].uniform_()
        return y + x, z + x, v

    same(forward, 3, 4)
