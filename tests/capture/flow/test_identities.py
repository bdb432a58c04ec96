"""`one is other`, of numbers that data or sizes decide, and members of an `IntEnum` that data
choose, beside eager."""
# ruff: noqa: F632

from __future__ import annotations

import builtins
import functools
import math
import operator
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, ConstraintViolationError, DataDependentError
from tests.capture.flow.identities import (
    CALL,
    HELD,
    IS_TRUE,
    OF_SIZES,
    PROGRAMS,
    Counting,
    Held,
    Mode,
    by_held_functions,
    is_set,
)

INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 2], [-1, -2], [5, -1], [-5, 1], [0, 0], [3, 3])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_data_decide(function: Any) -> None:
    program = lostwax.export(function, (INPUTS[0],))
    program.validate()
    run = program.module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


def test_two_modules_and_their_state(tmp_path: Any) -> None:
    for strict in (False, True):
        program, module = lostwax.export(Counting(), (INPUTS[0],), strict=strict), Counting()
        lostwax.save(program, tmp_path / "program.pt2")
        run = lostwax.load(tmp_path / "program.pt2").module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), module(each))
        torch.testing.assert_close(run.count, module.count)


@pytest.mark.parametrize("function", OF_SIZES)
def test_sizes_decide(function: Any) -> None:
    dims = ({0: Dim("n", min=2)},)
    x = torch.ones(4)
    run = lostwax.export(function, (x,), dynamic_shapes=dims, control_flow="sizes").module()
    for n in (4, 2, 3, 5, 300):
        torch.testing.assert_close(run(torch.ones(n)), function(torch.ones(n)))


def test_without_branches_on_sizes_the_example_answers() -> None:
    def forward(x: Tensor) -> Tensor:
        return x + 1 if (x.shape[0] > 3) is True else x - 1

    def elsewhere(x: Tensor) -> Tensor:
        return x + 1 if is_set(x.shape[0] > 3) else x - 1

    for function in (forward, elsewhere):
        with pytest.raises(ConstraintViolationError, match="min=4"):
            lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n")},))
        dims = ({0: Dim("n", min=4)},)
        for how in ("capture", "refuse"):
            program = lostwax.export(
                function, (torch.ones(4),), dynamic_shapes=dims, control_flow=how
            )
            assert program.module()(torch.ones(9))[0] == 2


def test_refused_where_control_flow_is() -> None:
    def forward(x: Tensor) -> bool:
        return is_set((x.sum() > 0).item())

    with pytest.raises(DataDependentError, match="return flag is True"):
        lostwax.export(forward, (INPUTS[0],), control_flow="refuse")


def two_sizes(x: Tensor) -> bool:
    return x.shape[0] is (x + 1).shape[0]


def large(x: Tensor) -> bool:
    return int(x[0]) is 1000


def of_floats(x: Tensor) -> bool:
    return x[0].item() is math.inf


@pytest.mark.parametrize("function", [two_sizes, large, of_floats])
def test_of_other_numbers_nobody_knows(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"(ints|floats) that depend .* to be one object") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert f"test_identities.py:{function.__code__.co_firstlineno + 1} in " in str(e.value)
    assert "from -5 to 256; of others, and of floats" in str(e.value)
    assert "instead: compare the numbers, n == m" in str(e.value)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("bool", lambda x: x * (2 if id(bool(x.sum() > 0)) == id(True) else 3)),
        ("bool", lambda x: x * len({*map(id, [(x[0] > 0).item(), True])})),
        ("bool", lambda x: x * sorted([bool(x[0] > 0), True], key=id)[0]),
        ("bool", lambda x: x * (builtins.id(bool(x[0] > 0)) == id(True))),
        ("bool", lambda x: x * (ADDRESS(bool(x[0] > 0)) == id(True))),
        ("int", lambda x: x * (2 if id(int(x[0])) in {id(1)} else 3)),
        ("float", lambda x: x * (id(x[0].item()) == id(x[1].item()))),
        ("int", lambda x: x * (id(x.shape[0]) == id(4))),
    ],
)
def test_where_an_unknown_number_lies_nobody_knows(kind: str, function: Any) -> None:
    with pytest.raises(CaptureError, match=rf"id\(\) is asked of a value of type {kind}, ") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert f"test_identities.py:{function.__code__.co_firstlineno} in " in str(e.value)
    assert "which of Python's objects it is depends on the number" in str(e.value)
    assert "instead: compare the numbers, n == m, or ask `flag is True`" in str(e.value)


ADDRESS = functools.partial(id)


def test_what_holds_functions_is_as_it_was() -> None:
    def all_held() -> list[Any]:
        inside = [vars(Held)["is_other"].__func__, IS_TRUE.func, CALL.args[0], HELD.compare]
        return [*vars(Held).values(), *inside]

    before = all_held()
    lostwax.export(by_held_functions, (INPUTS[0],), strict=True)
    assert all(map(operator.is_, all_held(), before))
    assert not hasattr(HELD, "unset")


def test_of_others_they_are_never_the_object() -> None:
    def forward(x: Tensor) -> Any:
        n, f = int(x[0]), x[1].item()
        known = x.shape[0]
        torch._check(n < 900)
        return n is x, n is None, n is Mode.UP, n is True, f is 3, n is 1000, known is -1

    dims = ({0: Dim("n", min=2)},)
    program = lostwax.export(forward, (INPUTS[0],), dynamic_shapes=dims)
    assert program.module()(INPUTS[0]) == (False,) * 7


@pytest.mark.parametrize("function", [is_set, lambda flag: flag is True])
def test_functions_are_as_they_were(function: Any) -> None:
    code = function.__code__
    lostwax.export(lambda x: x + function((x > 0).item()), (torch.ones(()),))
    assert function.__code__ is code


@functools.cache
def make_once() -> Any:
    def choose(x: Tensor) -> Tensor:
        flag = bool(x.sum() > 0)
        return x + 1 if flag is True else x - 1

    return choose


def test_a_function_that_an_earlier_capture_has_made() -> None:
    def forward(x: Tensor) -> Any:
        return make_once()(x)

    for _ in range(2):
        run = lostwax.export(forward, (INPUTS[0],)).module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), forward(each))
