"""Loops over generators that data leave, and generators that yield where data say so: the generator
is written out, or the capture is refused, and never is it asked more often than eager would."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow import generators, generators_inside, generators_used, of_libraries

CALLS = [
    torch.tensor(values)
    for values in (
        [1.0, 2.0, 3.0, 4.0],
        [-1.0, 2.0, 3.0, 4.0],
        [1.0, -2.0, 3.0, -40.0],
        [0.1, 0.1, 0.1, 0.1],
        [9.0, 8.0, 70.0, 60.0],
        [1e3, -4.0, -2.0, 1.0],
        [0.0, 0.0, 0.0, 0.0],
        [2.0, 1.0, -3.0, 6.0],
        [-1.0, -2.0, -3.0, -4.0],
    )
]
_HELD = "data decide how far a loop goes over a generator"
_LEFT = "a loop over an iterator is left where data say so"
_YIELDS = "data decide whether a generator yields"
_SIDES = "the two sides of an `if` on data do not agree"
_BY_REASON = {
    _HELD: (
        "two_loops_one_generator next_then_loop loop_then_next held_by_an_object "
        "held_in_a_variable held_finally_later leaves_within_finally locals_seen "
        "exhausted_then_asked"
    ),
    _LEFT: "catches_in_generator catches_exit within_with zip_with zip_before zip_after chain_of "
    "two_generators ctx no_grad",
    _YIELDS: "next_of_gen_default contains reduce_gen str_join",
    _SIDES: "genexp_over_gen filter_of lambda_in_body loop_in_unhooked_helper",
    "the True side of an `if` on data raises": "raises_in_body by_hand by_hand_goes_on reraised",
    "data decide whether this raises RuntimeError": "stop_iteration_inside",
    "a list to which a loop has appended": "tuple_gets star_call",
    "in a loop on data the body changes g": "dunder_next",
    "is sorted by something else than integers": "sorted_gets",
}
REFUSED = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
FUNCTIONS = {
    name: each
    for module in (generators, generators_inside, generators_used)
    for name, each in vars(module).items()
    if type(each) is FunctionType and each.__module__ == module.__name__
}
CAPTURED = sorted({*FUNCTIONS} - {*REFUSED, "halves", "_global_gen"})


def _call(run: Any, x: torch.Tensor) -> Any:
    try:
        return run(x.clone())
    except (ValueError, RuntimeError, AssertionError):
        return None


@pytest.mark.parametrize("name", CAPTURED)
def test_each_way_equals_eager(name: str) -> None:
    function = FUNCTIONS[name]
    run = lostwax.export(function, (CALLS[0].clone(),)).module()
    for x in CALLS:
        got, want = _call(run, x), _call(function, x)
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, equal_nan=True)


RUNS = [torch.tensor(each) for each in ([1, 1, 2, 2], [1, 2, 3, 4], [0, 0, 0, 0], [3, 1, 1, 2])]


@pytest.mark.parametrize("function", of_libraries.CAPTURED, ids=lambda each: each.__name__)
def test_functions_of_libraries(function: Any) -> None:
    run = lostwax.export(function, (RUNS[0],)).module()
    for x in RUNS:
        torch.testing.assert_close(run(x), function(x))


@pytest.mark.parametrize("function", of_libraries.REFUSED, ids=lambda each: each.__name__)
def test_what_they_do_beside_is_refused(function: Any) -> None:
    with pytest.raises(LostwaxError, match=of_libraries.REFUSED[function]):
        lostwax.export(function, (RUNS[0],))


def test_what_compares_has_to_give_an_order() -> None:
    run = lostwax.export(of_libraries.in_a_circle, (torch.tensor([0, 1]),)).module()
    assert run(torch.tensor([2, 0])) == of_libraries.in_a_circle(torch.tensor([2, 0]))
    run = lostwax.export(of_libraries.in_a_circle, (torch.tensor([0, 1, 3]),)).module()
    with pytest.raises(RuntimeError, match="gives no order"):
        run(torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_tell_is_refused(name: str) -> None:
    with pytest.raises(LostwaxError) as error:
        lostwax.export(FUNCTIONS[name], (CALLS[0].clone(),))
    assert REFUSED[name] in str(error.value)
    assert "flow/generators" in str(error.value)
