"""Operators: what Python's operators, and `eq`, `maximum` and the like, answer for expressions.

Each is a rule on today's forms of both operands. A result is remembered until facts are learned,
as it may have a better form then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Condition, Expr, Rule, Size, plain
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.rules import Rules


@dataclass(eq=False, repr=False)
class Operators:
    """`require_nonzero` is told of every divisor, and sees to it that it is not zero."""

    facts: Facts
    algebra: Algebra
    rules: Rules
    conditions: Conditions
    forms: Forms
    require_nonzero: Callable[[Expr], None]

    def __post_init__(self) -> None:
        self._rules: dict[int, Callable[[Expr, Expr], Expr | Condition]] = {
            Rule.SUM: Expr.add,
            Rule.DIFFERENCE: Expr.subtract,
            Rule.PRODUCT: Expr.multiply,
            Rule.QUOTIENT: partial(self._divide, self.rules.floordiv),
            Rule.REMAINDER: partial(self._divide, self.rules.mod),
            Rule.AT_LEAST: lambda a, b: self.conditions.nonnegative(a.subtract(b)),
            Rule.MORE_THAN: lambda a, b: self.conditions.nonnegative(a.subtract(b).shift(-1)),
            Rule.EQUALITY: lambda a, b: self.conditions.is_zero(a.subtract(b)),
        }
        self.results: list[dict[Any, Any]] = [self.facts.new_memo() for _ in self._rules]
        """What each rule gave, by its operands."""
        self._extremes: dict[tuple[str | Size, ...], Size] = self.facts.new_memo()
        self._exact: dict[tuple[Size, Size], Size | None] = self.facts.new_memo()

    def apply(self, rule: int, operands: tuple[Size, Size]) -> Any:
        a, b = map(self._make_operand, operands)
        if a is None or b is None:
            return NotImplemented
        found = self._rules[rule](self.forms.current(a), self.forms.current(b))
        result = plain(self.forms.current(found)) if isinstance(found, Expr) else found
        self.results[rule][operands] = result
        return result

    def _make_operand(self, x: object) -> Expr | None:
        if isinstance(x, Expr):
            if x.env.operators is not self:
                raise ValueError(f"{x} belongs to another ShapeEnv")
            return x
        return self.algebra.make_constant(int(x)) if isinstance(x, int) else None

    def _divide(self, rule: Callable[[Expr, Expr], Expr], a: Expr, q: Expr) -> Expr:
        self.require_nonzero(q)  # which may have taught something
        return rule(self.forms.current(a), self.forms.current(q))

    # ---- what Python has no operators for

    def equate(self, a: Expr, b: Size) -> Condition:
        """`a == b`"""
        if a is b:
            return True
        found: Condition | None = None
        if type(b) is int or type(b) is Expr:
            found = self.results[Rule.EQUALITY].get((a, b))
        return self.apply(Rule.EQUALITY, (a, b)) if found is None else found

    def find_extremum(self, kind: str, sizes: tuple[Size, ...]) -> Size:
        found = self._extremes.get((kind, *sizes))
        if found is None:
            operands = [self._make_operand(x) for x in sizes]
            if None in operands:
                raise TypeError(f"{kind} of {sizes}: integers only")
            args = [self.forms.current(x) for x in operands if x is not None]
            result = self.forms.current(self.rules.extremum(kind, args))
            found = self._extremes[(kind, *sizes)] = plain(result)
        return found

    def divide_exactly(self, a: Size, b: Size) -> Size | None:
        """The exact quotient, where structure alone shows that there is one."""
        if (a, b) not in self._exact:
            x, y = self._make_operand(a), self._make_operand(b)
            assert x is not None
            assert y is not None
            found = self.rules.exact_quotient(self.forms.current(x), self.forms.current(y))
            self._exact[a, b] = None if found is None else plain(found)
        return self._exact[a, b]
