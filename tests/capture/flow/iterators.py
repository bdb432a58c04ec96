"""Functions that leave a loop over an iterator where data say so."""

# ruff: noqa: B905
# mypy: ignore-errors

from __future__ import annotations

import itertools
from types import SimpleNamespace


class Counting:
    """Notes how many it has given."""

    def __init__(self):
        self.n = 0

    def __iter__(self):
        for i in range(4):
            self.n += 1
            yield i


def over_a_product(x):
    total = x.sum() * 0
    for a, b in itertools.product(range(2), range(2)):
        if x[a * 2 + b] < 0:
            break
        total = total + a + 10 * b
    return total


def beside_a_count(x):
    total = x.sum() * 0
    for n, each in zip(itertools.count(3, 2), x):
        if each < 0:
            break
        total = total + n
    return total


def over_the_longer(x):
    total = x.sum() * 0
    for each, n in itertools.zip_longest(x, (1, 2)):
        if n is None or each < 0:
            break
        total = total + n * each
    return total


def until_it_is_large(x):
    total = x[0].abs() + 1
    for n in itertools.count(1):
        if total > 100:
            break
        total = total * n + 1
    return total, n


def read_on(x):
    rows, total = iter([1.0, 2.0, 3.0, 4.0]), x.sum() * 0
    for n in rows:
        if x[int(n) - 1] < 0:
            break
        total = total + n
    return total + sum(rows, 0.0)


def kept_on_an_object(x):
    holder, total = SimpleNamespace(rows=iter(range(4))), x.sum() * 0
    for i in holder.rows:
        if x[i] < 0:
            break
        total = total + i
    return total + sum(holder.rows)


def one_that_counts(x):
    counting, total = Counting(), x.sum() * 0
    for _, i in enumerate(counting):
        if x[i] < 0:
            break
        total = total + i
    return total + counting.n


CAPTURED = [
    over_a_product, beside_a_count, over_the_longer, until_it_is_large, read_on, kept_on_an_object,
    one_that_counts,
]  # fmt: skip


def read_on_within_a_zip(x):
    rows, total = iter([1.0, 2.0, 3.0, 4.0]), x.sum() * 0
    for each, n in zip(x, rows):
        if each < 0:
            break
        total = total + n
    return total + sum(rows)


def read_on_within_a_chain(x):
    rows, total = iter([1.0, 2.0]), x.sum() * 0
    for each, n in zip(x, itertools.chain(rows, [5.0, 6.0])):
        if each < 0:
            break
        total = total + n
    return total + sum(rows)


def gone_on_with(x):
    rows, total = enumerate(x), x.sum() * 0
    for _, each in rows:
        if each < 0:
            break
        total = total + each
    for i, _ in rows:
        total = total + 10 * i
    return total


def zipped_with_one_that_counts(x):
    counting, total = Counting(), x.sum() * 0
    for _, i in zip(x, counting):
        if x[i] < 0:
            break
        total = total + i
    return total + counting.n


REFUSED = [
    read_on_within_a_zip, read_on_within_a_chain, gone_on_with, zipped_with_one_that_counts,
]  # fmt: skip
