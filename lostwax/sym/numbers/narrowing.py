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
from lostwax.sym.numbers.real import (
    FUNCTIONS,
    Definition,
    Real,
    complete_values,
    definition,
    enclose,
)

_FARTHEST = 1 << 40  # beyond, a condition is taken to hold for ever
_MOST_TRIED = 1 << 12


def install(env: ShapeEnv) -> None:
    env.narrow, env.spell = narrow, spell


def find_roots(condition: BoolExpr) -> set[Symbol]:
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
    found = find_roots(b)
    if len(found) == 1:
        (symbol,) = found
        return _find_range(b, symbol.expr, lambda n: complete_values({symbol: n}, symbols))
    common = _find_common(symbols)
    if common is None:
        return True, False
    return _find_range(b, common, lambda n: {s: _evaluate_at(definition(s), n) for s in symbols})


def _find_range(
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
    lo, hi, sure = _find_interval(holds, e.hint, *b.env.bounds(e))
    limits: list[Condition] = [True if lo is None else e >= lo, True if hi is None else e <= hi]
    return b.env.conditions.all_of(c for c in limits if known(c) is not True), sure


def _find_common(symbols: Iterable[Symbol]) -> Expr | None:
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


def _evaluate_at(what: Any, n: int) -> Any:
    """A definition, or a float in it, where the one expression in it is `n`."""
    if isinstance(what, Definition):
        return int(FUNCTIONS[what.op](*(_evaluate_at(a, n) for a in what.args)))
    if not isinstance(what, Real):
        return what
    if what.is_ratio:
        assert isinstance(what.below, int)
        return n / what.below
    return float(FUNCTIONS[what.op](*(_evaluate_at(a, n) for a in what.args)))


def _find_interval(
    holds: Callable[[int], bool], start: int, lo: int | None, hi: int | None
) -> tuple[int | None, int | None, bool]:
    """The ends of the range around `start`, within `lo` and `hi`, in which `holds` is true; None
    for an end that was not found. And whether each integer in it was tried."""
    first = _find_edge(holds, start, -1, lo)
    last = _find_edge(holds, start, 1, hi)
    if first is None or last is None or last - first >= _MOST_TRIED:
        return first, last, False
    while start > first and holds(start - 1):
        start -= 1
    first, end = start, start
    while end < last and holds(end + 1):
        end += 1
    return first, end, True


def _find_edge(
    holds: Callable[[int], bool], start: int, sign: int, limit: int | None
) -> int | None:
    """The last integer in one direction: by steps that double, then by halving the last one."""
    inside, step = start, 1
    while True:
        there = start + sign * step
        if limit is not None and (there - limit) * sign >= 0:
            there = limit
        if not holds(there):
            break
        if there == limit:
            return limit
        if step > _FARTHEST:
            return None
        inside, step = there, step * 2
    outside = there
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


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
