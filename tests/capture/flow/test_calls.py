"""Functions of Python's and of torch's that ask data: `torch.equal`, `max`, `sorted` and such."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import calls

NAN, INF = math.nan, math.inf
INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 1, 1], [-1, -1, -1], [1, -2, 3], [0, 0, 0], [5, 1, -7], [3, 3, 2])
]
ODD = [torch.tensor(each) for each in ([NAN, 1, 2], [2, NAN, 1], [1, INF, -INF], [-INF, 2, NAN])]


@pytest.mark.parametrize("function", calls.PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


@pytest.mark.parametrize(
    "function",
    [
        calls.is_same,
        calls.returns_a_truth,
        calls.kinds_of_floats,
        calls.largest_of_three,
        calls.largest_of_many,
        calls.sorts_two,
    ],
)
def test_it_does_so_for_floats_that_have_no_order(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in ODD:
        torch.testing.assert_close(run(each), function(each), equal_nan=True)


def test_what_has_no_order_is_not_sorted() -> None:
    run = lostwax.export(calls.sorts, (INPUTS[0],)).module()
    with pytest.raises(RuntimeError, match="NaN has no place in an order") as error:
        run(ODD[1])
    assert all(text in str(error.value) for text in (" in sorts: ", "torch.nan_to_num(x)"))


def test_assertions_are_kept() -> None:
    run = lostwax.export(calls.asserts, (INPUTS[0],)).module()
    with pytest.raises(RuntimeError, match="77"):
        run(torch.full((3,), 77.0))


def test_sizes_may_vary() -> None:
    n, m = lostwax.Dim("n"), lostwax.Dim("m")
    examples = (torch.ones(3), torch.ones(4))
    program = lostwax.export(
        calls.compares_sizes, examples, dynamic_shapes=({0: n}, {0: m}), control_flow="sizes"
    )
    for x in (torch.ones(1), torch.ones(2), torch.zeros(2), torch.ones(0)):
        for y in (torch.ones(1), torch.ones(2), torch.ones(0)):
            torch.testing.assert_close(program.module()(x, y), calls.compares_sizes(x, y))


def test_of_integers_the_largest_is_an_expression() -> None:
    program = lostwax.export(calls.largest_integer, (INPUTS[0],))
    assert "sym_max" in str(program)
    for each in INPUTS:
        assert program.module()(each) == calls.largest_integer(each)


def test_many_values_are_not_sorted_one_by_one() -> None:
    with pytest.raises(CaptureError, match="20 values, of which data decide the order") as error:
        lostwax.export(calls.sorts_many, (torch.ones(20),))
    assert "flow/calls.py:" in str(error.value)
    assert "torch.sort" in str(error.value)


def test_functions_of_tests_have_hooks() -> None:
    """pytest rewrites this function, and not the one in it."""

    def choose(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    run = lostwax.export(choose, (INPUTS[0],)).module()
    assert [run(each)[0] for each in INPUTS] == [choose(each)[0] for each in INPUTS]
