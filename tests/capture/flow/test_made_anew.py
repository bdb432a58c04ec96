"""Lists that a loop replaces, `outs = outs + [h]`, against eager; also where others hold them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.errors import ConstraintViolationError
from tests.capture.flow.test_appending import SIZES, Function, export_rows, list_calls, make_rows


def add_one(x: Tensor) -> Any:
    outs, h = [x[0]], torch.zeros(2, 3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        outs = outs + [h]  # noqa: RUF005
    return torch.stack(outs), outs[-1], len(outs)


def add_to_the_last(x: Tensor) -> Any:
    outs: list[Tensor] = []
    for row in x:
        outs = [*outs, outs[-1] * 0.5 + row if outs else row]
    return torch.cat([each * 2 for each in outs])


def add_in_place(x: Tensor) -> Any:
    outs = [x[0]]
    for row in x:
        outs += [row, row * 2]
    return torch.stack(outs)


@pytest.mark.parametrize("function", [add_one, add_to_the_last, add_in_place])
def test_one_program_serves_all_lengths(function: Function) -> None:
    program = export_rows(function)
    for n in SIZES:
        x = make_rows(n)
        torch.testing.assert_close(program.module()(x), function(x))
    assert "scan" in list_calls(program)


def keep_the_first(x: Tensor) -> Any:
    outs: list[Tensor] = []
    first = outs
    for row in x:
        outs = outs + [row]  # noqa: RUF005
    return torch.stack(outs), len(first)


def test_a_list_that_somebody_holds_is_another() -> None:
    with pytest.raises(ConstraintViolationError):
        export_rows(keep_the_first)


def one_of_two(x: Tensor) -> Any:
    outs, others = [x], [x]
    first = others
    if x.sum() > 0:
        outs, others = outs + [x * 2], others + [x * 5]  # noqa: RUF005
        outs = outs + [x]  # noqa: RUF005
    else:
        others = [*others, x]
        outs = [*outs, x * 3]
        outs = [*outs, x * 4]
    for each in outs:
        outs = outs + [each + 1 if x[0] > 0 else each]  # noqa: RUF005
    return outs, len(others), len(first)


def one_of_two_alone(x: Tensor) -> Any:
    outs = [x]
    outs = outs + [x * 2] if x.sum() > 0 else outs + [x]  # noqa: RUF005
    if x[0] > 0:
        outs = outs + [x - 1]  # noqa: RUF005
    else:
        outs = [*outs, x * 3]
    return outs, len(outs)


def goes_over_it_later(x: Tensor) -> Any:
    outs = [x]
    later = (each + 1 for each in outs)
    if x.sum() > 0:
        outs = outs + [x * 2]  # noqa: RUF005
    else:
        outs = [*outs, x * 3]
    return outs, [*later]


def hands_itself_over(x: Tensor) -> Any:
    outs: list[Any] = [x]

    def count() -> int:
        return len(outs)

    before = [count() for _ in outs]
    if x.sum() > 0:
        outs = outs + [x * 2]  # noqa: RUF005
    else:
        outs = [*outs, x * 3]
    return outs, before, count()


@pytest.mark.parametrize(
    "function", [one_of_two, one_of_two_alone, hands_itself_over, goes_over_it_later]
)
def test_branches(function: Any) -> None:
    x = torch.arange(3.0) + 1
    run = lostwax.export(function, (x,)).module()
    for each in (x, -x, x - 2):
        torch.testing.assert_close(run(each), function(each))
