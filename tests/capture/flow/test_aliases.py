"""Functions of Python's and of torch's by other names, and names of theirs that are others: what is
called counts, not how."""

from __future__ import annotations

import builtins
import functools
import hashlib
import math
import operator
from builtins import len as size
from builtins import range as numbers
from typing import Any

import pytest
import torch
from torch import Tensor

from lostwax import Dim, export
from lostwax.errors import CaptureError

LARGEST, TAKE, EACH, PAIRS = max, list, map, zip
ORDER, WHOLE, CUT = sorted, int, torch.split
IS_NAN = math.isnan
OF_TWO = functools.partial(max, -1.0)
USED = {"count": len, "go": range, "number": [enumerate, reversed]}


class Holder:
    largest, go = max, range
    is_true = staticmethod(bool)


def count_turns(x: Tensor) -> Any:
    for i in numbers(int(x.abs().sum())):
        x = x + i
    return x


def count_by_local_name(x: Tensor) -> Any:
    r = range
    for i in r(1, int(x.abs().sum()), 2):
        x = x * i
    return x


def count_by_argument(x: Tensor, go: Any = range) -> Any:
    for i in go(int(x.abs().sum())):
        x = x + i
    return x


def count_by_attribute(x: Tensor) -> Any:
    for i in Holder.go(int(x.abs().sum())):
        x = x + i
    return x


def count_by_key(x: Tensor) -> Any:
    for i in USED["go"](int(x.abs().sum())):  # type: ignore[operator]
        x = x + i
    return x


def count_by_module(x: Tensor) -> Any:
    for i in builtins.range(int(x.abs().sum())):
        x = x + i
    return x


def lengths(x: Tensor) -> Any:
    found = x[x > 0]
    return x * size(found) + USED["count"](found) + builtins.len(found)  # type: ignore[operator]


def lengths_of_all(x: Tensor) -> Any:
    return x * sum(EACH(len, [x[x > 0], x[x > 1]]))


def lengths_by_map(x: Tensor) -> Any:
    m = map
    return x * sum(m(len, [x[x > 0], x[x > 1]]))


def number_pairs(x: Tensor) -> Any:
    e, z = enumerate, zip
    total = x.sum() * 0
    for i, (a, b) in e(z(x[x > 0], x[x > 0] * 2)):
        total = total + a * i + b
    return total


def number_backwards(x: Tensor) -> Any:
    number, back = USED["number"]  # type: ignore[misc]
    total = x.sum() * 0
    for i, a in number(back(x[x > 0]), 1):
        total = total + a * i
    return total


def cut(x: Tensor) -> Any:
    total = x.sum() * 0
    for part in CUT(x[x > 0], 2):
        total = total * 2 + part.sum()
    return total


def unbind_by_method(x: Tensor) -> Any:
    total, take = x.sum() * 0, x[x > 0].unbind
    for part in take():
        total = total * 2 + part
    return total


def largest_of_two(x: Tensor) -> Any:
    return x * LARGEST(x[0], x[1]) + Holder.largest(x[1], x[2])


def largest_of_list(x: Tensor) -> Any:
    m = max
    return x * m([x[0], x[1], x[2]])


def largest_by_key(x: Tensor) -> Any:
    m = min
    return m([x[0], x[1]], key=abs) + m(x[0:1], x[1:], key=len).sum()


def largest_by_reduce(x: Tensor) -> Any:
    return x * functools.reduce(max, [x[0], x[1], x[2]])


def largest_by_partial(x: Tensor) -> Any:
    return x * functools.partial(max, x[0])(x[1])


def order_by_name(x: Tensor) -> Any:
    first, *_, last = ORDER([x[0], x[1], x[2]])
    return x * first - last


def order_by_method(x: Tensor) -> Any:
    values = [x[0], x[1]]
    order = values.sort
    order(reverse=True)
    return x * values[0]


def whole_numbers(x: Tensor) -> Any:
    i, f = WHOLE, float
    n = i(x[0]) + i(x[1])
    return x + f(x[2]) if n > 1 else x * n


def truths(x: Tensor) -> Any:
    b = bool
    return x + 1 if b(x[0]) and not Holder.is_true(x[1]) else x - 1


def truth_as_number(x: Tensor) -> Any:
    b = bool
    return x * b(x[0] > 0) + int(operator.truth(x[1]))


def truths_of_all(x: Tensor) -> Any:
    every, some = all, any
    is_small = [x[0] < 2, x[1] < 2]
    return x + 1 if every(is_small) else x - 1 if some(is_small) else x * 0


def truths_by_map(x: Tensor) -> Any:
    return x + sum(map(bool, [x[0] > 0, x[1] > 0]))


def not_a_number(x: Tensor) -> Any:
    return x + 1 if IS_NAN(x[0] / x[1]) else x - 1


def equal_by_name(x: Tensor) -> Any:
    same = torch.equal
    return x + 1 if same(x, x.abs()) else x - 1


def equal_by_method(x: Tensor) -> Any:
    same = x.equal
    return x + 1 if same(x.abs()) else x - 1


def copies(x: Tensor) -> Any:
    take, found = list, []
    for i in range(int(x.abs().sum()) + 1):
        found.append(x + i)
    return torch.stack([x, *take(found)]).sum(0), torch.stack(tuple(found)).sum()


def appends_to_list_by_name(x: Tensor) -> Any:
    found = TAKE()
    for i in range(int(x.abs().sum()) + 1):
        found.append(x * i)
    return torch.stack(found)


def another_range(x: Tensor) -> Any:
    def range(n: Any) -> Any:
        return [n, n + 1]

    for i in range(3):
        x = x + i if x.sum() > 0 else x - i
    return x


def another_len(x: Tensor, len: Any = lambda values: 7) -> Any:
    return x * len(x[x > 0]) if x.sum() > 0 else x


def another_max(x: Tensor) -> Any:
    max = min
    return x * max(x[0], x[1]) if x.sum() > 0 else x


def other_things_of_such_names(x: Tensor) -> Any:
    any, map, sum = x + 1, x * 2, x - 1
    return any if x.sum() > 0 else map + sum


class Shaped:
    """Its methods have names of tensors' and lists'."""

    def split(self, n: int) -> list[int]:
        return [n, 2]

    def sort(self) -> int:
        return 5

    def equal(self, other: Any) -> str:
        return "no"

    unbind = append = split


def methods_of_others(x: Tensor) -> Any:
    made = Shaped()
    for n in made.split(3):
        x = x + n if x.sum() > 0 else x - n
    for n in made.unbind(4):
        x = x + n if x.sum() > 0 else x - n
    return x * made.sort() * (2 if made.equal(x) else 3) * len(made.append(1))


def asks_its_frame(x: Tensor) -> Any:
    y = x + 1 if x.sum() > 0 else x - 1
    return y * len([name for name in locals() if name in ("x", "y")]) * eval("x.ndim + y.ndim")


class Called:
    """Whatever one asks for, it has it."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * 3

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


CALLED = Called()


def calls_objects(x: Tensor) -> Any:
    return CALLED(x) if x.sum() > 0 else x


PROGRAMS: list[Any] = [
    count_turns, count_by_local_name, count_by_argument, count_by_attribute, count_by_key,
    count_by_module, lengths, lengths_of_all, lengths_by_map, number_pairs, number_backwards, cut,
    unbind_by_method, largest_of_two, largest_of_list, largest_by_key, largest_by_reduce,
    largest_by_partial, order_by_name, order_by_method, whole_numbers, truths, truth_as_number,
    truths_of_all, truths_by_map, not_a_number, equal_by_name, equal_by_method, copies,
    appends_to_list_by_name, another_range, another_len, another_max, other_things_of_such_names,
    methods_of_others, asks_its_frame, calls_objects,
]  # fmt: skip
INPUTS = [
    torch.tensor(each)
    for each in ([1.0, 2.0, 3.0], [-1.0, 0.0, 2.0], [0.0, 0.0, 0.5], [-3.0, -1.0, -2.0])
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_called_counts(program: Any) -> None:
    run = export(lambda x: program(x), (INPUTS[0],)).module()
    for x in INPUTS:
        torch.testing.assert_close(run(x), program(x))


def test_a_size_by_other_names() -> None:
    def pad(x: Tensor) -> Any:
        r, largest = range, max
        for i in r(x.shape[0]):
            x = x + i
        return x * largest(0, x.shape[0] - 3)

    run = export(
        pad, (INPUTS[0],), dynamic_shapes=({0: Dim("n", min=1)},), control_flow="sizes"
    ).module()
    for n in (1, 2, 5, 9):
        torch.testing.assert_close(run(torch.ones(n)), pad(torch.ones(n)))


def test_a_generator_is_asked_by_another_name() -> None:
    def ask(x: Tensor) -> Any:
        some = any
        return x + 1 if some(each > 0 for each in x) else x

    with pytest.raises(
        CaptureError, match="the generator cannot be written out: its source is not to be had"
    ) as e:
        export(ask, (INPUTS[0],))
    assert "test_aliases.py" in str(e.value)
    assert (
        "instead: call it where it is gone over, for x in generator(…); or loop over a list"
        in str(e.value)
    )


def hash_by_map(x: Tensor) -> Any:
    made = hashlib.md5()
    if x.sum() > 0:
        list(map(made.update, [b"a"]))
    return x * made.digest()[0]


def hash_by_another_map(x: Tensor) -> Any:
    made, m = hashlib.md5(), map
    if x.sum() > 0:
        list(m(made.update, [b"a"]))
    return x * made.digest()[0]


def hash_by_methods(x: Tensor) -> Any:
    made = hashlib.md5()
    methods = [made.update]
    if x.sum() > 0:
        set(map(*methods, [b"a"]))
    return x * made.digest()[0]


@pytest.mark.parametrize("program", [hash_by_map, hash_by_another_map, hash_by_methods])
def test_what_c_changes_is_seen(program: Any) -> None:
    with pytest.raises(CaptureError, match=r"on data changes made .*cannot be undone"):
        export(program, (INPUTS[0],))
