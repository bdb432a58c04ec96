"""What operators raise for the example's sizes, and the program catches: with other sizes they do
not raise it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import ConstraintViolationError, InputValueError


def viewed(x: Tensor) -> Tensor:
    try:
        return x.view(2, -1)
    except RuntimeError:
        return x.view(1, -1)


def divided(x: Tensor) -> Tensor:
    try:
        return x + 10 // (x.shape[0] - 1)
    except ZeroDivisionError:
        return x


def divided_as_floats(x: Tensor) -> Tensor:
    try:
        return x * (1.0 / (x.shape[0] - 1))
    except ZeroDivisionError:
        return x


def rooted(x: Tensor) -> Tensor:
    try:
        return x * math.sqrt(x.shape[0] - 3)
    except ValueError:
        return x


def picked(x: Tensor) -> Tensor:
    try:
        return x[2] + 1
    except IndexError:
        return x[0]


def checked(x: Tensor) -> Tensor:
    try:
        torch._check(x.shape[0] > 3)
    except RuntimeError:
        return x + 1
    return x


def suppressed(x: Tensor) -> Tensor:
    with suppress(RuntimeError):
        x = x + torch.ones(3)  # which fits 3 sizes, and one
    return x


@pytest.mark.parametrize(
    ("function", "example"),
    [
        (viewed, 1),
        (divided, 1),
        (divided_as_floats, 1),
        (rooted, 1),
        (picked, 2),
        (checked, 3),
        (suppressed, 4),
    ],
)
def test_what_is_caught_is_a_branch(function: Callable[[Tensor], Tensor], example: int) -> None:
    x = torch.arange(example * 1.0)
    with pytest.raises(ConstraintViolationError):
        lostwax.export(function, (x,), dynamic_shapes=({0: Dim("n", min=1, max=64)},))
    run = lostwax.export(function, (x,), dynamic_shapes=({0: Dim.AUTO},)).module()
    for n in range(1, 7):
        x = torch.arange(n * 1.0)
        with suppress(InputValueError):  # it may serve fewer sizes
            torch.testing.assert_close(run(x), function(x))
    x = torch.ones(example)
    torch.testing.assert_close(run(x), function(x))


def test_what_is_not_caught_is_raised() -> None:
    with pytest.raises(RuntimeError, match="shape '\\[2, -1\\]' is invalid"):
        lostwax.export(
            lambda x: x.view(2, -1), (torch.ones(3),), dynamic_shapes=({0: Dim("n", max=64)},)
        )


def test_in_a_side_that_the_example_does_not_take_it_is_refused() -> None:
    def viewed_or_not(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            return x
        try:
            return x.view(5)
        except RuntimeError:
            return x

    with pytest.raises(ConstraintViolationError) as refused:
        lostwax.export(
            viewed_or_not,
            (torch.ones(4),),
            dynamic_shapes=({0: Dim("n", min=1, max=64)},),
            control_flow="sizes",
        )
    (note, *_) = refused.value.__notes__
    assert "an operator fails" in note


def convolved(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.conv1d(x[None, None], torch.ones(1, 1, 3)).sum()
    return x.sum()


def largest(x: Tensor) -> Tensor:
    found = [x.sum()]
    if x.sum() > -1:
        found.append(x.topk(2).values[1])
    else:
        found.append(x.view(2, -1).sum())
    return found[1]


@pytest.mark.parametrize("example", [0, 1, 4])
@pytest.mark.parametrize("function", [convolved, largest])
def test_a_side_on_data_that_raises_for_the_example_holds_for_others(
    function: Callable[[Tensor], Tensor], example: int
) -> None:
    sizes = ({0: Dim("n", max=64)},)
    run = lostwax.export(function, (torch.ones(example),), dynamic_shapes=sizes).module()
    for n in range(7):
        for x in (torch.arange(n * 1.0), -torch.ones(n)):
            try:
                wanted = function(x)
            except (RuntimeError, IndexError):
                with pytest.raises(RuntimeError):
                    run(x)
                continue
            torch.testing.assert_close(run(x), wanted)
