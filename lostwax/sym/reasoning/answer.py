"""Answers: is a condition true, false, or not known?

Sound and incomplete; work per question is limited. Must not learn anything, and never leaves a
guard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, Symbol, evaluate
from lostwax.sym.reasoning.bounds import MAX_DEPTH, Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.division import Division
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.prove import Prover

QUESTION = 20_000  # steps per question, all its proofs together
MAX_POINTS = 64  # that are tried one by one
MAX_TRIED_FACTS = 8  # that are checked at each of them


@dataclass(eq=False)
class Answers:
    facts: Facts
    algebra: Algebra
    bounds: Bounds
    division: Division
    conditions: Conditions
    forms: Forms
    prover: Prover

    def known(self, b: Condition) -> bool | None:
        """True or False when every admissible assignment agrees; None if that is not so, or too
        hard."""
        if isinstance(b, bool):
            return b
        answer = self.facts.decided.get(b)
        if answer is not None or b.asked_at == self.facts.version:
            return answer
        outermost = self.prover.limit is None
        if outermost:
            self.prover.limit = self.algebra.steps + QUESTION
        b.asked_at = self.facts.version  # the same question within itself is not answered
        try:
            answer = None if self.prover.is_exhausted() or b.depth > MAX_DEPTH else self._answer(b)
        finally:
            if outermost:
                self.prover.limit = None
        if answer is not None:
            self.facts.decided[b] = answer
        return answer

    def _answer(self, b: BoolExpr) -> bool | None:
        answer = self._answer_joined(b) if b.args else self._answer_simple(b)
        return answer if answer is not None else self._answer_by_trying(b)

    def _answer_simple(self, b: BoolExpr) -> bool | None:
        p = self.forms.normal(b.poly)
        if p is not b.poly:
            normal = self.conditions.make(b.kind, p)
            if normal is not b:
                return self.known(normal)
        # The example, which satisfies the facts, refutes one answer: no need to try it.
        if b.kind == "ge":
            if b.hint is not False and self.prover.prove(p):
                return True
            below = p.scale(-1).shift(-1)
            return False if b.hint is not True and self.prover.prove(below) else None
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
        parts = [self.conditions.negate(x) for x in b.args] if settles else b.args
        return settles if self.prover.exclude_each_other(parts) else None

    def _is_weaker_clause(self, b: BoolExpr) -> bool:
        """Is some known disjunction contained in b?"""
        clauses = {c for a in b.atoms() for c in self.facts.mentioning(a) if c.kind == "or"}
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
            or self.prover.prove(p.shift(-1))
            or self.prover.prove(p.scale(-1).shift(-1))
        ):
            return False
        if hint is not False and (
            (p.composite and not self.division.unfold(p))
            or (self.prover.prove(p) and self.prover.prove(p.scale(-1)))
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
        self.algebra.steps += points
        answers = set(self._try_all_points(b, symbols))
        return answers.pop() if len(answers) == 1 else None

    def _try_all_points(self, b: BoolExpr, symbols: list[Symbol]) -> Iterator[bool]:
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

    def _never_divides(self, p: Expr) -> bool:
        """Is p, for some coefficient n of its own, never a multiple of n?"""
        for n in {abs(c) for m, c in p.terms.items() if m and abs(c) > 1}:
            rest = self.division.mod(p, self.algebra.make_constant(n))
            if (rest.const or 0) != 0 or self.bounds.is_positive(rest):
                return True
        return False
