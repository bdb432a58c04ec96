"""Handlers that raise in turn, `finally`, and what an exception comes of: as in eager."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import nested_handlers, reraised

CALLS = [
    torch.tensor(values)
    for values in ([1.0, 2.0, -3.0, 4.0], [-1.0, -2.0, -3.0, -4.0], [5.0, -1.0, 3.0, 2.0])
]


def run(function: Any, x: torch.Tensor) -> Any:
    try:
        return function(x)
    except (KeyError, RuntimeError, ValueError):
        return None


CAPTURED = [*reraised.CAPTURED, *nested_handlers.CAPTURED]


@pytest.mark.parametrize("function", CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any) -> None:
    captured = lostwax.export(function, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(run(captured, x), run(function, x))


@pytest.mark.parametrize("function", reraised.REFUSED, ids=lambda each: each.__name__)
def test_what_an_exception_comes_of_is_not_looked_at(function: Any) -> None:
    with pytest.raises(CaptureError) as error:
        lostwax.export(function, (CALLS[0],))
    assert "it is looked at wh" in str(error.value)
    assert "reraised.py:" in str(error.value)
    assert "instead: give " in str(error.value)


def test_what_is_shown_is_not_looked_at(capsys: Any) -> None:
    checked: Any = reraised.checked

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return checked(x)  # type: ignore[no-any-return]
        except KeyError:
            traceback.print_exc()
            return x * 2

    captured = lostwax.export(program, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(captured(x), program(x))
    assert "KeyError" in capsys.readouterr().err


def fall(x: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        if x.sum() > 0:
            raise ValueError("deep")
        return x
    return fall(x, depth - 1) + 1


def caught_above(x: torch.Tensor, depth: int) -> torch.Tensor:
    try:
        return fall(x, depth)
    except ValueError:
        return x * 2


@pytest.mark.parametrize("depth", [1, 5])
def test_what_calls_itself_may_raise(depth: int) -> None:
    captured = lostwax.export(caught_above, (CALLS[0], depth)).module()
    for x in CALLS:
        torch.testing.assert_close(captured(x, depth), caught_above(x, depth))


def test_attempts_at_what_calls_itself_come_to_an_end() -> None:
    with pytest.raises(CaptureError, match="it calls itself more than 8 times") as error:
        lostwax.export(caught_above, (CALLS[0], 20))
    assert "in fall: return fall(x, depth - 1) + 1" in str(error.value)
    assert "instead: write it as a loop" in str(error.value)
