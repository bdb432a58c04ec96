"""The norm of weights, taken to core ATen: as the kernel computes it, which counts the numbers of
`g` and does not ask for their form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import InputValueError


class Normed(nn.Module):
    def __init__(self, v: torch.Tensor, g: torch.Tensor, dim: int) -> None:
        super().__init__()
        self.v, self.g, self.dim = nn.Parameter(v), nn.Parameter(g), dim

    def forward(self) -> Any:
        return torch._weight_norm(self.v, self.g, self.dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("size", "form", "dim"),
    [
        ((3, 4), (3, 1), 0), ((3, 4), (1, 4), 1), ((4, 3, 2), (4, 1, 1), 0), ((3,), (3,), 0),
        ((3, 3), (3, 1), 1), ((3, 4), (2, 2), 1), ((3, 4), (1, 3), 0), ((3, 4), (4,), 1),
    ],
)  # fmt: skip
def test_as_the_kernel(
    size: tuple[int, ...], form: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    module = Normed(torch.randn(size, dtype=dtype), torch.rand(form, dtype=dtype) + 1, dim)
    program = lostwax.export(module, ()).run_decompositions()
    assert "weight_norm" not in str(program.graph)
    ours = program.module()
    found, expected = ours(), module()
    torch.testing.assert_close(found, expected)
    for each in (found, expected):
        (each * torch.arange(1.0, each.numel() + 1).view(size)).sum().backward()
    torch.testing.assert_close(ours.v.grad, module.v.grad)
    torch.testing.assert_close(ours.g.grad, module.g.grad)


def test_too_few_numbers_are_refused() -> None:
    """The kernel would read what lies behind them."""
    with pytest.raises(RuntimeError, match="one number for each slice"):
        lostwax.export(Normed(torch.randn(3, 4), torch.ones(3, 1), 1), ())


def test_kernels_that_read_in_order_ask_for_it() -> None:
    """`contiguous()` before them does nothing at capture; of other strides they read amiss."""
    x = torch.randn(1, 3, 5, 5)
    program = lostwax.export(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), (x,))
    module = program.module()
    module(x)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with pytest.raises(InputValueError, match="original1: stride"):
        module(x)
    run = lostwax.export(torch.pdist, (torch.randn(4, 3),)).module()
    run(torch.randn(4, 3))
    with pytest.raises(RuntimeError, match="because of _pdist_forward"):
        run(torch.randn(3, 4).t())
