"""Proofs: normal forms under the substitutions, `p >= 0` by elimination, and `known`.

Sound and incomplete. To prove `p >= 0`, its opposite `-p - 1 >= 0` is added to facts that share a
monomial with it until an interval says that the sum cannot be: Fourier-Motzkin with integer
rounding, a few steps deep, plus a case split on max and min. Work per question is limited; what is
too hard is unknown. Must not learn anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from lostwax.sym.expressions.algebra import MAX_PRODUCT
from lostwax.sym.expressions.conditions import Conditions
from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Symbol, evaluate
from lostwax.sym.expressions.terms import (
    Monomial,
    Terms,
    factor_of,
    merged,
    multiplied,
    replaced,
    without,
)
from lostwax.sym.reasoning.bounds import MAX_DEPTH

DEPTH = 3  # facts that are added up in one proof
SPLITS = 2  # max or min atoms that are split into cases
ELIMINATIONS = 60  # per case of a proof
QUESTION = 20_000  # steps per question, all its proofs together
MAX_TERMS = 256  # of a sum of facts
MAX_REWRITES = 16  # of products in one expression
MAX_POINTS = 64  # that are tried one by one
MAX_TRIED_FACTS = 8  # that are checked at each of them


class Prover(Conditions):
    def __init__(self) -> None:
        super().__init__()
        self._proving = False
        self._eliminations = 0
        self._limit: int | None = None
        self._atom_facts: dict[Atom, tuple[int, list[Terms]]] = {}

    # ---- normal forms

    def current_form(self, e: Expr) -> Expr:
        """`e` under today's facts, in symbols that the user knows."""
        if e.current_at != self.facts.version:
            result = self.normal_form(e)
            if result.hidden:
                result = self._rebuilt(e, visible=True)
            e.current, e.current_at = result, self.facts.version
        return e.current

    def normal_form(self, e: Expr) -> Expr:
        if e.normal_at != self.facts.version:
            facts = self.facts
            changes = e.const is None and (e.composite or facts.substitutions or facts.rewrites)
            e.normal = self._rebuilt(e) if changes else e
            e.normal_at = facts.version
        return e.normal

    def _rebuilt(self, e: Expr, visible: bool = False) -> Expr:
        same: Terms = {}
        changed: Expr | None = None
        for monomial, coefficient in e.terms.items():
            values = [self._visible_atom(a) if visible else self._normal_atom(a) for a in monomial]
            if all(v is a.expr for v, a in zip(values, monomial, strict=True)):
                same[monomial] = coefficient
                continue
            term = self.const(coefficient)
            for value in values:
                term = self.mul(term, value)
            changed = term if changed is None else self.add(changed, term)
        result = e if changed is None else self.add(self.settle(same), changed)
        return self._rewritten(result, visible) if self.facts.rewrites else result

    def _normal_atom(self, atom: Atom) -> Expr:
        if atom.normal_at == self.facts.version:
            return atom.normal
        self.steps += 1
        atom.normal = atom.expr  # cuts a circle, if there is one
        atom.normal_at = self.facts.version
        value = self.facts.substitutions.get(atom)
        if value is not None:
            result = self._rebuilt(value)
        elif isinstance(atom, Symbol) or atom.depth > MAX_DEPTH:
            result = atom.expr
        else:
            result = self._remade(atom, tuple(self._rebuilt(x) for x in atom.operands))
            if result is not atom.expr and self._is_substituted(result):
                result = self._rebuilt(result)
        atom.normal = result
        return result

    def _is_substituted(self, e: Expr) -> bool:
        return any(a in self.facts.substitutions for a in e.atoms())

    def _visible_atom(self, atom: Atom) -> Expr:
        normal = self._normal_atom(atom)
        if not normal.hidden:
            return normal
        if isinstance(atom, Symbol) or atom.depth > MAX_DEPTH:
            return atom.expr
        return self._remade(atom, tuple(self._rebuilt(x, visible=True) for x in atom.operands))

    def _remade(self, atom: Atom, operands: tuple[Expr, ...]) -> Expr:
        if atom.kind == "mod":
            return self.mod(*operands)
        if atom.kind != "div":
            return self.extremum(atom.kind, list(operands))
        if atom.args[1] == 1 and len(operands[0].terms) > 1:
            return self.fold(operands[0])
        return self.floordiv(*operands)

    def _rewritten(self, e: Expr, visible: bool) -> Expr:
        """With products replaced by what they are known to equal, which is smaller each time."""
        for _ in range(MAX_REWRITES):
            found = self._rewrite_in(e, visible)
            if found is None:
                break
            monomial, rest, value = found
            coefficient = e.terms[monomial]
            e = self.sub(e, self.make({monomial: coefficient}))
            e = self.add(e, self.mul(self.make({rest: coefficient}), value))
        return e

    def _rewrite_in(self, e: Expr, visible: bool) -> tuple[Monomial, Monomial, Expr] | None:
        for monomial in e.terms:
            for atom in dict.fromkeys(monomial):
                for product, value in self.facts.rewrites.get(atom, {}).items():
                    rest = without(monomial, product)
                    if rest is not None and not (visible and value.hidden):
                        return monomial, rest, value
        return None

    # ---- p >= 0

    def prove(self, p: Expr) -> bool:
        p = self.normal_form(p)
        if self.is_nonnegative(p):
            return True
        if self._proving:  # a canonical form asks within a proof: intervals must do
            return False
        _, common = self.content(p)
        if common and self.is_nonnegative(self.make({common: 1})):  # n*p: p decides
            p = self.divided(p, 1, common)
        self._proving = True
        self._eliminations = ELIMINATIONS
        try:
            opposite = merged({(): -1}, 1, self.without_quotients(p).terms, -1)
            if self._absurd(opposite, [], 1, 0):  # most proofs need one fact; which, takes trying
                return True
            self._eliminations = ELIMINATIONS
            return self._absurd(opposite, [], DEPTH, SPLITS)
        finally:
            self._proving = False

    def _absurd(self, terms: Terms, assumed: list[Terms], depth: int, splits: int) -> bool:
        """Can `terms >= 0` not hold, given the facts and what is assumed?"""
        self.steps += len(terms)
        hi = self.range_of_terms(terms).hi
        if hi is not None and hi < 0:
            return True
        if depth and self._absurd_with_facts(terms, assumed, depth):
            return True
        return splits > 0 and self._absurd_by_cases(terms, assumed, depth, splits)

    def _absurd_with_facts(self, terms: Terms, assumed: list[Terms], depth: int) -> bool:
        for fact in self._relevant(terms, assumed):
            for monomial, there in fact.items():
                here = terms.get(monomial, 0)
                if not monomial or here == 0 or (here > 0) == (there > 0):
                    continue
                self._eliminations -= 1
                if self._eliminations < 0 or self._exhausted():
                    return False
                combined = tightened(merged(terms, abs(there), fact, abs(here)))
                if len(combined) <= MAX_TERMS and self._absurd(combined, assumed, depth - 1, 0):
                    return True
        return False

    def _absurd_by_cases(self, terms: Terms, assumed: list[Terms], depth: int, splits: int) -> bool:
        atom = next((a for m in terms for a in m if a.kind in ("max", "min")), None)
        if atom is None:
            return False
        sign = 1 if atom.kind == "max" else -1
        for x in atom.operands:
            if len(x.terms) ** max(m.count(atom) for m in terms) * len(terms) > MAX_PRODUCT:
                return False
            case = replaced(terms, atom, x.terms)
            others = [merged(x.terms, sign, y.terms, -sign) for y in atom.operands if y is not x]
            self._eliminations = ELIMINATIONS  # what was tried before must not tell in which order
            if self._exhausted() or not self._absurd(case, assumed + others, depth, splits - 1):
                return False
        return True

    def _relevant(self, terms: Terms, assumed: list[Terms]) -> Iterator[Terms]:
        """Facts, each a polynomial that is not negative, that may cancel something."""
        yield from assumed
        for poly in self.facts.inequalities(terms):
            self.steps += 1
            yield poly.terms
        for atom in dict.fromkeys(a for m in terms for a in m if a.kind != "symbol"):
            yield from self._facts_of(atom)
        for monomial in terms:
            if len(monomial) > 1:
                self.steps += 4
                yield from self._facts_of_product(monomial)

    def _facts_of(self, atom: Atom) -> list[Terms]:
        """What an atom means, as inequalities."""
        found = self._atom_facts.get(atom)
        if found is None or found[0] != self.facts.version:
            found = self._atom_facts[atom] = self.facts.version, self._make_facts_of(atom)
        return found[1]

    def _make_facts_of(self, atom: Atom) -> list[Terms]:
        me: Terms = {(atom,): 1}
        if atom.kind in ("max", "min"):
            sign = 1 if atom.kind == "max" else -1
            return [merged(me, sign, x.terms, -sign) for x in atom.operands]
        a, q = atom.operands
        if not self.is_nonnegative(q):
            return []
        rest = merged(a.terms, 1, multiplied(q.terms, me), -1) if atom.kind == "div" else me
        gap = merged(q.terms, 1, rest, -1)
        facts = [rest, merged(gap, 1, {(): -1}, 1)]  # 0 <= rest < q
        if self.is_nonnegative(a):
            facts.append(merged(a.terms, 1, me, -1))
        return facts

    def _facts_of_product(self, monomial: Monomial) -> Iterator[Terms]:
        """`(x - lowest)*(y - lowest) >= 0` and its likes, for a product x*y."""
        x, y = {monomial[:1]: 1}, {monomial[1:]: 1}
        (x_lo, x_hi), (y_lo, y_hi) = self.range_of_terms(x), self.range_of_terms(y)
        above_x = None if x_lo is None else merged(x, 1, {(): -x_lo}, 1)
        above_y = None if y_lo is None else merged(y, 1, {(): -y_lo}, 1)
        if above_x is not None and above_y is not None:
            yield multiplied(above_x, above_y)
        if len(monomial) == 2:
            gaps = [gap for gap in map(self._gap_below_dividend, monomial) if gap is not None]
            if len(gaps) == 2:
                yield multiplied(*gaps)
        if monomial[0] is monomial[1] and len(monomial) == 2:
            yield {monomial: 1, monomial[1:]: -1}  # x*x >= x over the integers
        if x_hi is not None and above_y is not None:
            yield multiplied(merged(x, -1, {(): x_hi}, 1), above_y)
        if above_x is not None and y_hi is not None:
            yield multiplied(above_x, merged(y, -1, {(): y_hi}, 1))

    def _gap_below_dividend(self, atom: Atom) -> Terms | None:
        """`a - a//q`, which is not negative: half of a, rounded up, for q = 2."""
        if atom.kind != "div":
            return None
        a, q = atom.operands
        if not self.is_nonnegative(a) or not self.is_positive(q):
            return None
        return merged(a.terms, 1, {(atom,): 1}, -1)

    # ---- questions

    def known(self, b: Condition) -> bool | None:
        """True or False when every admissible assignment agrees; None if that is not so, or too
        hard.
        """
        if isinstance(b, bool):
            return b
        answer = self.facts.decided.get(b)
        if answer is not None or b.asked_at == self.facts.version:
            return answer
        outermost = self._limit is None
        if outermost:
            self._limit = self.steps + QUESTION
        b.asked_at = self.facts.version  # the same question within itself is not answered
        try:
            answer = None if self._exhausted() or b.depth > MAX_DEPTH else self._answer(b)
        finally:
            if outermost:
                self._limit = None
        if answer is not None:
            self.facts.decided[b] = answer
        return answer

    def _exhausted(self) -> bool:
        return self._limit is not None and self.steps > self._limit

    def _answer(self, b: BoolExpr) -> bool | None:
        answer = self._answer_joined(b) if b.args else self._answer_simple(b)
        return answer if answer is not None else self._answer_by_trying(b)

    def _answer_simple(self, b: BoolExpr) -> bool | None:
        p = self.normal_form(b.poly)
        if p is not b.poly:
            normal = self.on(b.kind, p)
            if normal is not b:
                return self.known(normal)
        # The example, which satisfies the facts, refutes one answer: no need to try it.
        if b.kind == "ge":
            if b.hint is not False and self.prove(p):
                return True
            below = self.shift(self.scale(p, -1), -1)
            return False if b.hint is not True and self.prove(below) else None
        equal = self._answer_zero(p, b.hint if b.kind == "eq" or b.hint is None else not b.hint)
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
        parts = [self.negate(x) for x in b.args] if settles else b.args
        return settles if self._exclude_each_other(parts) else None

    def _exclude_each_other(self, conditions: Iterable[Condition]) -> bool:
        """Can conditions not hold together? Only inequalities and equalities are looked at."""
        if self._proving:
            return False
        sides: list[Terms] = []
        for b in conditions:
            if isinstance(b, BoolExpr) and b.kind in ("ge", "eq"):
                p = self.normal_form(b.poly)
                sides.append(p.terms)
                if b.kind == "eq":
                    sides.append({m: -c for m, c in p.terms.items()})
        self._eliminations = ELIMINATIONS
        return any(
            self._absurd(side, sides[:i] + sides[i + 1 :], DEPTH, 0) for i, side in enumerate(sides)
        )

    def _is_weaker_clause(self, b: BoolExpr) -> bool:
        """Is some known disjunction contained in b?"""
        clauses = {c for a in b.atoms() for c in self.facts.mentioning(a) if c.kind == "or"}
        return any(set(c.args) <= set(b.args) for c in clauses)

    def _answer_zero(self, p: Expr, hint: bool | None) -> bool | None:
        """Is `p == 0`? `hint` is what the example says."""
        lo, hi = self.range_of(p)
        if (lo is not None and lo > 0) or (hi is not None and hi < 0):
            return False
        factors = [self.known(self.is_zero(f)) for f in self.factors(p)]
        if True in factors:
            return True
        if hint is not True and (
            (factors and None not in factors)
            or self._never_divides(p)
            or self.prove(self.shift(p, -1))
            or self.prove(self.shift(self.scale(p, -1), -1))
        ):
            return False
        if hint is not False and (
            (p.composite and not self.unfolded(p))
            or (self.prove(p) and self.prove(self.scale(p, -1)))
        ):
            return True
        return None

    def _answer_by_trying(self, b: BoolExpr) -> bool | None:
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
        self.steps += points
        answers = set(self._values_at_all_points(b, symbols))
        return answers.pop() if len(answers) == 1 else None

    def _values_at_all_points(self, b: BoolExpr, symbols: list[Symbol]) -> Iterator[bool]:
        mentioned = {f: None for s in symbols for f in self.facts.mentioning(s)}
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

    def factors(self, p: Expr) -> list[Expr]:
        """The factors that every term shares, and what remains; nothing if p is no product."""
        _, common = self.content(p)
        if not common or (len(common) == 1 and len(p.terms) == 1):
            return []
        rest = self.divided(p, 1, common)
        atoms = [a.expr for a in dict.fromkeys(common)]
        return atoms if rest.const is not None else [*atoms, rest]

    def _never_divides(self, p: Expr) -> bool:
        """Is p, for some coefficient n of its own, never a multiple of n?"""
        for n in {abs(c) for m, c in p.terms.items() if m and abs(c) > 1}:
            rest = self.mod(p, self.const(n))
            if (rest.const or 0) != 0 or self.is_positive(rest):
                return True
        return False


def tightened(terms: Terms) -> Terms:
    """`terms >= 0` divided by the common factor, the constant rounded down: exact over the
    integers.
    """
    factor = factor_of(terms)
    if factor < 2:
        return terms
    return {m: c // factor for m, c in terms.items() if c // factor}
