"""Tensors without elements in the runtime, of fixed sizes and of sizes that are sometimes 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import lostwax
from tests.pte.runtime import Runtime, assert_close

ROWS = lostwax.Dim("rows", min=0, max=6)
LINEAR = torch.nn.Linear(3, 2)


def products(x: torch.Tensor) -> Any:
    """The rows are also what is summed over."""
    squares = x.t() @ x
    batch = x.t()[None] @ x[None]
    row = x[None, :, :1].transpose(1, 2) @ x.t().contiguous()[None].transpose(1, 2)
    return squares, batch, row, torch.addmm(torch.ones(3), x.t(), x), F.linear(x.t(), x.t())


EXPRESSIONS: list[Callable[[torch.Tensor], Any]] = [
    products,
    lambda x: (torch.stack([x, x]), torch.stack([x, x]).shape[1] + x.shape[0]),
    lambda x: (torch.cat([x, x], 1), torch.cat([x, x[1:]])),
    lambda x: (x.sum(0), x.sum(), x + 1, x.t(), F.pad(x, (0, 0, 1, 1)), LINEAR(x)),
]


@pytest.mark.parametrize("compute", EXPRESSIONS)
def test_sizes_that_are_sometimes_zero(compute: Callable[[torch.Tensor], Any]) -> None:
    program = lostwax.export(compute, (torch.randn(4, 3),), dynamic_shapes=({0: ROWS},))
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for rows in (4, 0, 6, 0, 1):
        x = torch.randn(rows, 3)
        assert_close(runtime(x), tree_leaves(compute(x)))


@pytest.mark.parametrize("compute", EXPRESSIONS)
def test_sizes_that_are_always_zero(compute: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(0, 3)
    runtime = Runtime(lostwax.export(compute, (x,)).to_edge().to_executable().buffer)
    for _ in range(2):
        assert_close(runtime(x), tree_leaves(compute(x)))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: (x.amax(1), x.amin((1,), keepdim=True), x.logsumexp(1)),
        lambda x: (x[:, None].amax((1, 2)), x.half().amin(1), x.long().amax(-1)),
        lambda x: F.grid_sample(x[:, None, None], x[:, None, None, :2], align_corners=True),
    ],
)
def test_what_kernels_leave_or_end_the_process_for(compute: Callable[..., Any]) -> None:
    """Extremes of no rows end it; a grid leaves the sizes of the call before."""
    program = lostwax.export(compute, (torch.randn(4, 3),), dynamic_shapes=({0: ROWS},))
    dump = lostwax.pte.dump(program.to_edge().to_executable().buffer)
    assert "amax" not in dump  # before it ends this process, too
    assert "amin" not in dump
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for rows in (4, 0, 6, 2):
        x = torch.rand(rows, 3)
        if rows or "grid" not in dump:
            assert_close(runtime(x), tree_leaves(compute(x)))
