"""Iterators that only one side of an `if` advances, or that a loop leaves before their end: where
they are is a number, which data may decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import cursors

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0]),
    torch.tensor([0.5, 0.5, 0.2, 0.1]),
    torch.tensor([5.0, -1.0, 3.0, 2.0]),
)


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("function", cursors.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any, example: int) -> None:
    run = lostwax.export(function, (CALLS[example].clone(),)).module()
    for each in CALLS:
        xs = [each.clone().requires_grad_() for _ in range(2)]
        got, want = run(xs[0]), function(xs[1])
        torch.testing.assert_close(got, want)
        if isinstance(want, torch.Tensor) and want.requires_grad:
            grads = [torch.autograd.grad(y.sum(), x) for y, x in zip((got, want), xs, strict=True)]
            torch.testing.assert_close(*grads)


def test_it_goes_over_layers() -> None:
    module = cursors.Layers()
    run = lostwax.export(module, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(run(x), module(x))


@pytest.mark.parametrize("function", cursors.REFUSED, ids=lambda each: each.__name__)
def test_what_no_index_can_answer_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError) as error:
        lostwax.export(function, (CALLS[0].clone(),))
    assert "cursors.py:" in str(error.value)
    assert "instead:" in str(error.value)
