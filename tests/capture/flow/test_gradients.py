"""Gradients that a program takes itself, of what branches on data compute: on each side of its own,
or they are refused (`refusals.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lostwax import export


def differentiated(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    if x.sum() > 0:
        y = (x * x).sum()
    else:
        y = (x * 3).sum()
    return torch.autograd.grad(y + x.sum(), x)[0]


def differentiated_in_a_side(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    y = (x * w * w).sum()
    return torch.autograd.grad(y, w)[0] if x.sum() > 0 else x * 0


def differentiated_beside(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    scale = x * 2 if x.sum() > 0 else x * 3
    return torch.autograd.grad((scale * w).sum(), w)[0]


def asked_for_one(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = x * 2 if x.sum() > 0 else x * 3
    return x.detach() + y.requires_grad


@pytest.mark.parametrize(
    "program",
    [differentiated, differentiated_in_a_side, differentiated_beside, asked_for_one],
)
def test_gradients_that_a_program_takes_of_branches(program: Callable[[Tensor], Tensor]) -> None:
    run = export(program, (torch.tensor([1.0, 2, 3]),)).module()
    for x in ([1.0, 2, 3], [-1.0, -2, 1], [0.0, 0, 0]):
        found, wanted = run(torch.tensor(x)), program(torch.tensor(x))
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad == wanted.requires_grad
