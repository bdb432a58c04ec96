"""Programs whose statements ask data: `match`, `while (a := b)`, `with` and `try` that are left.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def guards(x: Tensor) -> Tensor:
    match x.ndim:
        case 1 if x.sum() > 5:
            return x + 1
        case n if x.sum() > n:
            return x + 2 + n
        case _:
            return x


def guards_of_parts(x: Tensor) -> Any:
    y, kind = x, "none"
    match [x.ndim, x]:
        case [2, _]:
            y = x * 7
        case [1, t] if t.sum() > 5:
            y = t * 2
        case [1 | 2, t] if t.sum() > 0 and t[0] > 0:
            y = t * 3
    match {"a": x, "kind": kind}:
        case {"a": t, "kind": "none"} if t[0] < 0:
            return y - 1
        case {"kind": str() as kind}:
            y = y + len(kind)
    return y


def values(x: Tensor) -> Any:
    n = int(x.sum())
    match n:
        case 0 | 3:
            y = x + 1
        case -3:
            y = x * 2
        case k if k > 9:
            y = x + k
        case _:
            y = x
    match (n, x.ndim):
        case (3, 1):
            return y, 1
        case (k, 1) if k < 0:
            return y, 2
    return y, 3


def in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        match i:
            case 0 if x.sum() > 5:
                break
            case 1 if x[0] > 0:
                continue
            case _ if x[0] > 100:
                return x
        x = x + 1
    return x


def sets_while_it_asks(x: Tensor) -> Any:
    n = 0
    while (s := x.sum()) < 20 and n < 5:
        if (m := x.max()) > 4:
            x = x + m
        x, n = x + 1, n + 1
    return x + s, n


def leaves_a_block(x: Tensor) -> Any:
    with torch.no_grad(), contextlib.suppress(KeyError):
        if x.sum() > 5:
            return x + 1, 1.0
        y, rate = x - 1, 2.0
        if y[0] < -1:
            return y, rate
        z = y * 3
    return y + z, rate


def leaves_a_try(x: Tensor) -> Any:
    seen = []
    try:
        if x.sum() > 0:
            return x + 1, seen
        y = x - 1
    finally:
        seen.append(x)
    return y * 2, seen


class Bag:
    def __init__(self, values: Tensor) -> None:
        self._values = values

    def __contains__(self, value: float) -> Tensor:
        return (self._values == value).any()  # type: ignore[return-value]


def asks_an_object(x: Tensor) -> Any:
    is_there = 1.0 in Bag(x)
    return x + 1 if 3.0 in Bag(x) else x, 9.0 not in Bag(x), is_there


def values_of_and_and_or(x: Tensor) -> Any:
    c, n = x.sum() > 0, int(x.sum())
    one = (c and x[0]) or x[1]
    two = (x[0] > 0 and x[1] > 0 and x[2] * 2) or (x[0] > 1 and x[1]) or x[0] - 1
    three = x[2] and ((x[0] > 0 and x[1]) or x[2] * 3) and x.sum()
    scale = (x.max() > 2 and x.max()) or 1.0
    number = (x[0] > 0 and (k := 2.0)) or (k := n or 3.0)
    return one, two, three, (x[0] > 0 or x[1]) and x[2], x / scale * number + k, n and 2


def nested_sides_that_differ(x: Tensor) -> Any:
    y = z = None
    if x[0] > 0:
        if x[1] > 0:
            y = x.sum()
    elif x[1] > 1:
        z = x + 1
    if z is not None:
        x = x + z
    return x if y is None else x * y


def catches_what_it_raises(x: Tensor) -> Any:
    try:
        y = x + 1
        if x[0] < 0:
            raise KeyError("a")
        if x[1] < 0:
            raise ValueError(f"below {x.ndim}")
        y = y * 2
    except (KeyError, IndexError):
        return y, 1
    except ValueError as error:
        y = y - len(str(error))
    else:
        y = y * 7
    finally:
        y = y + 100
    return y, 2


def catches_or_goes_on(x: Tensor) -> Any:
    y, found = x.clone(), [x]
    try:
        y.add_(1)
        if y.sum() < 0:
            raise ValueError("below")
        found.append(y * 2)
    except Exception:
        y.sub_(3)
        found.append(x - 1)
        kind = 3
    else:
        kind = 4 if x[0] > 1 else 5
    return y * kind, found


class Stopped(Exception):
    pass


def catches_in_loops(x: Tensor) -> Any:
    n = 0
    while n < 5:
        try:
            if x.sum() > 4:
                raise Stopped
            x = x + 1
        except Exception:
            break
        n += 1
    for i in range(3):
        try:
            assert x[i] > 2, "small"
            x = x + 1
        except AssertionError:
            x = x * 2
            if x[i] < 0:
                continue
        x = x + 10
    return x, n


PROGRAMS = [
    guards, guards_of_parts, values, in_a_loop, sets_while_it_asks, leaves_a_block, leaves_a_try,
    asks_an_object, values_of_and_and_or, nested_sides_that_differ, catches_what_it_raises,
    catches_or_goes_on, catches_in_loops,
]  # fmt: skip
