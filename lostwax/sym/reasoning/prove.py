"""Prover: is `p >= 0` certain? Is a condition true, false, or not known?

Sound and incomplete. To prove `p >= 0`, its opposite `-p - 1 >= 0` is added to facts that share a
monomial with it until an interval says that the sum cannot be: Fourier-Motzkin with integer
rounding, a few steps deep, plus a case split on max and min. Work per question is limited; what is
too hard is unknown. Must not learn anything.
"""

from __future__ import annotations

import itertools
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
    Symbol,
    Terms,
    evaluate,
)
from lostwax.sym.expressions.terms import combine, common_factor, multiply, replace_atom, tighten
from lostwax.sym.reasoning.bounds import MAX_DEPTH, Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.rules import Rules

ONE: Terms = {(): 1}
DEPTH = 3  # facts that are added up in one proof
SPLITS = 2  # max or min atoms that are split into cases
QUESTION = 20_000  # steps per question, all its proofs together
ELIMINATIONS = 60  # per case of a proof
MAX_TERMS = 256  # of a sum of facts
MAX_POINTS = 64  # that are tried one by one
MAX_TRIED_FACTS = 8  # that are checked at each of them


@dataclass(eq=False, repr=False)
class Prover:
    facts: Facts
    algebra: Algebra
    bounds: Bounds
    rules: Rules
    conditions: Conditions
    forms: Forms

    def __post_init__(self) -> None:
        self._is_proving = False
        self._eliminations = 0
        self._atom_facts: dict[Atom, list[Terms]] = self.facts.new_memo()
        self._limit: int | None = None
        """The number of steps at which the question that is being asked is given up."""

    def _is_exhausted(self) -> bool:
        return self._limit is not None and self.algebra.steps > self._limit

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
            if self._is_contradictory(
                opposite, [], 1, 0
            ):  # most proofs need one fact; which, takes trying
                return True
            self._eliminations = ELIMINATIONS
            return self._is_contradictory(opposite, [], DEPTH, SPLITS)
        finally:
            self._is_proving = False

    def _is_contradictory(
        self, terms: Terms, assumed: list[Terms], depth: int, splits: int
    ) -> bool:
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
                if self._eliminations < 0 or self._is_exhausted():
                    return False
                combined = tighten(combine(terms, abs(there), fact, abs(here)))
                if len(combined) <= MAX_TERMS and self._is_contradictory(
                    combined, assumed, depth - 1, 0
                ):
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
            if self._is_exhausted() or not self._is_contradictory(
                case, assumed + others, depth, splits - 1
            ):
                return False
        return True

    def _find_relevant(self, terms: Terms, assumed: list[Terms]) -> Iterator[Terms]:
        """Facts, each a polynomial that is not negative, that may cancel something."""
        yield from assumed
        for poly in self.facts.find_inequalities(terms):
            self.algebra.steps += 1
            yield poly.terms
        for atom in dict.fromkeys(a for m in terms for a in m if a.kind != "symbol"):
            yield from self._find_facts_of(atom)
        for monomial in terms:
            if len(monomial) > 1:
                self.algebra.steps += 4
                yield from self._find_facts_of_product(monomial)

    def _find_facts_of(self, atom: Atom) -> list[Terms]:
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

    def _find_facts_of_product(self, monomial: Monomial) -> Iterator[Terms]:
        """`(x - lowest)*(y - lowest) >= 0` and its likes, for a product x*y."""
        x, y = {monomial[:1]: 1}, {monomial[1:]: 1}
        (x_lo, x_hi), (y_lo, y_hi) = self.bounds.range_of_terms(x), self.bounds.range_of_terms(y)
        above_x = None if x_lo is None else combine(x, 1, ONE, -x_lo)
        above_y = None if y_lo is None else combine(y, 1, ONE, -y_lo)
        if above_x is not None and above_y is not None:
            yield multiply(above_x, above_y)
        if len(monomial) == 2:
            gaps = [gap for gap in map(self._find_gap_below_dividend, monomial) if gap is not None]
            if len(gaps) == 2:
                yield multiply(*gaps)
        if monomial[0] is monomial[1] and len(monomial) == 2:
            yield {monomial: 1, monomial[1:]: -1}  # x*x >= x over the integers
        if x_hi is not None and above_y is not None:
            yield multiply(combine(x, -1, ONE, x_hi), above_y)
        if above_x is not None and y_hi is not None:
            yield multiply(above_x, combine(y, -1, ONE, y_hi))

    def _find_gap_below_dividend(self, atom: Atom) -> Terms | None:
        """`a - a//q`, which is not negative: half of a, rounded up, for q = 2."""
        if atom.kind != "div":
            return None
        a, q = atom.operands
        if not self.bounds.is_nonnegative(a) or not self.bounds.is_positive(q):
            return None
        return combine(a.terms, 1, {(atom,): 1}, -1)

    def _exclude_each_other(self, conditions: Iterable[Condition]) -> bool:
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
            self._is_contradictory(side, sides[:i] + sides[i + 1 :], DEPTH, 0)
            for i, side in enumerate(sides)
        )

    # ---- conditions

    def known(self, b: Condition) -> bool | None:
        """True or False when every admissible assignment agrees; None if that is not so, or too
        hard."""
        if isinstance(b, bool):
            return b
        answer = self.facts.decided.get(b)
        if answer is not None or b.asked_at == self.facts.version:
            return answer
        outermost = self._limit is None
        if outermost:
            self._limit = self.algebra.steps + QUESTION
        b.asked_at = self.facts.version  # the same question within itself is not answered
        try:
            answer = None if self._is_exhausted() or b.depth > MAX_DEPTH else self._answer(b)
        finally:
            if outermost:
                self._limit = None
        if answer is not None:
            self.facts.decided[b] = answer
        return answer

    def _answer(self, b: BoolExpr) -> bool | None:
        answer = self._answer_joined(b) if b.args else self._answer_simple(b)
        return answer if answer is not None else self._answer_by_enumeration(b)

    def _answer_simple(self, b: BoolExpr) -> bool | None:
        p = self.forms.normal(b.poly)
        if p is not b.poly:
            normal = self.conditions.make(b.kind, p)
            if normal is not b:
                return self.known(normal)
        # An example that satisfies the facts refutes one answer: no need to try it.
        hint = b.hint if self.facts.fits_example else None
        if b.kind == "ge":
            if hint is not False and self.prove(p):
                return True
            below = p.scale(-1).shift(-1)
            return False if hint is not True and self.prove(below) else None
        equal = self._answer_zero(p, hint if b.kind == "eq" or hint is None else not hint)
        return equal if b.kind == "eq" or equal is None else not equal

    def _answer_joined(self, b: BoolExpr) -> bool | None:
        settles = b.kind == "or"
        answers = []
        for part in b.args:
            answers.append(self.known(part))
            if answers[-1] is settles:
                return settles
        if None not in answers:
            return not settles
        if settles and self._is_weaker_clause(b):
            return True
        parts = [self.conditions.negate(x) for x in b.args] if settles else b.args
        return settles if self._exclude_each_other(parts) else None

    def _is_weaker_clause(self, b: BoolExpr) -> bool:
        """Is some known disjunction contained in b?"""
        clauses = {c for a in b.atoms() for c in self.facts.find_mentioning(a) if c.kind == "or"}
        return any(set(c.args) <= set(b.args) for c in clauses)

    def _answer_zero(self, p: Expr, hint: bool | None) -> bool | None:
        """Is `p == 0`? `hint` is what the example says."""
        lo, hi = self.bounds.range_of(p)
        if (lo is not None and lo > 0) or (hi is not None and hi < 0):
            return False
        factors = [self.known(self.conditions.is_zero(f)) for f in p.factors()]
        if True in factors:
            return True
        if hint is not True and (
            (factors and None not in factors)
            or self._never_divides(p)
            or self.prove(p.shift(-1))
            or self.prove(p.scale(-1).shift(-1))
        ):
            return False
        if hint is not False and (
            (p.composite and not self.rules.unfold(p))
            or (self.prove(p) and self.prove(p.scale(-1)))
        ):
            return True
        return None

    def _answer_by_enumeration(self, b: BoolExpr) -> bool | None:
        """All values of the symbols, where they are few."""
        symbols = sorted(b.symbols(), key=lambda s: s.id)
        points = 1
        for symbol in symbols:
            lo, hi = self.facts.ranges[symbol]
            if lo is None or hi is None or symbol in self.facts.substitutions:
                return None
            points *= hi - lo + 1
            if points > MAX_POINTS:
                return None
        self.algebra.steps += points
        answers = set(self._try_all_points(b, symbols))
        return answers.pop() if len(answers) == 1 else None

    def _try_all_points(self, b: BoolExpr, symbols: list[Symbol]) -> Iterator[bool]:
        mentioned = {f: None for s in symbols for f in self.facts.find_mentioning(s)}
        relevant = [f for f in mentioned if f.symbols() <= set(symbols)][:MAX_TRIED_FACTS]
        ranges = (self.facts.ranges[s] for s in symbols)
        boxes = [range(lo or 0, (hi or 0) + 1) for lo, hi in ranges]  # finite, as was seen
        for point in itertools.product(*boxes):
            values = dict(zip(symbols, point, strict=True))
            try:
                if all(evaluate(fact, values) for fact in relevant):
                    yield bool(evaluate(b, values))
            except ZeroDivisionError:
                continue  # a guard excludes it

    def _never_divides(self, p: Expr) -> bool:
        """Is p, for some coefficient n of its own, never a multiple of n?"""
        for n in {abs(c) for m, c in p.terms.items() if m and abs(c) > 1}:
            rest = self.rules.mod(p, self.algebra.make_constant(n))
            if (rest.const or 0) != 0 or self.bounds.is_positive(rest):
                return True
        return False

    def shorten(self, b: Condition) -> Condition:
        """Equivalent under the present facts, without the parts that are certain."""
        if isinstance(b, bool):
            return b
        if b.kind == "ne":
            lo, hi = self.bounds.range_of(self.forms.normal(b.poly))
            if (lo, hi) in ((0, 1), (-1, 0)):  # of two values the other: `s % 2 != 1`
                return self.conditions.is_zero(b.poly.shift(-1 if lo == 0 else 1))
        if not b.args:
            return b
        certain = b.kind == "and"
        parts = [self.shorten(x) for x in b.args if self.known(x) is not certain]
        if certain:
            return self.conditions.all_of(parts)
        return self.conditions.any_of(x for x in parts if not any(_is_case_of(x, y) for y in parts))


def _is_case_of(x: Condition, y: Condition) -> bool:
    """Does `y` say of all sizes what `x` says of one: `s % 4 == 0` and `s == 4`?"""
    if not isinstance(x, BoolExpr) or not isinstance(y, BoolExpr) or x is y or x.kind != "eq":
        return False
    symbols, constant = x.symbols(), x.poly.terms.get((), 0)
    if len(symbols) != 1 or symbols != y.symbols():
        return False
    (symbol,) = symbols
    factor = x.poly.terms.get((symbol,), 0)
    if abs(factor) != 1 or len(x.poly.terms) != 1 + bool(constant) or y.kind == "and":
        return False
    try:
        return bool(evaluate(y, {symbol: -constant * factor}))
    except ZeroDivisionError:
        return False
