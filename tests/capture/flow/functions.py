"""Programs that ask data in functions of all kinds: lambdas, generators, closures, properties.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

absolute = lambda t: t if t.sum() > 0 else -t  # noqa: E731


def lambdas(x: Tensor) -> Tensor:
    one, two = (lambda t: t + 1 if t > 0 else t - 1), (lambda t, k=2: t * k if t > 2 else t)
    inner = lambda a: (lambda b: a + b if b.sum() > 0 else a - b)(a * 2) if a[0] > 0 else a  # noqa: E731
    return absolute(x) + one(x[0]) + two(x[1]) + two(x[2], k=3) + inner(x)


def functions_of_functions(x: Tensor) -> Any:
    def above(limit: float, t: Tensor) -> Tensor:
        if t > limit:
            return t + 1
        return t - 1

    mapped = [*map(lambda t: t + 1 if t > 0 else t - 1, x)]  # noqa: C417
    largest = functools.reduce(lambda a, b: a if a > b else b, x)
    sums = [*itertools.accumulate(x, lambda a, b: a + b if a > 0 else b)]
    return mapped, largest, sums, functools.partial(above, 2.0)(x[0]), [*map(above, (0, 1), x)]


def generators_taken_at_once(x: Tensor) -> Any:
    """They see what variables are when they are asked."""
    total = x.sum()
    for value in (t + total if t > 0 else total for t in x):
        total = total + value
    pairs = dict((i, t if t > 0 else -t) for i, t in enumerate(x))  # noqa: C402
    return total, torch.stack([*(t * 2 if t > 0 else t for t in x)]), pairs


def generators_asked_later(x: Tensor) -> Tensor:
    scale = x.sum()
    values = (t * scale if t > 0 else t for t in x)
    scale = scale + 1
    return sum(values) + sum(i * t for i, t in enumerate(t if t > 1 else -t for t in x))


def counts_and_sums(x: Tensor) -> Any:
    count = sum(1 for t in x if t > 0) + len([t for t in x if t > 1 and t < 4])
    count += sum(bool(t > 2) for t in x)
    filtered = sum(filter(lambda t: t > 0, x), torch.zeros(()))
    return x + count, filtered, sum((a * b for a in x for b in x if a > b), start=torch.ones(()))


def is_positive(t: Tensor) -> Tensor:
    return t > 0


def first_of_all(x: Tensor) -> Any:
    count = 0
    for _ in filter(is_positive, x):
        count += 1
    every = all(map(is_positive, x))
    return next((t * 2 for t in x if t > 2), x[0]), count, x + 1 if every else x


def yields(x: Tensor) -> Iterator[Tensor]:
    for i, t in enumerate(x):
        if i == 1:
            yield t
            continue
        if t > 0:
            y = t * 2
        else:
            y = -t
        if y > 4:
            yield y
        elif y > 2:
            yield y + 1
        else:
            z = y * 3
            yield z


def repeats(x: Tensor) -> Iterator[Tensor]:
    for _ in range(2):
        while x.sum() < 9:
            x = x + 1
        yield x
        x = x - 3


def asks_generators(x: Tensor) -> Tensor:
    total = sum(yields(x)) + sum(repeats(x))
    items = yields(x * 2)
    return next(items) + total + next(items)


@contextlib.contextmanager
def scaled(x: Tensor) -> Iterator[Tensor]:
    y = x * 2 if x.sum() > 0 else x
    yield y


def inside_of_blocks(x: Tensor) -> Tensor:
    try:
        with scaled(x) as y, contextlib.suppress(KeyError):
            if y[0] > 2:
                y = y + 1
    except ValueError:
        return x
    return y * 3


def variables_of_others(x: Tensor) -> Any:
    n, y = 0, x

    def bump(t: Tensor) -> None:
        nonlocal n, y
        if t.sum() > 0:
            n += 1
            y = y + t
        while y.sum() < 2:
            y = y + 1

    def bump_others(t: Tensor) -> None:
        if t[0] > 0:
            bump(t)

    bump(x)
    bump(x - 2)
    bump_others(x + 1)
    return y + n, n


class Shape:
    def __init__(self, t: Tensor) -> None:
        self._t = t
        self.__scale = 2

    size = lambda self: self.__scale if self._t.sum() > 0 else self.__scale + 1  # noqa: E731

    @property
    def sign(self) -> Tensor:
        return self._t + 1 if self._t.sum() > 0 else self._t

    @functools.cached_property
    def kept(self) -> Tensor:
        return self._t + 1 if self._t[0] > 0 else self._t

    def __call__(self, k: float) -> Tensor:
        return self._t if self._t.sum() > k else self._t * 2

    def __getitem__(self, i: int) -> Tensor:
        if self._t[i] > 0:
            return self._t[i]
        return self._t[i] - 1

    def __iter__(self) -> Iterator[Tensor]:
        return iter([t if t > 0 else -t for t in self._t])

    def __add__(self, other: Tensor) -> Tensor:
        return self._t + other if self._t.sum() > 0 else other

    @staticmethod
    def double(t: Tensor) -> Tensor:
        return t * 2 if t.sum() > 0 else t

    @classmethod
    def triple(cls, t: Tensor) -> Tensor:
        return t * 3 if t[0] > 0 else t


def methods(x: Tensor) -> Any:
    shape = Shape(x)
    parts = [shape.sign, shape.kept + shape.kept, shape(2), shape[0], sum(shape), shape + x]
    return parts, shape.size(), Shape.double(x), Shape.triple(x)


def scale_result(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        y = function(*args, **options)
        if y.sum() > 5:
            return y * 2
        return y

    return call


class Base(nn.Module):
    @scale_result
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Derived(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y[0] > 2:
            return super().forward(x - 1) * 2
        return y


def derived(x: Tensor) -> Tensor:
    return Derived()(x)  # type: ignore[no-any-return]


def functions_in_loops(x: Tensor) -> Any:
    """What they close over is set in the loop alone, which may not run once."""
    y, k = x, 0
    while k < x[0]:

        def add(t: Tensor) -> Tensor:
            return t + z  # noqa: B023

        z = y * 2
        y = (lambda: add(z) - 1)()
        k += 1
    return y


PROGRAMS = [
    functions_in_loops,
    lambdas, functions_of_functions, generators_taken_at_once, generators_asked_later,
    counts_and_sums, first_of_all, asks_generators, inside_of_blocks, variables_of_others, methods,
    derived,
]  # fmt: skip


# --------------------------------------------------------------------------------------- refusals


def moves_a_generator(x: Tensor) -> Tensor:
    items = yields(x)
    y = next(items)
    if x.sum() > 0:
        y = next(items) * 2
    return y + next(items)


WRITTEN: list[int] = []


def lambda_that_writes(x: Tensor) -> Any:
    return (lambda y: (WRITTEN.append(1) or y * 2) if y.sum() > 0 else y + 1)(x)


REFUSED = {
    lambda_that_writes: "WRITTEN has 1 elements on the True side, and 0 on the False side",
    moves_a_generator: "changes items, and that cannot be undone",
}
