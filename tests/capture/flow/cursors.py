"""Functions in which data decide how far an iterator has gone."""

# ruff: noqa: B905
# mypy: ignore-errors

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import nn


def next_default(x):
    it = iter([1.0, 2.0])
    t = x * 0
    for e in x:
        if e > 0:
            t = t + next(it, 10.0)
    return t


def next_default_none(x):
    it = iter([x[0], x[1]])
    t = x * 0
    for e in x:
        if e > 0:
            v = next(it, None)
            if v is not None:
                t = t + v
    return t


def alias(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    other = it
    t = x * 0
    for e in x:
        if e > 0:
            t = t + next(it)
    return t * next(other)


def closure(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])

    def take():
        return next(it)

    t = x * 0
    for e in x:
        if e > 0:
            t = t + take()
    return t * take()


def rest_by_for(x):
    it = iter([1.0, 2.0, 3.0])
    t = x * 0
    if x[0] > 0:
        next(it)
    for v in it:
        t = t * 2 + v
    return t


def rest_by_for_rows(x):
    it = iter(x)
    t = torch.zeros(())
    if x[0] > 0:
        next(it)
    for v in it:
        t = t * 2 + v
    return t


def element_replaced(x):
    values = [1.0, 2.0, 3.0]
    it = iter(values)
    t = x * 0
    if x[0] > 0:
        t = t + next(it)
    values[1] = 50.0
    return t + next(it)


def ended_then_grows(x):
    values = [1.0]
    it = iter(values)
    t = x * 0
    next(it)
    n = next(it, 9.0)
    values.append(4.0)
    m = next(it, 8.0)
    if x[0] > 0:
        t = t + 1
    return t + n * 10 + m


def in_a_while(x):
    it = iter([0.5, 0.25, 0.1])
    f = 1.0
    n = 0
    while n < 4 and x.sum() > 0:
        f = next(it, 0.01)
        x = x - f
        n += 1
    return x, f


def modules_rest(x):
    ls = iter([torch.sin, torch.cos, torch.tanh])
    x = next(ls)(x)
    if x[0] > 0:
        x = next(ls)(x)
    return next(ls)(x)


def copied(x):
    it = iter([1.0, 2.0, 3.0, 4.0])
    if x[0] > 0:
        next(it)
    other = copy.copy(it)
    next(it)
    return x * next(other) + next(it)


def zipped(x):
    it = iter([1.0, 2.0, 3.0, 4.0])
    t = x * 0
    for p, q in zip(it, it):
        t = t + p * q
    if x[0] > 0:
        t = t + 1
    return t


def kinds(x):
    it = iter([1, 2.5, 3, x[0]])
    t = x * 0
    if x[0] > 0:
        t = t + next(it)
    return t + next(it)


def words(x):
    it = iter(["a", "b", "c"])
    if x[0] > 0:
        next(it)
    return x * {"a": 1, "b": 2, "c": 3}[next(it)]


def isinst(x):
    it = iter([1.0, 2.0])
    k = isinstance(it, type(iter([]))) + 2 * isinstance(it, Iterator) + 4 * isinstance(it, list)
    if x[0] > 0:
        next(it)
    return x * k * next(it)


def two_on_one(x):
    values = [1.0, 2.0, 3.0]
    a = iter(values)
    b = iter(values)
    if x[0] > 0:
        next(a)
    return x * next(a) + next(b)


def iter_of_iter(x):
    a = iter([1.0, 2.0, 3.0])
    b = iter(a)
    if x[0] > 0:
        next(b)
    return x * next(a)


def break_then_next(x):
    it = iter(x)
    t = torch.zeros(())
    for v in it:
        if v < 0:
            break
        t = t + v
    return t + 10 * next(it, torch.zeros(()))


def break_then_rest_list(x):
    it = iter([1.0, 2.0, 3.0, 4.0])
    t = torch.zeros(())
    for v in it:
        if x[int(v) - 1] < 0:
            break
        t = t + v
    for w in it:
        t = t + 10 * w
    return t


def nested_loops(x):
    it = iter(x)
    t = torch.zeros(())
    for v in it:
        t = t * 3 + v
        for w in it:
            if w < 0:
                break
            t = t + w * 2
    return t


def side_by_side(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    t = x * 0
    for e in x:
        t = t + (next(it) if e > 0 else next(it) * 10)
        if e > 1:
            next(it)
    return t


def returned_iterator(x):
    def make():
        it = iter([1.0, 2.0, 3.0])
        if x[0] > 0:
            next(it)
        return it

    return x * next(make())


def kept_on_object(x):
    h = SimpleNamespace(it=iter([1.0, 2.0, 3.0]))
    if x[0] > 0:
        next(h.it)
    return x * next(h.it)


def other_iterator_on_a_side(x):
    it = iter([1.0, 2.0, 3.0])
    if x[0] > 0:
        it = iter([4.0, 5.0])
        next(it)
    return x * next(it)


def in_finally(x):
    it = iter([1.0, 2.0, 3.0])
    y = x
    try:
        if x[0] > 0:
            next(it)
        y = x + 1
    finally:
        y = y * next(it)
    return y


def generator_over(x):
    it = iter([1.0, 2.0, 3.0, 4.0])

    def g():
        for v in it:
            yield v * 2

    gg = g()
    a = next(gg)
    if x[0] > 0:
        next(it)
    return x * a * next(it)


def rest_by_list(x):
    it = iter([1.0, 2.0, 3.0])
    if x[0] > 0:
        next(it)
    return x * sum(it)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        layers = iter(self.layers)
        for i in range(2):
            if x[i] > 0:
                x = next(layers)(x)
        return next(layers)(x) + next(layers)(x)


CAPTURED = [
    next_default, next_default_none, alias, closure, rest_by_list, rest_by_for, rest_by_for_rows,
    element_replaced, ended_then_grows, in_a_while, modules_rest, copied, zipped, kinds, words,
    isinst, two_on_one, iter_of_iter, break_then_next, break_then_rest_list, nested_loops,
    side_by_side, returned_iterator, kept_on_object, other_iterator_on_a_side, in_finally,
    generator_over,
]  # fmt: skip


def may_end(x):
    it = iter([1.0, 2.0])
    t = x * 0
    for e in x:
        if e > 0:
            t = t + next(it)
    return t


def may_end_caught(x):
    it = iter([1.0, 2.0])
    t = x * 0
    for e in x:
        try:
            if e > 0:
                t = t + next(it)
        except StopIteration:
            t = t - 1
    return t


def list_grows(x):
    values = [1.0, 2.0]
    it = iter(values)
    t = x * 0
    if x[0] > 0:
        t = t + next(it)
    values.append(7.0)
    return t + next(it) + next(it)


def list_grows_before(x):
    values = [1.0, 2.0]
    it = iter(values)
    t = x * 0
    next(it)
    values.append(7.0)
    if x[0] > 0:
        t = t + next(it)
    return t + next(it)


def in_a_while_branch(x):
    it = iter(range(100))
    n = 0
    while n < 4 and x.sum() > 0:
        if x[0] > 0:
            x = x - next(it)
        x = x - 1
        n += 1
    return x


def written_to(x):
    it = iter(x * 1)
    y = next(it)
    if x[0] > 0:
        y = next(it)
    v = next(it)
    v.mul_(3)
    return x + y + v


def written_to_shared(x):
    z = x * 1
    it = iter(z)
    if x[0] > 0:
        next(it)
    v = next(it)
    v.mul_(3)
    return z


def written_after(x):
    z = x * 1
    it = iter(z)
    if x[0] > 0:
        next(it)
    v = next(it)
    z.mul_(3)
    return v


def is_the_element(x):
    a, b = x + 1, x + 2
    it = iter([a, b])
    if x[0] > 0:
        next(it)
    return next(it) is b


def zipped_rest(x):
    it = iter([1.0, 2.0, 3.0, 4.0])
    t = x * 0
    if x[0] > 0:
        next(it)
    for p, q in zip(it, [5.0, 6.0]):
        t = t + p * q
    return t


def membership(x):
    it = iter([1, 2, 3, 4])
    if x[0] > 0:
        next(it)
    return x + 1 if 1 in it else x


def unpacked(x):
    it = iter([1.0, 2.0, 3.0])
    if x[0] > 0:
        next(it)
    a, *b = it
    return x * a + len(b)


def length_hint(x):
    it = iter([1.0, 2.0, 3.0])
    if x[0] > 0:
        next(it)
    return x * operator.length_hint(it)


REFUSED = [
    may_end, may_end_caught, list_grows, list_grows_before, in_a_while_branch,
    written_to, written_to_shared, written_after, is_the_element, zipped_rest, membership,
    unpacked, length_hint,
]  # fmt: skip
