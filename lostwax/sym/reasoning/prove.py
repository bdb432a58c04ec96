"""Proofs of `p >= 0`, by elimination.

Sound and incomplete. To prove `p >= 0`, its opposite `-p - 1 >= 0` is added to facts that share a
monomial with it until an interval says that the sum cannot be: Fourier-Motzkin with integer
rounding, a few steps deep, plus a case split on max and min. Work per question is limited; what is
too hard is unknown. Must not learn anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import (
    MAX_PRODUCT,
    Atom,
    BoolExpr,
    Condition,
    Expr,
    Monomial,
    Terms,
)
from lostwax.sym.expressions.terms import combine, common_factor, multiply, replace_atom, tighten
from lostwax.sym.reasoning.bounds import Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms

ONE: Terms = {(): 1}
DEPTH = 3  # facts that are added up in one proof
SPLITS = 2  # max or min atoms that are split into cases
ELIMINATIONS = 60  # per case of a proof
MAX_TERMS = 256  # of a sum of facts


@dataclass(eq=False)
class Prover:
    facts: Facts
    algebra: Algebra
    bounds: Bounds
    conditions: Conditions
    forms: Forms

    def __post_init__(self) -> None:
        self._is_proving = False
        self._eliminations = 0
        self._atom_facts: dict[Atom, list[Terms]] = self.facts.new_memo()
        self.limit: int | None = None
        """The number of steps at which the question that is being asked is given up."""

    def is_exhausted(self) -> bool:
        return self.limit is not None and self.algebra.steps > self.limit

    def prove(self, p: Expr) -> bool:
        p = self.forms.normal(p)
        if self.bounds.is_nonnegative(p):
            return True
        if self._is_proving:  # a canonical form asks within a proof: intervals must do
            return False
        _, common = common_factor(p.terms)
        if common and self.bounds.is_nonnegative(self.algebra.make({common: 1})):  # n*p: p decides
            p = p.divide_terms(1, common)
        self._is_proving = True
        self._eliminations = ELIMINATIONS
        try:
            opposite = combine(ONE, -1, self.conditions.clear_quotients(p).terms, -1)
            if self._is_absurd(
                opposite, [], 1, 0
            ):  # most proofs need one fact; which, takes trying
                return True
            self._eliminations = ELIMINATIONS
            return self._is_absurd(opposite, [], DEPTH, SPLITS)
        finally:
            self._is_proving = False

    def _is_absurd(self, terms: Terms, assumed: list[Terms], depth: int, splits: int) -> bool:
        """Can `terms >= 0` not hold, given the facts and what is assumed?"""
        self.algebra.steps += len(terms)
        hi = self.bounds.range_of_terms(terms).hi
        if hi is not None and hi < 0:
            return True
        if depth and self._is_absurd_with_facts(terms, assumed, depth):
            return True
        return splits > 0 and self._is_absurd_by_cases(terms, assumed, depth, splits)

    def _is_absurd_with_facts(self, terms: Terms, assumed: list[Terms], depth: int) -> bool:
        for fact in self._find_relevant(terms, assumed):
            for monomial, there in fact.items():
                here = terms.get(monomial, 0)
                if not monomial or here == 0 or (here > 0) == (there > 0):
                    continue
                self._eliminations -= 1
                if self._eliminations < 0 or self.is_exhausted():
                    return False
                combined = tighten(combine(terms, abs(there), fact, abs(here)))
                if len(combined) <= MAX_TERMS and self._is_absurd(combined, assumed, depth - 1, 0):
                    return True
        return False

    def _is_absurd_by_cases(
        self, terms: Terms, assumed: list[Terms], depth: int, splits: int
    ) -> bool:
        atom = next((a for m in terms for a in m if a.kind in ("max", "min")), None)
        if atom is None:
            return False
        sign = 1 if atom.kind == "max" else -1
        for x in atom.operands:
            if len(x.terms) ** max(m.count(atom) for m in terms) * len(terms) > MAX_PRODUCT:
                return False
            case = replace_atom(terms, atom, x.terms)
            others = [combine(x.terms, sign, y.terms, -sign) for y in atom.operands if y is not x]
            self._eliminations = ELIMINATIONS  # what was tried before must not tell in which order
            if self.is_exhausted() or not self._is_absurd(
                case, assumed + others, depth, splits - 1
            ):
                return False
        return True

    def _find_relevant(self, terms: Terms, assumed: list[Terms]) -> Iterator[Terms]:
        """Facts, each a polynomial that is not negative, that may cancel something."""
        yield from assumed
        for poly in self.facts.inequalities(terms):
            self.algebra.steps += 1
            yield poly.terms
        for atom in dict.fromkeys(a for m in terms for a in m if a.kind != "symbol"):
            yield from self._facts_of(atom)
        for monomial in terms:
            if len(monomial) > 1:
                self.algebra.steps += 4
                yield from self._facts_of_product(monomial)

    def _facts_of(self, atom: Atom) -> list[Terms]:
        """What an atom means, as inequalities."""
        found = self._atom_facts.get(atom)
        if found is None:
            found = self._atom_facts[atom] = self._make_facts_of(atom)
        return found

    def _make_facts_of(self, atom: Atom) -> list[Terms]:
        me: Terms = {(atom,): 1}
        if atom.kind in ("max", "min"):
            sign = 1 if atom.kind == "max" else -1
            return [combine(me, sign, x.terms, -sign) for x in atom.operands]
        a, q = atom.operands
        if not self.bounds.is_nonnegative(q):
            return []
        rest = combine(a.terms, 1, multiply(q.terms, me), -1) if atom.kind == "div" else me
        gap = combine(q.terms, 1, rest, -1)
        facts = [rest, combine(gap, 1, ONE, -1)]  # 0 <= rest < q
        if self.bounds.is_nonnegative(a):
            facts.append(combine(a.terms, 1, me, -1))
        return facts

    def _facts_of_product(self, monomial: Monomial) -> Iterator[Terms]:
        """`(x - lowest)*(y - lowest) >= 0` and its likes, for a product x*y."""
        x, y = {monomial[:1]: 1}, {monomial[1:]: 1}
        (x_lo, x_hi), (y_lo, y_hi) = self.bounds.range_of_terms(x), self.bounds.range_of_terms(y)
        above_x = None if x_lo is None else combine(x, 1, ONE, -x_lo)
        above_y = None if y_lo is None else combine(y, 1, ONE, -y_lo)
        if above_x is not None and above_y is not None:
            yield multiply(above_x, above_y)
        if len(monomial) == 2:
            gaps = [gap for gap in map(self._gap_below_dividend, monomial) if gap is not None]
            if len(gaps) == 2:
                yield multiply(*gaps)
        if monomial[0] is monomial[1] and len(monomial) == 2:
            yield {monomial: 1, monomial[1:]: -1}  # x*x >= x over the integers
        if x_hi is not None and above_y is not None:
            yield multiply(combine(x, -1, ONE, x_hi), above_y)
        if above_x is not None and y_hi is not None:
            yield multiply(above_x, combine(y, -1, ONE, y_hi))

    def _gap_below_dividend(self, atom: Atom) -> Terms | None:
        """`a - a//q`, which is not negative: half of a, rounded up, for q = 2."""
        if atom.kind != "div":
            return None
        a, q = atom.operands
        if not self.bounds.is_nonnegative(a) or not self.bounds.is_positive(q):
            return None
        return combine(a.terms, 1, {(atom,): 1}, -1)

    def exclude_each_other(self, conditions: Iterable[Condition]) -> bool:
        """Can conditions not hold together? Only inequalities and equalities are looked at."""
        if self._is_proving:
            return False
        sides: list[Terms] = []
        for b in conditions:
            if isinstance(b, BoolExpr) and b.kind in ("ge", "eq"):
                p = self.forms.normal(b.poly)
                sides.append(p.terms)
                if b.kind == "eq":
                    sides.append({m: -c for m, c in p.terms.items()})
        self._eliminations = ELIMINATIONS
        return any(
            self._is_absurd(side, sides[:i] + sides[i + 1 :], DEPTH, 0)
            for i, side in enumerate(sides)
        )
