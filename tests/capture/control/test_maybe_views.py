"""Copies that are views at some sizes, in branches and loops: `a.t().reshape(-1)` of a row.

A program copies. Where a write would show that eager does not, it excludes those sizes; where none
does, it holds at all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import LostwaxError
from tests.capture.small import Of

X = torch.rand(3, 4)
DIMS = ({0: Dim("n", min=1, max=9), 1: Dim("m", min=1, max=9)},)


def flatten(a: Tensor) -> Tensor:
    return a.t().reshape(-1)


def write_then_return(x: Tensor) -> Tensor:
    a = x + 1
    y = flatten(a)
    a.add_(1)
    return y


def write_in_cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, write_then_return, lambda x: (x * 2).reshape(-1), (x,))


def write_in_if(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = write_then_return(x)
    else:
        y = (x * 2).reshape(-1)
    return y


def write_after_the_copy_is_chosen(x: Tensor) -> Tensor:
    a = x + 1
    if x.sum() > 0:
        y = flatten(a)
    else:
        y = (x * 2).reshape(-1)
    a.add_(1)
    return y


def write_after_both_are_chosen(x: Tensor) -> Tensor:
    if x.sum() > 0:
        a = x + 1
        y = flatten(a)
    else:
        a = x + 2
        y = (x * 2).reshape(-1)
    a.add_(1)
    return y


def write_in_the_next_iteration(x: Tensor) -> Tensor:
    a, seen = x + 1, torch.zeros(x.numel())
    y = torch.zeros(x.numel())
    for _ in range(int(x.sum().abs()) + 2):
        a.mul_(1.5)
        seen = seen + y
        y = flatten(a)
    return seen


def write_in_the_same_iteration(x: Tensor) -> Tensor:
    a, y = x + 1, torch.zeros(x.numel())
    for _ in range(int(x.sum().abs()) + 2):
        a = a * 1.5
        y = flatten(a)
        a.add_(1)
    return y


SHOWN = [
    write_in_cond, write_in_if, write_after_the_copy_is_chosen, write_after_both_are_chosen,
    write_in_the_next_iteration, write_in_the_same_iteration,
]  # fmt: skip


@pytest.mark.parametrize("function", SHOWN)
def test_a_write_that_would_show_excludes_sizes(function: Any) -> None:
    module = Of(lambda self, x: function(x))
    assert not torch.equal(module(torch.ones(1, 4)), module(torch.ones(2, 4))[::2]), "it shows"
    with pytest.raises(LostwaxError, match=r"the program is right only where x.shape\[\d\] != 1"):
        export(module, (X,), dynamic_shapes=DIMS)
    n, m = Dim("n", min=2, max=9), Dim("m", min=2, max=9)
    program = export(module, (X,), dynamic_shapes=({0: n, 1: m},))
    for x in (torch.rand(2, 5), -torch.rand(5, 2)):
        torch.testing.assert_close(program.module()(x), module(x))


def write_before_the_copy(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x + 1
    if x.sum() > 0:
        a.add_(1)
        y = flatten(a)
    else:
        y = (x * 2).reshape(-1)
    return y, a.sum()


def write_to_a_copy_alone(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = flatten(x + 1)
        y.add_(1)
    else:
        y = (x * 2).reshape(-1)
    return y


def write_on_the_other_side(x: Tensor) -> Tensor:
    a = x + 1
    if x.sum() > 0:
        y = flatten(a)
        y.add_(1)
    else:
        y = a.reshape(-1) * 2
    return y


def copy_in_a_loop(x: Tensor) -> Tensor:
    a, y = x + 1, torch.zeros(x.numel())
    for _ in range(int(x.sum().abs()) + 2):
        y = y + flatten(a)
        a = a * 1.5
    return y


@pytest.mark.parametrize(
    "function",
    [write_before_the_copy, write_to_a_copy_alone, write_on_the_other_side, copy_in_a_loop],
)
def test_a_write_that_does_not_show_excludes_nothing(function: Any) -> None:
    module = Of(lambda self, x: function(x))
    program = export(module, (X,), dynamic_shapes=DIMS).module()
    for x in (torch.rand(1, 4), torch.rand(5, 1), torch.rand(2, 3), torch.rand(1, 1)):
        for each in (x, -x):
            torch.testing.assert_close(program(each), module(each))


class Chosen(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.sum() > 0:
            y = x.contiguous()
        else:
            y = (x * 2).contiguous()
        y.add_(1)
        return x * 1, y


def test_a_layout_that_decides_in_a_branch() -> None:
    """Of an input that lies otherwise than the example `contiguous()` would be no copy."""
    x = torch.rand(3, 4).t()
    program = export(Chosen(), (x,)).module()
    torch.testing.assert_close(program(x.clone()), Chosen()(x.clone()))
    with pytest.raises(Exception, match="stride"):
        program(torch.rand(4, 3))
