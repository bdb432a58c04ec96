"""Control flow in the runtime, beside eager execution: branches, loops, and both in each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax import Dim
from tests.pte.runtime import Runtime, assert_close


def choose(x: Any) -> Any:
    return torch.cond(
        x.sum() > 0,
        lambda x: (x * 2, x.shape[0] * 1.0 + x.sum()),
        lambda x: (x - 1, x.sum()),
        (x,),
    )


def double(x: Any) -> Any:
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))


def add_sum(x: Any) -> Any:
    return map_rows(lambda row, total: row * 2 + total, x, x.sum(0))


def accumulate(x: Any) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x)


def combine(x: Any) -> Any:
    def multiply(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return associative_scan(multiply, (x, x * 2), 0, combine_mode="generic")


def nest(x: Any) -> Any:
    def decrease(row: Any) -> Any:
        start = (torch.tensor(0), row)
        return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y - 1), start)[1] + 0

    return map_rows(lambda row: torch.cond(row.sum() > 0, torch.cos, decrease, (row,)), x)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("function", [choose, double, add_sum, accumulate, combine, nest])
def test_control_flow_runs_as_in_eager(function: Any, varies: bool) -> None:
    shapes = ({0: Dim("rows", min=1, max=7)},) if varies else None
    program = lostwax.export(function, (torch.randn(3, 4),), dynamic_shapes=shapes)
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for rows in (3, 7, 1, 5) if varies else (3, 3, 3):
        x = torch.randn(rows, 4)
        assert_close(runtime(x), tree_leaves(function(x)))


def test_a_loop_over_no_rows() -> None:
    shapes = ({0: Dim("rows", max=4)},)
    program = lostwax.export(add_sum, (torch.randn(3, 4),), dynamic_shapes=shapes)
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for rows in (2, 0, 3):
        x = torch.randn(rows, 4)
        assert_close(runtime(x), [add_sum(x) if rows else torch.empty(0, 4)])


class Greedy(nn.Module):
    """Appends the likeliest token to a text, again and again; keys are kept as state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.key = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)
        self.register_buffer("keys", torch.zeros(6, 8))

    def forward(self, token: Any) -> Any:
        def step(at: Any, token: Any, keys: Any, text: Any) -> Any:
            x = self.embed(token)
            keys = keys.index_copy(0, at, self.key(x))
            seen = torch.arange(6) <= at
            scores = (x @ keys.t()).masked_fill(~seen, float("-inf"))
            token = self.head(scores.softmax(-1) @ keys).argmax(-1)
            return at + 1, token, keys, text.index_copy(0, at, token)

        start = (torch.tensor([0]), token, self.keys.clone(), torch.zeros(6, dtype=torch.int64))
        _, _, keys, text = while_loop(lambda at, *_: (at < 6).all(), step, start)
        self.keys.copy_(keys)
        return text


def test_a_greedy_decoder_with_its_cache_as_state() -> None:
    module = Greedy().eval()
    runtime = Runtime(lostwax.export(module, (torch.tensor([3]),)).to_edge().to_executable().buffer)
    for token in (3, 7, 3):
        given = torch.tensor([token])
        with torch.no_grad():
            assert_close(runtime(given), [module(given)])
