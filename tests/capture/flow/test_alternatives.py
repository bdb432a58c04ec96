"""A variable that data make one thing or another: None or a tensor, a number or a tensor, a word.

It is captured where the function itself asks what it is; where other code would have it, or the
module returns it, it is refused with the line of the `if`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import alternatives, alternatives_in_loops, alternatives_returned

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0]),
    torch.tensor([1.0, 2.0, 3.0, 2.5]),
    torch.tensor([0.0, 0.0, 1.5, 0.0]),
)


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize(
    "function",
    [*alternatives.CAPTURED, *alternatives_in_loops.CAPTURED, *alternatives_returned.CAPTURED],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_each_way_equals_eager(function: Any, example: int) -> None:
    run = lostwax.export(function, (CALLS[example].clone(),)).module()
    for x in CALLS:
        torch.testing.assert_close(run(x.clone()), function(x.clone()))


def test_gradients_go_through_it() -> None:
    module: Any = alternatives.KeepsAState()
    run = lostwax.export(module, (CALLS[0],)).module()
    for x in CALLS:
        for each in (module, run):
            each.zero_grad()
            found = each(x)
            if found.requires_grad:
                found.sum().backward()
        got, want = (
            [p.grad if p.grad is not None else torch.zeros_like(p) for p in each.parameters()]
            for each in (run, module)
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("function", alternatives.REFUSED, ids=lambda each: each.__name__)
def test_what_others_would_have_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match="the two sides of an `if` on data") as error:
        lostwax.export(function, (CALLS[0],))
    assert "alternatives.py:" in str(error.value)
    alternatives.FOUND = None


@pytest.mark.parametrize(
    "function",
    alternatives_returned.REFUSED,
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_whoever_does_not_look_at_what_is_returned_is_not_given_it(function: Any) -> None:
    with pytest.raises(CaptureError, match="the two sides of an `if` on data") as error:
        lostwax.export(function, (CALLS[0],))
    assert "alternatives_returned.py:" in str(error.value)


@pytest.mark.parametrize("function", alternatives_in_loops.REFUSED, ids=lambda each: each.__name__)
def test_what_a_loop_cannot_hand_on_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"in a loop on data one is a tensor .* and None later"):
        lostwax.export(function, (CALLS[0],))
