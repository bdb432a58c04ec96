"""Interval arithmetic against every pair of small intervals, open ones included."""

from __future__ import annotations

import itertools
import operator

import pytest

from lostwax.sym.reasoning import bounds
from lostwax.sym.reasoning.facts import Range

FAR = 9
ENDS = (None, -3, -1, 0, 1, 2)
RANGES = [Range(lo, hi) for lo, hi in itertools.product(ENDS, ENDS)]


def members(r):
    lo, hi = -FAR if r.lo is None else r.lo, FAR if r.hi is None else r.hi
    return range(lo, hi + 1)


def inside(n, r):
    return (r.lo is None or r.lo <= n) and (r.hi is None or n <= r.hi)


@pytest.mark.parametrize(
    ("rule", "meaning"),
    [(bounds.quotient, operator.floordiv), (bounds.remainder, operator.mod)],
)
def test_division(rule, meaning):
    for a, q in itertools.product(RANGES, RANGES):
        result = rule(a, q)  # also of divisors that cannot be, such as 0..0: it must come back
        for n, d in itertools.product(members(a), members(q)):
            assert d == 0 or inside(meaning(n, d), result), (a, q, result, n, d)


@pytest.mark.parametrize(
    ("rule", "meaning"), [(bounds.add, operator.add), (bounds.multiply, operator.mul)]
)
def test_sums_and_products(rule, meaning):
    for a, b in itertools.product(RANGES, RANGES):
        if not members(a) or not members(b):
            continue
        result = rule(a, b)
        for x, y in itertools.product(members(a), members(b)):
            assert inside(meaning(x, y), result), (a, b, result, x, y)


def test_powers():
    for r, n in itertools.product(RANGES, (1, 2, 3, 4)):
        result = bounds.raise_to(r, n)
        assert all(inside(x**n, result) for x in members(r)), (r, n, result)


@pytest.mark.parametrize(("kind", "meaning"), [("max", max), ("min", min)])
def test_extrema(kind, meaning):
    for a, b in itertools.product(RANGES, RANGES):
        result = bounds.extremum(kind, [a, b])
        for x, y in itertools.product(members(a), members(b)):
            assert inside(meaning(x, y), result), (a, b, result)
