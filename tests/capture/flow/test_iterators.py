"""A loop over an iterator that data leave before its end: what is left of it is seen by whoever has
the iterator, too. Where nobody has, the loop is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import iterators

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, 2.0, -3.0, 4.0]),
    torch.tensor([1.0, 2.0, 3.0, 4.0]),
)


@pytest.mark.parametrize("function", iterators.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any) -> None:
    run = lostwax.export(function, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(run(x), function(x))


@pytest.mark.parametrize("function", iterators.REFUSED, ids=lambda each: each.__name__)
def test_an_iterator_that_others_have_is_not_run_to_its_end(function: Any) -> None:
    with pytest.raises(CaptureError, match="a loop over an iterator is left where data say so"):
        lostwax.export(function, (CALLS[0],))


def steps(log: list[int]) -> Any:
    try:
        for i in range(4):
            yield float(i)
    finally:
        log.append(9)


def left_by_break(x: torch.Tensor) -> torch.Tensor:
    log: list[int] = []
    for each in steps(log):
        if each > 1:
            break
    return x + len(log)


def left_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    log: list[int] = []
    for _ in range(2):
        for each in steps(log):
            if each > 1:
                break
        else:
            x = x + 100
        x = x + 10 * len(log)
    return x


def left_by_an_exception(x: torch.Tensor) -> torch.Tensor:
    log: list[int] = []
    try:
        for each in steps(log):
            if each > 1:
                raise ValueError
    except ValueError:
        x = x + 10 * len(log)
    return x


def left_on_both_sides(x: torch.Tensor) -> torch.Tensor:
    log: list[int] = []
    if x.sum() > 1:
        for each in steps(log):
            if each > 1:
                break
        y = x + len(log)
    else:
        for each in steps(log):
            if each > 2:
                break
        y = x - len(log)
    return y + len(log)


@pytest.mark.parametrize(
    "call",
    [left_by_break, left_in_a_loop, left_by_an_exception, left_on_both_sides],
    ids=lambda each: each.__name__,
)
def test_a_generator_that_a_loop_leaves_ends_there(call: Any) -> None:
    """It ended with the function that data take apart."""

    def decide(x: torch.Tensor) -> torch.Tensor:
        y = call(x)
        return y + 1 if x.sum() > 0 else y

    for function in (call, decide):
        program = lostwax.export(function, (torch.ones(3),))
        for sign in (1.0, -1.0):
            x = torch.ones(3) * sign
            torch.testing.assert_close(program.module()(x), function(x))
