"""Operators: what Python's operators, and `eq`, `maximum` and the like, answer for expressions.

Each is a rule on today's forms of both operands. A result is remembered until facts are learned,
as it may have a better form then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Condition, Expr, Size, plain
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.division import Division
from lostwax.sym.reasoning.extrema import Extrema
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms

Results: TypeAlias = dict[tuple[Size, Size], Size]
Answers: TypeAlias = dict[tuple[Size, Size], Condition]

_UNASKED = object()


@dataclass(eq=False)
class Operators:
    """`require_nonzero` is told of every divisor, and sees to it that it is not zero."""

    facts: Facts
    algebra: Algebra
    division: Division
    extrema: Extrema
    conditions: Conditions
    forms: Forms
    require_nonzero: Callable[[Expr], None]

    def __post_init__(self) -> None:
        new_memo = self.facts.new_memo
        self.sums: Results = new_memo()
        self.differences: Results = new_memo()
        self.products: Results = new_memo()
        self.quotients: Results = new_memo()
        self.remainders: Results = new_memo()
        self.comparisons: Answers = new_memo()
        self.strict_comparisons: Answers = new_memo()
        self._equalities: Answers = new_memo()
        self._extremes: dict[tuple[str | Size, ...], Size] = new_memo()
        self._exact: dict[tuple[Size, Size], Size | None] = new_memo()

    def operate(
        self, memo: Results, rule: Callable[[Expr, Expr], Expr], left: Size, right: Size
    ) -> Size:
        a, b = self._operand(left), self._operand(right)
        if a is None or b is None:
            return NotImplemented  # type: ignore[no-any-return]
        result = self.forms.current(rule(self.forms.current(a), self.forms.current(b)))
        memo[left, right] = value = plain(result)
        return value

    def compare(
        self, memo: Answers, rule: Callable[[Expr, Expr], Condition], left: Size, right: Size
    ) -> Condition:
        if type(left) in _SIZES and type(right) in _SIZES:
            found = memo.get((left, right))
            if found is not None:
                return found
        a, b = self._operand(left), self._operand(right)
        if a is None or b is None:
            return NotImplemented  # type: ignore[no-any-return]
        memo[left, right] = value = rule(self.forms.current(a), self.forms.current(b))
        return value

    def _operand(self, x: object) -> Expr | None:
        if isinstance(x, Expr):
            if x.env.operators is not self:
                raise ValueError(f"{x} belongs to another ShapeEnv")
            return x
        return self.algebra.make_constant(int(x)) if isinstance(x, int) else None

    # ---- the rules that are not methods of `Expr`

    def divide(self, a: Expr, q: Expr) -> Expr:
        """`a // q`, with a guard that q is not zero. That may change the forms of both."""
        self.require_nonzero(q)
        return self.division.floordiv(self.forms.current(a), self.forms.current(q))

    def reduce(self, a: Expr, q: Expr) -> Expr:
        """`a % q`, with a guard that q is not zero."""
        self.require_nonzero(q)
        return self.division.mod(self.forms.current(a), self.forms.current(q))

    def at_least(self, a: Expr, b: Expr) -> Condition:
        return self.conditions.nonnegative(a.subtract(b))

    def more_than(self, a: Expr, b: Expr) -> Condition:
        return self.conditions.nonnegative(a.subtract(b).shift(-1))

    # ---- what Python has no operators for

    def equal(self, a: Size, b: Size) -> Condition:
        return True if a is b else self.compare(self._equalities, self._equal, a, b)

    def _equal(self, a: Expr, b: Expr) -> Condition:
        return self.conditions.is_zero(a.subtract(b))

    def extremum(self, kind: str, sizes: tuple[Size, ...]) -> Size:
        found = self._extremes.get((kind, *sizes))
        if found is None:
            operands = [self._operand(x) for x in sizes]
            if None in operands:
                raise TypeError(f"{kind} of {sizes}: integers only")
            args = [self.forms.current(x) for x in operands if x is not None]
            result = self.forms.current(self.extrema.extremum(kind, args))
            found = self._extremes[(kind, *sizes)] = plain(result)
        return found

    def quotient(self, a: Size, b: Size) -> Size | None:
        """The exact quotient, where structure alone shows that there is one."""
        known: Any = self._exact.get((a, b), _UNASKED)
        if known is not _UNASKED:
            return known  # type: ignore[no-any-return]
        x, y = self._operand(a), self._operand(b)
        assert x is not None
        assert y is not None
        found = self.division.exact_quotient(self.forms.current(x), self.forms.current(y))
        result = self._exact[a, b] = None if found is None else plain(found)
        return result


_SIZES = (int, Expr)
