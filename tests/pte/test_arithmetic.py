"""Arithmetic that the runtime's kernels do otherwise than eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import lostwax
from tests.pte.runtime import Runtime

LARGE = torch.tensor([[2**53 + 1, -(2**53) - 1, 2**62 + 3], [2**24 + 1, -5, 2**40 + 1]])
DIVISORS = torch.tensor([[3, -7, 2**40 + 1], [-2, 3, 5]])
INTS = torch.tensor([[-7, -3, 100], [5, 7, 2**31 - 1]], dtype=torch.int32)
BYTES = torch.tensor([[0, 1, 200]], dtype=torch.uint8)
DOUBLES = torch.tensor([[1e9 + 0.5, -1.25, 3e8 + 0.1]], dtype=torch.float64)
FLOATS = torch.tensor([0.0, -1.0, torch.nan, torch.inf, -torch.inf, -0.0])
ONE = torch.tensor(3.0)
SQUARE = torch.arange(16.0).view(4, 4)


@pytest.mark.parametrize(
    ("compute", "inputs"),
    [
        (lambda x: (x.sum(1), x.sum(-1, keepdim=True), x.sum(0), x.sum((0, 1))), (LARGE,)),
        (lambda x: (x.sum(1, dtype=torch.int32), x.sum(0)), (INTS,)),
        (lambda x: x.sum(-1), (DOUBLES,)),
        (lambda x: (x.floor(), x.ceil(), x.trunc(), x.round()), (LARGE,)),
        (lambda x: (x**2, x**5, x**1, x**0), (LARGE,)),
        (lambda x: (x**2, x**3), (INTS,)),
        (lambda x: (x**0.5, x.sign()), (FLOATS,)),
        (lambda x: 2**x, (BYTES.int() % 40,)),
        (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (LARGE, DIVISORS)),
        (lambda x: torch.div(x, -3, rounding_mode="trunc"), (LARGE,)),
        (lambda x, y: (torch.fmod(x, y), x % y), (LARGE, DIVISORS)),
        (lambda x: (torch.fmod(x, 3), x % -3), (LARGE,)),
        (lambda x: (x % 1.0, x % -0.3), (DOUBLES,)),
        (lambda x, y: x % y, (DOUBLES, torch.tensor([0.3, -0.3, 2.0], dtype=torch.float64))),
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), (FLOATS, torch.zeros(6))),
        (lambda x: torch.div(x, 0.5, rounding_mode="floor"), (FLOATS,)),
        (lambda x, y: (torch.add(y, x, alpha=2), torch.sub(y, x, alpha=2)), (FLOATS, ONE)),
        (lambda x, y: torch.add(y, x, alpha=2), (INTS, torch.tensor(4, dtype=torch.int32))),
        (lambda x: torch.add(x, x, alpha=2), (INTS,)),
        (lambda x, y: torch.addmm(y * torch.nan, x, x, beta=0), (SQUARE, ONE)),
        (lambda x, y: torch.addmm(y * torch.nan, x, x, beta=0, alpha=2.5), (SQUARE, ONE)),
        (lambda x: F.interpolate(x, scale_factor=2.1), (SQUARE[None],)),
        (lambda x: F.interpolate(x, scale_factor=(2.1, 1.05)), (SQUARE[None, None],)),
        (lambda x: torch.where(x > 0, x, -1e9), (FLOATS.half(),)),
        (lambda x: (1 - x) * -1e9, (torch.tensor([0.0, 1.0]).half(),)),
    ],
)
def test_results_are_exactly_those_of_eager(
    compute: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    runtime = Runtime(lostwax.export(compute, inputs).to_edge().to_executable().buffer)
    wanted = tree_leaves(compute(*inputs))
    for ours, eager in zip(runtime(*inputs), wanted, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-13, atol=0, equal_nan=True)


def test_a_division_by_a_known_number_costs_one_call() -> None:
    compute = lostwax.export(lambda x: torch.div(x, 0.5, rounding_mode="floor"), (FLOATS,))
    dump = lostwax.pte.dump(compute.to_edge().to_executable().buffer)
    assert dump.count("aten::") == 1
