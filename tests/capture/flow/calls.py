"""Programs that ask data by functions of Python's and of torch's: `torch.equal`, `max`, `sorted`.

(pytest changes the code of files with tests where they assert: these are not in one.)
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any

import torch
from torch import Tensor


def is_same(x: Tensor) -> Tensor:
    if torch.equal(x, x.abs()):
        return x + 1
    return x - 1 if x[0].equal(x[1]) else x - 2


def is_same_as_what_is_positive(x: Tensor) -> Tensor:
    if torch.equal(x[x > 0], x):
        return x + 1
    return x - 1


def other_sizes_are_not_same(x: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, x[:2]) or x.equal(x.sum()) else x - 1


def returns_a_truth(x: Tensor) -> tuple[Tensor, bool]:
    is_close = torch.allclose(x, x.abs(), atol=3)
    return x + 1, is_close


def until_it_is_close(x: Tensor) -> Tensor:
    while not x.allclose(torch.zeros(3), atol=0.1):
        x = x / 2
    return x


def asserts(x: Tensor) -> Tensor:
    assert not torch.equal(x, torch.full((3,), 77.0)), "77"
    assert torch.allclose(x, x + 1e-9), "moves"
    return x


def is_not_zero(x: Tensor) -> Tensor:
    if torch.is_nonzero(x.sum()) and operator.truth(x[:1]):
        return x + 1
    return x - 1 if (x[0] > 0).__bool__() else x - 2 if x[2].is_nonzero() else x


def lists_of_numbers(x: Tensor) -> Tensor:
    a, b, c = x.tolist()
    if a > b and c > 2:
        return x + a
    return x - b if x.int().tolist() == [1, 1, 1] or 5.0 in x.tolist() else x


def kinds_of_floats(x: Tensor) -> Tensor:
    if math.isnan(x[0].item()):
        return x.clone()
    if math.isinf(x[0]):
        return x + 2
    if not math.isfinite(x[1].item()):
        return x + 3
    return x + 4 if math.isclose(x[0], 3.0001, rel_tol=1e-3) else x - 1


def largest_of_three(x: Tensor) -> Tensor:
    return max(x[0], x[1] * 2, x[2] - 1) + min(x[0], x[1] * 2, x[2])


def largest_of_many(x: Tensor) -> Any:
    a = max(*x) - min([*x, x[0] * 2])
    return a, max((t * 2 for t in x), default=0), min(x, key=lambda t: -t.abs())


def largest_number(x: Tensor) -> Tensor:
    return x * max(x[0], 0) + max(x[0].item(), x[1].item(), 2.0)


LARGEST, FROM_ZERO = max, functools.partial(max, 0.0)
ORDER = functools.partial(sorted, key=abs, reverse=True)


def by_other_names(x: Tensor) -> Any:
    largest = max
    least = functools.partial(min, 1.5)
    a = x * largest(x[0], 0.0) + LARGEST(x[1], 0.5)
    return a, FROM_ZERO(x[0].item(), x[1].item()), least(x[2].item()), ORDER([*x])[0]


def sorts(x: Tensor) -> Any:
    found = [*x]
    found.sort(key=torch.abs)
    return torch.stack(sorted(x)), torch.stack(sorted(x, reverse=True)), found[0]


def sorts_two(x: Tensor) -> Any:
    """Of two it is known what Python does, also with NaN."""
    found = sorted([x[0].item(), x[1].item()])
    return found, sorted(range(2), key=lambda i: x[i + 1].item(), reverse=True)


def sorts_pairs(x: Tensor) -> Any:
    """Equal keys stay in their order."""
    pairs = [(x[0], 1), (x[1], 2), (x[2], 3)]
    up = sorted(pairs, key=lambda each: each[0])
    return up, sorted(pairs, key=operator.itemgetter(0), reverse=True)


def compares_sizes(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, y) else x - 1


def largest_integer(x: Tensor) -> int:
    return 1 if x.sum() > 100 else max(len(x[x > 0]), 2, x.shape[0] - 5)


def sorts_many(x: Tensor) -> Tensor:
    return torch.stack(sorted(x))


def rejects(x: Tensor) -> Any:
    total = torch.zeros(())
    for each in itertools.filterfalse(lambda t: t > 0, x):
        total = total + each
        if total < -3:
            break
    else:
        total = total * 100
    return total, sum(itertools.filterfalse(None, [x[0] > 0, x[1]]), torch.zeros(()))


def chooses(x: Tensor) -> Any:
    total = x * 0
    for i in itertools.compress(range(3), (x > 0).tolist()):
        total = total + i
    counts = len(list(itertools.compress([1, 2, 3], x > 0)))
    return total, counts, sum(itertools.compress(x, [1, 0]), torch.zeros(()))


def chooses_of_iterators(x: Tensor) -> Any:
    values, chosen = iter([1.0, 2.0, 3.0, 4.0, 5.0]), iter([x[0] > 0, x[1] > 0])
    total = sum(itertools.compress(values, chosen), torch.zeros(()))
    return total + 10 * next(values, 0.0)


def finds_integers(x: Tensor) -> Any:
    numbers = (x * 2).long().tolist()
    return numbers.index(numbers[2]), numbers.count(2), [1, 2, 3].index(3)


def moves_a_dict_before(x: Tensor) -> Tensor:
    values = iter({"a": 1.0, "b": 2.0}.values())
    first = next(values)
    y = x + 1 if x[0] > 0 else x * first
    return y + next(values)


class Counting:
    """Counts who asks it."""

    def __init__(self) -> None:
        self.asked, self.limit = 0, 3

    @property
    def level(self) -> int:
        self.asked += 1
        return 2

    def __getattr__(self, name: str) -> int:
        self.asked += 10
        return 1


def asks_attributes(x: Tensor) -> Any:
    """What runs Python is not asked where eager does not."""
    one = Counting()
    if x.sum() < 1 and one.level:
        x = x + 1
    if x.sum() < 1 or one.level > 1:
        x = x + 1
    if 0 < x.sum() < one.level:
        x = x * 2
    if x.sum() < 1 and one.more:
        x = x + 1
    if x.sum() > 1 and one.limit > x.sum():
        x = x * 3
    return x, one.asked


def asks_what_may_be_none(x: Tensor) -> Any:
    largest, n = None, 0
    for each in x:
        if each > 1:
            largest = each
    while n < 3 and (largest is None or largest < 3):
        if x[n] > 0:
            largest = x[n]
        n += 1
    return x + 1 if largest is None or largest < 2 else x, n


PROGRAMS = [
    asks_attributes, asks_what_may_be_none,
    rejects, chooses, chooses_of_iterators, finds_integers, moves_a_dict_before,
    is_same, is_same_as_what_is_positive, other_sizes_are_not_same, returns_a_truth,
    until_it_is_close, asserts, is_not_zero, lists_of_numbers, kinds_of_floats, largest_of_three,
    largest_of_many, largest_number, sorts, sorts_two,
    sorts_pairs, by_other_names,
]  # fmt: skip
