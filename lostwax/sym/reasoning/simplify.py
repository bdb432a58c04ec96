"""Conditions made simpler before they become guards."""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.sym.expressions.expr import BoolExpr, Condition, evaluate
from lostwax.sym.reasoning.answer import Answers
from lostwax.sym.reasoning.bounds import Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.forms import Forms


@dataclass(eq=False)
class Simplifier:
    bounds: Bounds
    conditions: Conditions
    forms: Forms
    answers: Answers

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
        parts = [self.shorten(x) for x in b.args if self.answers.known(x) is not certain]
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
