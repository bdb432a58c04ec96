"""Exceptions that data raise and that something further out catches: equal to eager, whichever way
the data go, in values and in which error nobody catches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import raised
from tests.fresh import run_python
from tests.isolation import count_holders

CALLS = (
    torch.tensor([1.0, 2.0, -3.0]),
    torch.tensor([5.0, 5.0, 5.0]),
    torch.tensor([-1.0, 2.0, -30.0]),
    torch.tensor([-1.0, -2.0, -3.0]),
    torch.tensor([0.0, 200.0, 0.1]),
)


def _call(run: Any, x: torch.Tensor) -> Any:
    try:
        return run(x.clone())
    except (ValueError, RuntimeError, AssertionError) as error:
        return str(error).split(":")[-1]


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("function", raised.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any, example: int) -> None:
    is_module = isinstance(function, type) and issubclass(function, nn.Module)
    eager = function() if is_module else function
    run = lostwax.export(copy.deepcopy(eager), (CALLS[example].clone(),)).module()
    for each in CALLS:
        got, want = _call(run, each), _call(eager, each)
        assert isinstance(got, str) == isinstance(want, str), (got, want)
        if not isinstance(want, str):
            torch.testing.assert_close(got, want)
    if is_module:
        torch.testing.assert_close(dict(run.named_buffers()), dict(eager.named_buffers()))


@pytest.mark.parametrize("function", raised.REFUSED, ids=lambda each: each.__name__)
def test_what_is_no_call_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError) as error:
        lostwax.export(function, (CALLS[0].clone(),))
    assert "raised.py:" in str(error.value)
    assert "instead:" in str(error.value)


def test_each_way_equals_eager_where_frames_are_watched() -> None:
    """Who calls a function holds what it gives to it, then; torch watches all frames of a process
    in which it has failed to compile something. It was refused: somebody had what is raised."""
    ran = run_python("from tests.capture.flow import test_raised; test_raised.run_watched()")
    assert ran.stdout == "watched\n"


def run_watched() -> None:
    with pytest.raises(Exception, match="merging two branches"):
        torch.cond(torch.ones(()) > 0, lambda x: x + 1, torch.nonzero, (torch.ones(2),))
    assert count_holders(object()) > 2
    for each in (raised.error_with_slots, raised.value_in_it, raised.raised_in_a_loop_with_else):
        test_each_way_equals_eager(each, 0)
    print("watched")
