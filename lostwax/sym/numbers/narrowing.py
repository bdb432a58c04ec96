"""Conditions on floats that are made of sizes: as ranges of the sizes, and as the user would write
them.

A `Real` that is no ratio is known by its example alone. But what a condition says of it can be
tried, size by size. `install` lets an environment use it whenever it records a guard. Must not
learn anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lostwax.sym.env import ShapeEnv, known
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, Symbol, evaluate
from lostwax.sym.numbers.intervals import interval
from lostwax.sym.numbers.real import (
    FUNCTIONS,
    Definition,
    Real,
    complete_values,
    definition,
    enclose,
)


def install(env: ShapeEnv) -> None:
    env.narrow, env.spell = narrow, spell


def roots(condition: BoolExpr) -> set[Symbol]:
    """The symbols that a condition is about in the end, those in the floats included."""
    found, left = set[Symbol](), list(condition.symbols())
    while left:
        symbol = left.pop()
        what = definition(symbol)
        if what is None:
            found.add(symbol)
        else:
            left += [s for a in what.args if isinstance(a, Real) for s in a.symbols()]
    return found


def narrow(b: BoolExpr) -> tuple[Condition, bool]:
    """A condition on floats that are made of one size, or of one expression, as a range of that:
    readable, and known to all who ask of the size."""
    symbols = b.symbols()
    if b.unbacked or not any(definition(s) for s in symbols):
        return True, False
    found = roots(b)
    if len(found) == 1:
        (symbol,) = found
        return _range_of(b, symbol.expr, lambda n: complete_values({symbol: n}, symbols))
    common = _common(symbols)
    if common is None:
        return True, False
    return _range_of(b, common, lambda n: {s: _at(definition(s), n) for s in symbols})


def _range_of(
    b: BoolExpr, e: Expr, valued: Callable[[int], Mapping[Symbol, int]]
) -> tuple[Condition, bool]:
    """The range of `e` in which `b` holds; `valued` gives what b's symbols are for a value."""

    def holds(n: int) -> bool:
        try:
            return bool(evaluate(b, valued(n)))
        except (ArithmeticError, ValueError):
            return False

    if e.hint is None or not holds(e.hint):
        return True, False
    lo, hi, sure = interval(holds, e.hint, *b.env.bounds(e))
    limits: list[Condition] = [True if lo is None else e >= lo, True if hi is None else e <= hi]
    return b.env.conditions.all_of(c for c in limits if known(c) is not True), sure


def _common(symbols: Iterable[Symbol]) -> Expr | None:
    """The one expression that these symbols are defined by, through floats."""
    found = set[Any]()
    left: list[Any] = []
    for symbol in symbols:
        what = definition(symbol)
        left += [symbol] if what is None else what.args
    while left:
        part = left.pop()
        if isinstance(part, Real) and not part.is_ratio:
            left += part.args
        elif isinstance(part, Real):
            found |= {part.above} if isinstance(part.below, int) else {part.above, part.below}
        elif not isinstance(part, (int, float)):
            return None
    (e,) = found if len(found) == 1 else (None,)
    return e if isinstance(e, Expr) else None


def _at(what: Any, n: int) -> Any:
    """A definition, or a float in it, where the one expression in it is `n`."""
    if isinstance(what, Definition):
        return int(FUNCTIONS[what.op](*(_at(a, n) for a in what.args)))
    if not isinstance(what, Real):
        return what
    if what.is_ratio:
        assert isinstance(what.below, int)
        return n / what.below
    return float(FUNCTIONS[what.op](*(_at(a, n) for a in what.args)))


def spell(b: Condition) -> str:
    """A comparison of floats, or its opposite; "" if it is something else."""
    if isinstance(b, bool) or b.args or b.kind == "ge" or len(b.symbols()) != 1:
        return ""
    (symbol,) = b.symbols()
    what = definition(symbol)
    if what is None or len(what.args) != 2:
        return ""
    text = f"{enclose(what.args[0])} {what.op} {enclose(what.args[1])}"
    return text if evaluate(b, {symbol: 1}) else f"torch.sym_not({text})"  # there is NaN
