"""Programs that ask which object something is, `flag is True`, where data or sizes decide it: by
`is`, by patterns, in other functions than the one that computed it; and numbers that data choose
and that are more than numbers.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""
# ruff: noqa: E714, F632

from __future__ import annotations

import enum
import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PROGRAMS: list[Any] = []
OF_SIZES: list[Any] = []


def data(program: Any) -> Any:
    PROGRAMS.append(program)
    return program


def sizes(program: Any) -> Any:
    OF_SIZES.append(program)
    return program


# --------------------------------------------------------------------------------------------- `is`


@data
def in_an_if(x: Tensor) -> Tensor:
    if bool(x.sum() > 0) is True:
        return x + 1
    return x - 1


@data
def negated(x: Tensor) -> Tensor:
    flag = (x.sum() > 0).item()
    return x + 1 if flag is not False else x - 1


@data
def returned(x: Tensor) -> Any:
    flag = bool(x.sum() > 0)
    return x, flag is True, flag is not True, flag is None, flag is 1


def is_set(flag: Any) -> bool:
    return flag is True


@data
def in_another_function(x: Tensor) -> Tensor:
    return x * (2 if is_set(bool(x.sum() > 0)) else 3)


def add(x: Tensor, flag: Any = None) -> Tensor:
    if flag is None:
        return x * 7
    return x + 1 if flag is True else x - 1


@data
def by_a_keyword(x: Tensor) -> Tensor:
    return add(x) + add(x, flag=bool(x[0] > 0))


@data
def in_a_lambda(x: Tensor) -> Tensor:
    return (lambda flag: x + 1 if flag is True else x - 1)(bool(x.sum() > 0))


@data
def in_a_closure(x: Tensor) -> Tensor:
    flag = bool(x.sum() > 0)

    def around() -> Any:
        return lambda: x + 1 if flag is True else x - 1

    return around()()  # type: ignore[no-any-return]


@data
def asserted(x: Tensor) -> Tensor:
    flag = bool((x * x).sum() >= 0)
    assert flag is True
    return x + 1


@data
def of_two_truths(x: Tensor) -> Tensor:
    a, b = bool(x[0] > 0), bool(x[1] > 0)
    return x + (1 if a is b else 2) + (5 if a is b is True else 6)


@data
def joined(x: Tensor) -> Tensor:
    f, g = bool(x.sum() > 0), bool(x[0] > 0)
    if (f is True and g is not True) or (f is False and not (g is False)):
        return x + 1
    return x - 1


@data
def in_comprehensions(x: Tensor) -> Any:
    flags = [bool(each > 0) for each in x]
    most = len([f for f in flags if f is not False])
    return x * sum(1 for f in flags if f is True) + most, all(f is True for f in flags)


@data
def in_calls(x: Tensor) -> Tensor:
    flags = [bool(each > 0) for each in x]
    kept = len(list(filter(lambda f: f is True, flags)))
    return x + kept + sum(map(lambda f: 3 if f is True else 4, flags))  # noqa: C417


@data
def in_a_while(x: Tensor) -> Any:
    turns, is_on = 0, True
    while bool(x.abs().sum() < 30) is True:
        x = x * 2 + 1 if is_on is True else x + 3
        is_on, turns = bool(x.sum() > 4), turns + 1
    return x, turns


def yield_each(x: Tensor) -> Iterator[int]:
    for each in x:
        yield 1 if bool(each > 0) is True else 2


@data
def in_a_generator(x: Tensor) -> Tensor:
    return x + sum(yield_each(x))


@data
def caught(x: Tensor) -> Tensor:
    try:
        if bool(x.sum() > 0) is not True:
            raise ValueError
        return x + 1
    except ValueError:
        return x - 1


@data
def small_integers(x: Tensor) -> Tensor:
    n, count = int(x[0]), 0
    for each in x:
        if each > 0:
            count += 1
    return x + (1 if n is 5 else 2 if n is -1 else 3) + (10 if count is 2 else 20 if count else 30)


@data
def with_variables(x: Tensor) -> Tensor:
    missing, index = -1, int(x[0])
    return x + 1 if missing is index else x + 2 if any(index is k for k in (3, 5)) else x


@data
def by_functions(x: Tensor) -> Tensor:
    flag, is_ = (x.sum() > 0).item(), operator.is_
    x = x + 1 if is_(flag, True) else x - 1
    return x * 2 if operator.is_not(flag, False) else x


class Held:
    """Places of functions of C."""

    __slots__ = ("compare", "unset")
    root = math.sqrt
    is_one = operator.is_
    is_other = staticmethod(operator.is_not)

    def __init__(self) -> None:
        self.compare = operator.is_


HELD = Held()
IS_TRUE = functools.partial(operator.is_, True)
CALL = functools.partial(lambda compare, flag: compare(flag, False), operator.is_)


@data
def by_held_functions(x: Tensor) -> Tensor:
    flag, y = bool(x.sum() > 0), x * HELD.root(4.0)
    if IS_TRUE(flag):
        y = y + 1
    if HELD.is_one(flag, False) or Held.is_other(flag, True):
        y = y * 3
    y = y - (2 if HELD.compare(flag, True) else 5)
    return y * 2 if CALL(flag) else y


@dataclass
class Found:
    flag: Any
    x: Tensor

    @property
    def is_sure(self) -> bool:
        return self.flag is not False


@data
def of_an_object(x: Tensor) -> Tensor:
    found = Found(bool(x.sum() > 0), x)
    return found.x + 1 if found.is_sure else found.x - 1


def doubling(function: Any) -> Any:
    @functools.wraps(function)
    def call(x: Tensor, flag: Any) -> Any:
        return function(x, flag) * (2 if flag is True else 1)

    return call


@doubling
def decorated(x: Tensor, flag: Any) -> Tensor:
    return x + 1 if flag is not False else x


@data
def by_a_decorator(x: Tensor) -> Any:
    return decorated(x, bool(x.sum() > 0))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.asking = Asking()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        flag = self.asking(x)
        if flag is True:
            self.count += 1
        return x + self.count


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return (x.sum() > 0).item()


# ----------------------------------------------------------------------------------------- patterns


@data
def matched(x: Tensor) -> Tensor:
    match bool(x.sum() > 0):
        case None:
            return x
        case True as flag:
            return x + flag
        case False:
            return x - 1
    return x * 100


@data
def matched_pairs(x: Tensor) -> Tensor:
    match (bool(x[0] > 0), bool(x[1] > 0)):
        case (True, False):
            return x + 1
        case (True | None, True):
            return x + 2
        case (False, _):
            return x + 3
    return x * 100


@data
def matched_inside(x: Tensor) -> Tensor:
    match [bool(x[0] > 0), {"a": Found(bool(x[1] > 0), x)}]:
        case [True, {"a": Found(flag=False)}]:
            return x + 1
        case [True | False as flag, {"a": Found(flag=True, x=y)}]:
            return y + (2 if flag is True else 3)
        case [False, {"a": Found(flag=False)}] if x.sum() < -2:
            return x + 4
    return x * 100


@data
def matched_by_class(x: Tensor) -> Tensor:
    match int(x.sum() > 0):
        case True:
            return x + 1
        case 1:
            return x + 2
    return x + 3


# ---------------------------------------------------------------------------- more than numbers


class Mode(enum.IntEnum):
    UP = 1
    DOWN = 2


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Marked(int):
    mark: int

    def __new__(cls, number: int, mark: int) -> Marked:
        self = int.__new__(cls, number)
        self.mark = mark
        return self


SCALES = {Mode.UP: 10.0, Mode.DOWN: 20.0}


@data
def a_member(x: Tensor) -> Tensor:
    mode = Mode.UP if x.sum() > 0 else Mode.DOWN
    x = x + 1 if mode is Mode.UP else x - 1
    x = x * 2 if isinstance(mode, Mode) else x
    match mode:
        case Mode.UP:
            x = x * 3
    return x * mode + len(mode.name) + SCALES[mode]


@data
def a_member_or_a_number(x: Tensor) -> Tensor:
    mode = int(x[0]) if x.sum() > 0 else Mode.UP
    return x + 1 if mode is Mode.UP else x + mode


@data
def flags(x: Tensor) -> Tensor:
    right = Right.READ
    if x.sum() > 0:
        right |= Right.WRITE
    return x + 1 if Right.WRITE in right else x * (right & Right.READ)


@data
def with_attributes(x: Tensor) -> Tensor:
    return x + (Marked(1, 7) if x.sum() > 0 else Marked(1, 8)).mark


@data
def of_numpy(x: Tensor) -> Tensor:
    s = np.float64(1.5) if x.sum() > 0 else np.float64(2)
    return x * s if isinstance(s, np.floating) else x


@data
def a_truth_or_a_number(x: Tensor) -> Tensor:
    t = True if x.sum() > 0 else 1
    return x + 1 if t is True else x - 1


# -------------------------------------------------------------------------------------------- sizes


@sizes
def a_comparison(x: Tensor) -> Tensor:
    n = x.shape[0]
    if (n > 3) is True and (n % 2 == 0) is not True:
        return x + 1
    return x - 1


@sizes
def a_size(x: Tensor) -> Tensor:
    return x + (1 if x.shape[0] is 4 else 2 if len(x) is 2 else 3)


@sizes
def a_size_elsewhere(x: Tensor) -> Tensor:
    return add(x, x.shape[0] > 3)


@sizes
def a_size_that_is_matched(x: Tensor) -> Tensor:
    match (x.shape[0] > 3, x.shape[0] % 2 == 0):
        case (True, True):
            return x + 1
        case (False, _):
            return x + 2
    return x


@sizes
def a_size_that_is_asserted(x: Tensor) -> Tensor:
    assert (x.shape[0] > 1) is True
    return x + 1


@sizes
def in_a_lambda_of_sizes(x: Tensor) -> Tensor:
    return (lambda f: x + 1 if f is True else x - 1)(x.shape[0] % 2 == 0)


@sizes
def a_result(x: Tensor) -> Any:
    return x, (x.shape[0] > 3) is True
