"""Containers and small objects that each side of an `if` changes otherwise: where a function has
them for itself and does not read them any more, they need not become one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow import own_containers

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0]),
    torch.tensor([2.0, -2.0, 0.5, 0.0]),
)


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("function", own_containers.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any, example: int) -> None:
    run = lostwax.export(function, (CALLS[example].clone(),)).module()
    for each in CALLS:
        xs = [each.clone().requires_grad_() for _ in range(2)]
        got, want = run(xs[0]), function(xs[1])
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y.sum(), x) for y, x in zip((got, want), xs, strict=True)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("function", own_containers.OTHERS, ids=lambda each: each.__name__)
def test_what_others_have_is_one_of_the_two(function: Any) -> None:
    try:
        run = lostwax.export(function, (CALLS[0].clone(),)).module()
    except LostwaxError as error:
        assert "own_containers.py:" in str(error)  # noqa: PT017
        return
    for x in CALLS:
        torch.testing.assert_close(run(x.clone()), function(x.clone()))
