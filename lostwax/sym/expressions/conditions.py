"""Canonical forms of conditions: `p == 0`, `p != 0`, `p >= 0`, and, or.

Every rule is an equivalence over the integers (under today's ranges, which the canonical forms of
remainders use). Quotients are eliminated where possible, so that a chain of poolings asks for `h >=
8` and not for a tower of floors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Size, rank_of
from lostwax.sym.expressions.rules import Rules
from lostwax.sym.expressions.terms import Monomial, factor_of, leading
from lostwax.sym.reasoning.bounds import MAX_DEPTH


class Conditions(Rules):
    def __init__(self) -> None:
        super().__init__()
        self._bools: dict[tuple[object, ...], BoolExpr] = {}

    def condition(self, kind: str, poly: Expr, args: tuple[BoolExpr, ...] = ()) -> BoolExpr:
        found = self._bools.get((kind, poly, args))
        if found is None:
            found = BoolExpr(self, kind, poly, args)  # type: ignore[arg-type]
            self._bools[kind, poly, args] = found
        return found

    def on(self, kind: str, poly: Expr) -> Condition:
        """The canonical condition of this kind on a polynomial."""
        if kind == "ge":
            return self.nonnegative(poly)
        return self.is_zero(poly) if kind == "eq" else self.negate(self.is_zero(poly))

    # ---- what the comparison operators ask for

    def at_least(self, a: Expr, b: Expr) -> Condition:
        return self.nonnegative(self.sub(a, b))

    def more_than(self, a: Expr, b: Expr) -> Condition:
        return self.nonnegative(self.shift(self.sub(a, b), -1))

    def equal(self, a: Size, b: Size) -> Condition:
        if a is b:
            return True
        return self.compare(self.equalities, self._equal, a, b)

    def _equal(self, a: Expr, b: Expr) -> Condition:
        return self.is_zero(self.sub(a, b))

    # ---- p >= 0

    def nonnegative(self, p: Expr) -> Condition:
        found = self.facts.nonnegative.get(p)
        if found is None:
            found = self.facts.nonnegative[p] = self._make_nonnegative(p)
        return found

    def _make_nonnegative(self, p: Expr) -> Condition:
        if p.product is not None and self.is_nonnegative(p):
            return True  # with the terms divided or joined nobody would see it
        p = self._reduced(self.without_quotients(self._reduced(p)))
        if p.const is not None:
            return p.const >= 0
        single = single_atom(p)
        if single is not None and single[0].kind in ("max", "min"):
            atom, sign, constant = single
            parts = (self.shift(self.scale(x, sign), constant) for x in atom.operands)
            some = (atom.kind == "max") == (sign > 0)
            return (self.any_of if some else self.all_of)(self.nonnegative(x) for x in parts)
        return self.condition("ge", p)

    def _reduced(self, p: Expr) -> Expr:
        """Divided by the common factor, the constant rounded down: `p >= 0` stays what it is."""
        factor = factor_of(p.terms)
        if factor < 2:
            return p
        return self.make({m: k // factor for m, k in p.terms.items() if k // factor})

    def without_quotients(self, p: Expr) -> Expr:
        """A polynomial that is `>= 0` exactly when p is, without quotients where they stand alone.

        For a positive q, `r//q + x >= 0` is `r + q*x >= 0`, and `x - r//q >= 0` is `q*x + q-1 - r
        >= 0`.
        """
        for _ in range(MAX_DEPTH):
            atom, sign, x = next(self._lone_quotients(p), (None, 0, p))
            if atom is None:
                break
            r, q = atom.operands
            cleared = self.mul(x, q)
            if sign > 0:
                p = self.add(cleared, r)
            else:
                p = self.shift(self.add(self.sub(cleared, r), q), -1)
        return p

    def _lone_quotients(self, p: Expr) -> Iterator[tuple[Atom, int, Expr]]:
        """(atom, ±1, x) with p = ±atom + x, where x may be multiplied by the divisor, which is
        positive.
        """
        for monomial, sign in p.terms.items() if p.composite else ():
            if len(monomial) != 1 or abs(sign) != 1 or monomial[0].kind != "div":
                continue
            atom = monomial[0]
            q = atom.operands[1]
            x = self.make({m: k for m, k in p.terms.items() if m is not monomial})
            simple = q.const is not None or (x.const is not None and self.is_positive(q))
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
        factor = factor_of(p.terms)
        if p.terms.get((), 0) % factor:
            return False
        # ids of what is made of symbols differ from trace to trace, and with them the sign would
        head = max(p.terms, key=_by_rank) if p.composite else leading(p.terms)
        if p.terms[head] < 0:
            factor = -factor
        if factor != 1:
            p = self.make({m: k // factor for m, k in p.terms.items()})
        if p.composite:
            shorter = self.without_upper_halves(self.unfolded(p))
            if not any(shorter):  # no monomial is left but that of a constant
                return not shorter
            for form in (self._is_extremum, self._is_below):
                reached = form(p)
                if reached is not None:
                    return reached
        for atom, sign, x in self._lone_quotients(p):
            r, q = atom.operands
            if x.symbols() <= r.symbols():  # else x may be solved for a symbol
                gap = self.add(r, self.mul(self.scale(x, sign), q))  # r//q == -x: 0 <= r + x*q < q
                rest = self.shift(self.sub(q, gap), -1)
                return self.all_of((self.nonnegative(gap), self.nonnegative(rest)))
        return self.condition("eq", p)

    def _is_extremum(self, p: Expr) -> Condition | None:
        """`max(a, b) == a` is `a >= b`."""
        for monomial, k in p.terms.items():
            if len(monomial) != 1 or abs(k) != 1 or monomial[0].kind not in ("max", "min"):
                continue
            atom = monomial[0]
            other = self.make({m: -k * v for m, v in p.terms.items() if m is not monomial})
            if other in atom.operands:
                sign = 1 if atom.kind == "max" else -1
                gaps = (self.scale(self.sub(other, x), sign) for x in atom.operands)
                return self.all_of(self.nonnegative(gap) for gap in gaps)
        return None

    def _is_below(self, p: Expr) -> Condition | None:
        """`r - r % q == 0`, which is `q*(r//q) == 0`, says that r is from 0 to q - 1."""
        for monomial, k in p.terms.items():
            if len(monomial) != 1 or abs(k) != 1 or monomial[0].kind != "mod":
                continue
            r, q = monomial[0].operands
            rest = self.make({m: -k * v for m, v in p.terms.items() if m is not monomial})
            if rest is r and q.const is not None and q.const > 0:
                top = self.shift(self.scale(r, -1), q.const - 1)
                return self.all_of((self.nonnegative(r), self.nonnegative(top)))
        return None

    # ---- not, and, or

    def negate(self, b: Condition) -> Condition:
        if isinstance(b, bool):
            return not b
        if b.kind == "eq":
            return self.condition("ne", b.poly)
        if b.kind == "ne":
            return self.condition("eq", b.poly)
        if b.kind == "ge":
            return self.nonnegative(self.shift(self.scale(b.poly, -1), -1))
        return (self.any_of if b.kind == "and" else self.all_of)(self.negate(x) for x in b.args)

    def all_of(self, conditions: Iterable[Condition]) -> Condition:
        return self._joined("and", conditions)

    def any_of(self, conditions: Iterable[Condition]) -> Condition:
        return self._joined("or", conditions)

    def _joined(self, kind: str, conditions: Iterable[Condition]) -> Condition:
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
        return self.condition(kind, self.zero, tuple(sorted(parts, key=lambda x: x.rank())))


def _by_rank(monomial: Monomial) -> tuple[int, tuple[Any, ...]]:
    return len(monomial), rank_of(monomial)


def single_atom(p: Expr) -> tuple[Atom, int, int] | None:
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
