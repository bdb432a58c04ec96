"""What a trace demands of its inputs: guards, and the least set of them that says the same.

Learns only into copies of facts, never into the environment's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lostwax.errors import ContradictionError
from lostwax.location import Location
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, evaluate
from lostwax.sym.reasoning.bounds import Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.learn import Learner
from lostwax.sym.reasoning.prove import Prover
from lostwax.sym.text.show import show


@dataclass(frozen=True)
class Guard:
    """A condition under which the trace is right.

    `kind`: "branch" (a decision by the example), "check" (the program checks it too), "assert"
    (checked at run time, as it depends on data), "division" (a divisor is not zero), "specialize"
    (a concrete integer was needed)."""

    cond: BoolExpr
    kind: str
    where: Location
    asked_by: str
    reason: str

    @property
    def predicate(self) -> str:
        """The condition as Python over the named inputs: `x.shape[0] >= 8`."""
        return show(self.cond, {s: s.source for s in self.cond.symbols()})

    def __str__(self) -> str:
        asked = f" [{self.asked_by}]" if self.asked_by not in self.reason else ""
        return f"{self.predicate}  # {self.kind}: {self.reason}; {self.where}{asked}"


@dataclass(eq=False)
class Simplifier:
    """Makes conditions simpler before they become guards."""

    bounds: Bounds
    conditions: Conditions
    forms: Forms
    prover: Prover

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
        parts = [self.shorten(x) for x in b.args if self.prover.known(x) is not certain]
        if certain:
            return self.conditions.all_of(parts)
        return self.conditions.any_of(x for x in parts if not any(_is_case_of(x, y) for y in parts))

    def strengthen(self, b: Condition) -> Condition:
        """Where a product is 0, or an alternative holds: the part of it that does in the example,
        which says more."""
        if isinstance(b, bool) or not b.hint:
            return b
        if b.kind == "eq":
            zeros = [f for f in b.poly.factors() if f.hint == 0 and not f.unbacked]
            if zeros:
                return self.conditions.is_zero(min(zeros, key=lambda f: (not f.composite, f.id)))
        if b.kind == "or" and b.unbacked:
            return next((x for x in b.args if x.hint and not x.unbacked), b)
        return b


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


@dataclass(eq=False)
class Implications:
    """Which conditions follow from others."""

    facts: Facts
    conditions: Conditions
    prover: Prover
    learner: Learner

    def find_minimal(self, born: Facts, guards: list[Guard]) -> list[Guard]:
        """Guards of which none follows from the others and the facts at birth.

        Checked in the order given, they never divide by zero: those that divide by a symbol come
        last."""
        return put_divisions_last(self._drop_implied(born, guards) if guards else [])

    def is_implied(self, born: Facts, statements: list[Condition], condition: BoolExpr) -> bool:
        """Would a condition be certain, were these statements declared from the start?"""
        with self.facts.replaced_by(born.copy()):
            for statement in statements:
                self.learner.absorb(statement)
            return self._is_certain(condition)

    def _is_certain(self, condition: BoolExpr) -> bool:
        return self._is_defined(condition) and self.prover.known(condition) is True

    def _is_defined(self, condition: BoolExpr) -> bool:
        """Are its divisors known not to be zero?"""
        zeros = (self.conditions.is_zero(q) for q in _find_divisors(condition))
        return all(self.prover.known(self.conditions.negate(zero)) is True for zero in zeros)

    def _drop_implied(self, facts: Facts, guards: list[Guard]) -> list[Guard]:
        """Halves, each under the facts of the other: every guard meets all others in n log n
        steps."""
        if len(guards) == 1:
            return [] if self._follows(facts, guards[0]) else guards
        half = len(guards) // 2
        left = self._drop_implied(self._learn_into_copy(facts, guards[half:]), guards[:half])
        if not left:
            return self._drop_implied(facts, guards[half:])
        return left + self._drop_implied(self._learn_into_copy(facts, left), guards[half:])

    def _follows(self, facts: Facts, guard: Guard) -> bool:
        if guard.kind == "division" and _find_divisors(guard.cond):
            return False  # a guard after it may rest on it
        with self.facts.replaced_by(facts):
            return self._is_certain(guard.cond)

    def _learn_into_copy(self, facts: Facts, guards: list[Guard]) -> Facts:
        """A copy that has learned the guards, each once its divisors are known not to be zero."""
        copy = facts.copy()
        left = guards
        with self.facts.replaced_by(copy):
            while left:
                ready = [g for g in left if self._is_defined(g.cond)]
                if not ready:
                    break
                for guard in ready:
                    try:
                        self.learner.absorb(guard.cond)
                    except ContradictionError:
                        return facts  # no input satisfies them all: nothing may be concluded
                left = [g for g in left if g not in ready]
        return copy


def put_divisions_last(guards: Iterable[Guard]) -> list[Guard]:
    """Those that divide by a symbol last: a guard before them says that it is not zero."""
    return sorted(guards, key=lambda g: bool(_find_divisors(g.cond)))


def _find_divisors(condition: BoolExpr) -> list[Expr]:
    """What a condition divides by, numbers aside."""
    atoms = sorted(condition.atoms(), key=lambda a: a.id)
    divided = (a for a in atoms if a.kind in ("div", "mod"))
    return [a.operands[1] for a in divided if a.operands[1].const is None]
