"""What operands of several dtypes, and numbers, are computed in; eager execution judges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lostwax

BYTES = torch.tensor([0, 1, 200, 253], dtype=torch.uint8)
SMALL = torch.tensor([-7, -3, 5, 100], dtype=torch.int8)
HALVES = torch.tensor([0.0, 0.001, -2.5, 8.0], dtype=torch.float16)
WIDE = torch.tensor(255, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("compute", "inputs"),
    [
        (lambda x: x / -3, (BYTES,)),
        (lambda x, y: x / y, (SMALL, WIDE)),
        (lambda x, y: torch.atan2(y, x), (SMALL, WIDE)),
        (lambda x: x + 2**40, (SMALL,)),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x + 300, lambda x: x * 300, (x,)), (SMALL,)),
        (lambda x: torch.fmod(x, -3), (BYTES,)),
        (lambda x: (x == -3, x < -3, x.clamp(-100, 250)), (BYTES,)),
        (lambda x: (x * -1e9, x / 1e-9, x * 0.1, x * 2), (HALVES,)),
        (lambda x: torch.div(x, 0.1, rounding_mode="floor"), (HALVES,)),
        (lambda x: (torch.remainder(x, 0.1), torch.fmod(x, 0.1), x == 1e9), (HALVES,)),
        (lambda x: x.bfloat16() * 3.3, (HALVES,)),
    ],
)
def test_edge_computes_what_eager_does(
    compute: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    edge = lostwax.export(compute, inputs).to_edge()
    ours = edge.exported_program().module()(*inputs)
    torch.testing.assert_close(ours, compute(*inputs), rtol=0, atol=0, equal_nan=True)


def test_numbers_that_half_precision_has_cost_no_cast() -> None:
    edge = lostwax.export(lambda x: x * 2 + 0.1, (HALVES,)).to_edge()
    calls = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    assert [str(n.target) for n in calls] == ["edge.aten.mul.Tensor", "edge.aten.add.Tensor"]
