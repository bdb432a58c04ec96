"""What a trace demands of its inputs: guards, and the least set of them that says the same.

Learns only into copies of facts, never into the environment's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lostwax.errors import ContradictionError
from lostwax.location import Location
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr
from lostwax.sym.reasoning.answer import Answers
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.learn import Learner
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
class Implications:
    """Which conditions follow from others."""

    facts: Facts
    conditions: Conditions
    answers: Answers
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
        return self._is_defined(condition) and self.answers.known(condition) is True

    def _is_defined(self, condition: BoolExpr) -> bool:
        """Are its divisors known not to be zero?"""
        zeros = (self.conditions.is_zero(q) for q in _find_divisors(condition))
        return all(self.answers.known(self.conditions.negate(zero)) is True for zero in zeros)

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
