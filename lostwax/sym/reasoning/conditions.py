"""Canonical forms of conditions: `p == 0`, `p != 0`, `p >= 0`, and, or.

Every rule is an equivalence over the integers (under today's ranges, which the canonical forms of
remainders use). Quotients are eliminated where possible, so that a chain of poolings asks for `h >=
8` and not for a tower of floors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Monomial, rank_of
from lostwax.sym.expressions.terms import common_divisor, leading_monomial, tighten
from lostwax.sym.reasoning.bounds import MAX_DEPTH, Bounds
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.rules import Rules


@dataclass(eq=False, repr=False)
class Conditions:
    facts: Facts
    algebra: Algebra
    bounds: Bounds
    rules: Rules

    def make(self, kind: str, poly: Expr) -> Condition:
        """The canonical condition of this kind on a polynomial."""
        if kind == "ge":
            return self.nonnegative(poly)
        return self.is_zero(poly) if kind == "eq" else self.negate(self.is_zero(poly))

    def at_least(self, e: Expr, n: int) -> Condition:
        return self.nonnegative(e.shift(-n))

    def at_most(self, e: Expr, n: int) -> Condition:
        return self.nonnegative(e.scale(-1).shift(n))

    # ---- p >= 0

    def nonnegative(self, p: Expr) -> Condition:
        found = self.facts.nonnegative.get(p)
        if found is None:
            found = self.facts.nonnegative[p] = self._make_nonnegative(p)
        return found

    def _make_nonnegative(self, p: Expr) -> Condition:
        if p.product is not None and self.bounds.is_nonnegative(p):
            return True  # with the terms divided or joined nobody would see it
        p = self._tighten(self.clear_quotients(self._tighten(p)))
        if p.const is not None:
            return p.const >= 0
        single = find_single_atom(p)
        if single is not None and single[0].kind in ("max", "min"):
            atom, sign, constant = single
            parts = (x.scale(sign).shift(constant) for x in atom.operands)
            some = (atom.kind == "max") == (sign > 0)
            return (self.any_of if some else self.all_of)(self.nonnegative(x) for x in parts)
        return self.algebra.make_condition("ge", p)

    def _tighten(self, p: Expr) -> Expr:
        terms = tighten(p.terms)
        return p if terms is p.terms else self.algebra.make(terms)

    def clear_quotients(self, p: Expr) -> Expr:
        """A polynomial that is `>= 0` exactly when p is, without quotients where they stand alone.

        For a positive q, `r//q + x >= 0` is `r + q*x >= 0`, and `x - r//q >= 0` is `q*x + q-1 - r
        >= 0`."""
        for _ in range(MAX_DEPTH):
            atom, sign, x = next(self._find_lone_quotients(p), (None, 0, p))
            if atom is None:
                break
            r, q = atom.operands
            cleared = x.multiply(q)
            if sign > 0:
                p = cleared.add(r)
            else:
                p = cleared.subtract(r).add(q).shift(-1)
        return p

    def _find_lone_quotients(self, p: Expr) -> Iterator[tuple[Atom, int, Expr]]:
        """(atom, ±1, x) with p = ±atom + x, where x may be multiplied by the divisor, which is
        positive."""
        for atom, sign in p.unit_atoms("div") if p.composite else ():
            q = atom.operands[1]
            x = p.drop_term((atom,))
            simple = q.const is not None or (x.const is not None and self.bounds.is_positive(q))
            if simple and not any(atom in m for m in x.terms):
                yield atom, sign, x

    # ---- p == 0

    def is_zero(self, p: Expr) -> Condition:
        found = self.facts.zero.get(p)
        if found is None:
            found = self.facts.zero[p] = self._make_zero(p)
        return found

    def _make_zero(self, p: Expr) -> Condition:
        if p.const is not None:
            return p.const == 0
        if p.product is not None:
            return self.any_of(map(self.is_zero, p.product))
        factor = common_divisor(p.terms)
        if p.terms.get((), 0) % factor:
            return False
        # ids of what is made of symbols differ from trace to trace, and with them the sign would
        head = max(p.terms, key=_rank) if p.composite else leading_monomial(p.terms)
        if p.terms[head] < 0:
            factor = -factor
        if factor != 1:
            p = self.algebra.make({m: k // factor for m, k in p.terms.items()})
        if p.composite:
            shorter = self.rules.unfold_upper_halves(self.rules.unfold(p))
            if not any(shorter):  # no monomial is left but that of a constant
                return not shorter
            for form in (self._extremum_condition, self._upper_bound_condition):
                reached = form(p)
                if reached is not None:
                    return reached
        for atom, sign, x in self._find_lone_quotients(p):
            r, q = atom.operands
            if x.symbols() <= r.symbols():  # else x may be solved for a symbol
                gap = r.add(x.scale(sign).multiply(q))  # r//q == -x: 0 <= r + x*q < q
                rest = q.subtract(gap).shift(-1)
                return self.all_of((self.nonnegative(gap), self.nonnegative(rest)))
        return self.algebra.make_condition("eq", p)

    def _extremum_condition(self, p: Expr) -> Condition | None:
        """`max(a, b) == a` is `a >= b`."""
        for atom, k in p.unit_atoms("max", "min"):
            other = p.drop_term((atom,), times=-k)
            if other in atom.operands:
                sign = 1 if atom.kind == "max" else -1
                gaps = (other.subtract(x).scale(sign) for x in atom.operands)
                return self.all_of(self.nonnegative(gap) for gap in gaps)
        return None

    def _upper_bound_condition(self, p: Expr) -> Condition | None:
        """`r - r % q == 0`, which is `q*(r//q) == 0`, says that r is from 0 to q - 1."""
        for atom, k in p.unit_atoms("mod"):
            r, q = atom.operands
            rest = p.drop_term((atom,), times=-k)
            if rest is r and q.const is not None and q.const > 0:
                top = r.scale(-1).shift(q.const - 1)
                return self.all_of((self.nonnegative(r), self.nonnegative(top)))
        return None

    # ---- not, and, or

    def negate(self, b: Condition) -> Condition:
        if isinstance(b, bool):
            return not b
        if b.kind == "eq":
            return self.algebra.make_condition("ne", b.poly)
        if b.kind == "ne":
            return self.algebra.make_condition("eq", b.poly)
        if b.kind == "ge":
            return self.nonnegative(b.poly.scale(-1).shift(-1))
        return (self.any_of if b.kind == "and" else self.all_of)(self.negate(x) for x in b.args)

    def all_of(self, conditions: Iterable[Condition]) -> Condition:
        return self._join("and", conditions)

    def any_of(self, conditions: Iterable[Condition]) -> Condition:
        return self._join("or", conditions)

    def _join(self, kind: str, conditions: Iterable[Condition]) -> Condition:
        settles = kind == "or"  # the value of one part that settles the whole
        parts: dict[BoolExpr, None] = {}
        for condition in conditions:
            if isinstance(condition, bool):
                if condition is settles:
                    return settles
            elif condition.kind == kind:
                parts.update(dict.fromkeys(condition.args))
            else:
                parts[condition] = None
        if len(parts) < 2:
            return next(iter(parts), not settles)
        ordered = tuple(sorted(parts, key=BoolExpr.rank))
        return self.algebra.make_condition(kind, self.algebra.zero, ordered)

    def strengthen(self, b: Condition) -> Condition:
        """Where a product is 0, or an alternative holds: the part of it that does in the example,
        which says more."""
        if isinstance(b, bool) or not b.hint or not self.facts.fits_example:
            return b
        if b.kind == "eq":
            zeros = [f for f in b.poly.factors() if f.hint == 0 and not f.unbacked]
            if zeros:
                return self.is_zero(min(zeros, key=lambda f: (not f.composite, f.id)))
        if b.kind == "or" and b.unbacked:
            return next((x for x in b.args if x.hint and not x.unbacked), b)
        return b


def _rank(monomial: Monomial) -> tuple[int, tuple[Any, ...]]:
    return len(monomial), rank_of(monomial)


def find_single_atom(p: Expr) -> tuple[Atom, int, int] | None:
    """(atom, ±1, constant) if p is ±atom + constant."""
    found: Monomial | None = None
    for monomial in p.terms:
        if monomial:
            if found is not None or len(monomial) != 1:
                return None
            found = monomial
    if found is None or abs(p.terms[found]) != 1:
        return None
    return found[0], p.terms[found], p.terms.get((), 0)
