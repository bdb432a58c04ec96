"""Value ranges and divisibility of expressions.

Interval arithmetic over the integers, exact at any magnitude; None is no bound. A range is always
true and seldom tight: relations between symbols are the prover's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import gcd, lcm

from lostwax.sym.expressions.expr import Atom, Expr, Symbol, Terms
from lostwax.sym.expressions.terms import combine
from lostwax.sym.reasoning.facts import Facts, Range

EVERYTHING = Range(None, None)
MAX_DEPTH = 64  # of atoms within atoms; deeper ones are taken as they are


@dataclass(eq=False, repr=False)
class Bounds:
    """Ranges under today's facts, remembered per version of the facts. `unfold` gives an expression
    without remainders by constants."""

    facts: Facts
    unfold: Callable[[Expr], Terms]

    def range_of(self, e: Expr) -> Range:
        if e.bounds_at != self.facts.version:
            e.bounds = result = self.range_of_terms(e.terms)
            e.bounds_at = self.facts.version
            if e.composite and len(e.terms) > 1:
                kinds = {a.kind for m in e.terms for a in m}
                if "mod" in kinds:
                    result = intersect(result, self.range_of_terms(self.unfold(e)))
                if "div" in kinds:
                    result = intersect(result, self._bound_without_floors(e))
                e.bounds = result
            if e.product is not None:
                factors = multiply(*map(self.range_of, e.product))
                e.bounds = intersect(e.bounds, factors)
        return e.bounds  # type: ignore[return-value]

    def _bound_without_floors(self, e: Expr) -> Range:
        """With `r//c` as `(r - m)/c` for some m from 0 to c-1: `s - s//2` is at least s/2."""
        floors = {
            m: m[0]
            for m in e.terms
            if len(m) == 1 and m[0].kind == "div" and m[0].operands[1].const
        }
        common = lcm(*(a.operands[1].const or 1 for a in floors.values()))
        terms: Terms = {m: common * k for m, k in e.terms.items() if m not in floors}
        slack = Range(0, 0)
        for monomial, atom in floors.items():
            r, c = atom.operands[0], atom.operands[1].const or 1
            share = e.terms[monomial] * common // c
            terms = combine(terms, 1, r.terms, share)
            slack = add(slack, scale(Range(0, c - 1), -share))
        lo, hi = add(self.range_of_terms(terms), slack)
        return Range(None if lo is None else -(-lo // common), None if hi is None else hi // common)

    def range_of_terms(self, terms: Terms) -> Range:
        lo: int | None = 0
        hi: int | None = 0
        for monomial, coefficient in terms.items():
            low, high = self.range_of_term(monomial, coefficient)
            lo = None if lo is None or low is None else lo + low
            hi = None if hi is None or high is None else hi + high
            if lo is None and hi is None:
                break
        return Range(lo, hi)

    def range_of_term(self, monomial: tuple[Atom, ...], coefficient: int) -> Range:
        if len(monomial) == 1:
            return scale(self.range_of_atom(monomial[0]), coefficient)
        product = Range(1, 1)
        for atom, repeated in groupby(monomial):
            product = multiply(product, raise_to(self.range_of_atom(atom), len(list(repeated))))
        return scale(product, coefficient)

    def range_of_atom(self, atom: Atom) -> Range:
        if isinstance(atom, Symbol):
            return self.facts.ranges[atom]
        if atom.depth > MAX_DEPTH:
            return EVERYTHING
        if atom.bounds_at != self.facts.version:
            ranges = [self.range_of(x) for x in atom.operands]
            if atom.kind == "div":
                atom.bounds = quotient(*ranges)
            elif atom.kind == "mod":
                atom.bounds = remainder(*ranges)
            else:
                atom.bounds = extremum(atom.kind, ranges)
            atom.bounds_at = self.facts.version
        return atom.bounds  # type: ignore[return-value]

    def is_positive(self, e: Expr) -> bool:
        lo = self.range_of(e).lo
        return lo is not None and lo > 0

    def is_nonnegative(self, e: Expr) -> bool:
        lo = self.range_of(e).lo
        return lo is not None and lo >= 0

    def constant_quotient(self, e: Expr, divisor: int) -> int | None:
        """`e // divisor` if the range leaves only one value."""
        lo, hi = self.range_of(e)
        if lo is None or hi is None or lo // divisor != hi // divisor:
            return None
        return lo // divisor


def divisor(terms: Terms) -> int:
    """A positive integer that divides every value of the polynomial; 0 if it is zero."""
    divisor = 0
    for monomial, coefficient in terms.items():
        for atom in monomial:
            if atom.kind not in ("symbol", "div"):
                coefficient *= gcd(*(k for x in atom.operands for k in x.terms.values()))
        divisor = gcd(divisor, coefficient)
    return divisor


# ------------------------------------------------------------------------------ interval arithmetic


def add(a: Range, b: Range) -> Range:
    return Range(
        None if a.lo is None or b.lo is None else a.lo + b.lo,
        None if a.hi is None or b.hi is None else a.hi + b.hi,
    )


def scale(r: Range, n: int) -> Range:
    if n < 0:
        r = Range(r.hi, r.lo)
    lo, hi = r
    return Range(None if lo is None else n * lo, None if hi is None else n * hi)


def multiply(a: Range, b: Range) -> Range:
    if a.lo is not None and b.lo is not None and a.lo >= 0 and b.lo >= 0:
        if a.hi == 0 or b.hi == 0:
            return Range(0, 0)
        return Range(a.lo * b.lo, None if a.hi is None or b.hi is None else a.hi * b.hi)
    # Infinity is any number beyond the product of all finite ones that occur.
    far = (1 + max((abs(x) for x in (*a, *b) if x is not None), default=0)) ** 2
    corners = [
        x * y
        for x in (-far if a.lo is None else a.lo, far if a.hi is None else a.hi)
        for y in (-far if b.lo is None else b.lo, far if b.hi is None else b.hi)
    ]
    lo, hi = min(corners), max(corners)
    return Range(None if lo <= -far else lo, None if hi >= far else hi)


def raise_to(r: Range, n: int) -> Range:
    if n == 1:
        return r
    if n % 2:
        return Range(None if r.lo is None else r.lo**n, None if r.hi is None else r.hi**n)
    if r.lo is not None and r.lo >= 0:
        return Range(r.lo**n, None if r.hi is None else r.hi**n)
    if r.hi is not None and r.hi <= 0:
        return raise_to(scale(r, -1), n)
    return Range(0, None if r.lo is None or r.hi is None else max(-r.lo, r.hi) ** n)


def quotient(a: Range, q: Range) -> Range:
    """Of `a // q` where q is not zero."""
    if q.hi is not None and q.hi <= 0:
        a, q = scale(a, -1), scale(q, -1)
    if q.lo is None or q.lo < 0:  # either sign: no farther from zero than a itself
        if a.lo is None or a.hi is None:
            return EVERYTHING
        far = max(abs(a.lo), abs(a.hi))
        return Range(-far, far)
    least, most = max(q.lo, 1), q.hi
    return Range(_floor(a.lo, most, least), _floor(a.hi, least, most))


def _floor(n: int | None, if_positive: int | None, if_negative: int | None) -> int | None:
    """`n // q` with the q that makes it extreme; q None is infinite."""
    if n is None:
        return None
    q = if_positive if n >= 0 else if_negative
    if q is None:
        return 0 if n >= 0 else -1
    return n // max(q, 1)


def remainder(a: Range, q: Range) -> Range:
    """Of `a % q` where q is not zero: between zero and q."""
    if q.hi is not None and q.hi <= 0:
        if q.lo is not None and q.lo >= 0:  # no divisor at all: the facts contradict each other
            return EVERYTHING
        return scale(remainder(scale(a, -1), scale(q, -1)), -1)
    if q.lo is None or q.lo < 0:
        return Range(None if q.lo is None else q.lo + 1, None if q.hi is None else max(q.hi - 1, 0))
    hi = None if q.hi is None else max(q.hi - 1, 0)
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Range(0, hi)


def extremum(kind: str, ranges: list[Range]) -> Range:
    los, his = [r.lo for r in ranges], [r.hi for r in ranges]
    if kind == "max":
        finite = [x for x in los if x is not None]
        return Range(max(finite, default=None), None if None in his else max(his))  # type: ignore[type-var]
    finite = [x for x in his if x is not None]
    return Range(None if None in los else min(los), min(finite, default=None))  # type: ignore[type-var]


def intersect(a: Range, b: Range) -> Range:
    return Range(
        a.lo if b.lo is None else b.lo if a.lo is None else max(a.lo, b.lo),
        a.hi if b.hi is None else b.hi if a.hi is None else min(a.hi, b.hi),
    )
