"""Functions of Python's libraries that go over what data decide, or compare it."""

# ruff: noqa: B007
# mypy: ignore-errors

from __future__ import annotations

from functools import cmp_to_key
from itertools import groupby

import torch


def gb_len(x):
    return len([k for k, _ in groupby(x.tolist())])


def gb_loop(x):
    n, s = 0, 0
    for k, g in groupby(x.tolist()):
        s = s + k * n
        n += 1
    return n, s


def gb_list(x):
    most = 0
    for k, g in groupby(x.tolist()):
        most = max(most, len(list(g)))
    return most


def gb_key(x):
    total = 0
    for k, g in groupby(x.tolist(), key=lambda v: v > 1):
        total = total * 10 + sum(g)
    return total


def cmp_plain(x):
    def c(a, b):
        return (a > b) - (a < b)

    return sorted(x.tolist(), key=cmp_to_key(c))


def cmp_returns(x):
    def c(a, b):
        if a % 2 != b % 2:
            return a % 2 - b % 2
        return b - a

    return sorted(x.tolist(), key=cmp_to_key(c))


def cmp_sort(x):
    def c(a, b):
        if a[0] < b[0]:
            return -1
        if a[0] > b[0]:
            return 1
        return 0

    v = [(t, i) for i, t in enumerate(x.tolist())]
    v.sort(key=cmp_to_key(c))
    return [i for _, i in v]


def cmp_reverse(x):
    return sorted(x.tolist(), key=cmp_to_key(lambda a, b: a - b), reverse=True)


def cmp_tensor(x):
    return torch.stack(sorted(x, key=cmp_to_key(lambda a, b: -1 if a > b else int(a < b))))


CAPTURED = [
    gb_len,
    gb_loop,
    gb_list,
    gb_key,
    cmp_plain,
    cmp_returns,
    cmp_sort,
    cmp_reverse,
    cmp_tensor,
]


def kept_group(x):
    groups = [g for _, g in groupby(x.tolist())]
    return [len(list(g)) for g in groups]


def kept_first(x):
    first = None
    for k, g in groupby(x.tolist()):
        if first is None:
            first = g
    return x + len(list(first))


def gone_on(x):
    n = 0
    for k, g in groupby(x.tolist()):
        for _ in g:
            break
        for v in g:
            n = n + v
    return x + n


def counts_comparisons(x):
    log = []

    def compare(a, b):
        log.append(1)
        return a - b

    return sorted(x.tolist(), key=cmp_to_key(compare)), len(log)


class Counts:
    n = 0

    def compare(self, a, b):
        self.n += 1
        return a - b


def counts_on_an_object(x):
    counts = Counts()
    return sorted(x.tolist(), key=cmp_to_key(counts.compare)), counts.n


def in_a_circle(x):
    """Of three it is no order."""

    def compare(a, b):
        return -1 if (b - a) % 3 == 1 else 1 if (a - b) % 3 == 1 else 0

    return sorted(x.tolist(), key=cmp_to_key(compare))


REFUSED = {
    kept_group: "do not agree",
    kept_first: "do not agree",
    gone_on: "data decide where an iterator ends",
    counts_comparisons: "changes something",
    counts_on_an_object: "changes something",
}
