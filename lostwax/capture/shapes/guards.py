"""Sorts the guards of a trace: those that the program checks when it is called, those that stand in
the graph, and those that break what the user declared.

Reads the environment when the trace is over. Must not record guards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.ir.graph.numbers import SymbolOrigins, number_sources
from lostwax.ir.ranges import RangeConstraints
from lostwax.ir.trace.log import InnerGraph, Step, Value
from lostwax.sym import BoolExpr, BrokenDim, Expr, Guard, ShapeEnv, Symbol, evaluate
from lostwax.sym.numbers.real import definition

_FIRST_SIZES = 256


@dataclass(eq=False, repr=False)
class SortedGuards:
    """The guards of a trace, sorted by where they are checked."""

    on_call: list[Guard] = field(default_factory=list)
    """Only about inputs: checked before the program runs."""
    in_graph: list[Guard] = field(default_factory=list)
    """About numbers that the program computes: its graph asserts them."""
    violations: list[BrokenDim] = field(default_factory=list)
    """The guards that break what the user declared (`breaks_declaration`)."""


def sort_guards(
    env: ShapeEnv,
    origins: SymbolOrigins,
    steps: Sequence[Step] = (),
    unnamed: Collection[Symbol] = frozenset(),
    defers: bool = False,
) -> SortedGuards:
    """Sort the guards, without those that follow from others. `unnamed` are dynamic sizes without
    a Dim. If one `defers`, relations between Dims are left to the call, which checks them."""
    found = SortedGuards()
    if not defers and any(s.declared for s in env.symbols):
        _refuse_asked_inside(steps, unnamed, keeps_both=env.before_hint is not None)
    if not env.guards:
        return found
    for guard in env.minimal_guards():
        _check_computable(guard, origins)
        is_plain = not guard.cond.unbacked and all(_is_input(s) for s in guard.cond.symbols())
        (found.on_call if is_plain else found.in_graph).append(guard)
    if any(s.declared for s in env.symbols):
        found.violations = [
            v
            for v in env.violations()
            if breaks_declaration(env, v.guard, _find_yielding(v.guard, unnamed, defers))
        ]
    return found


def _refuse_asked_inside(
    steps: Sequence[Step], unnamed: Collection[Symbol], keeps_both: bool
) -> None:
    """Refuse a question about a declared size that the example answers in a branch or a loop: the
    program would refuse other sizes, but only when it gets there. `keeps_both`: where sizes decide,
    both ways are kept, and a call comes to the one for its sizes."""
    for step in [each for each in steps if each.target.__class__ is not OpOverload]:
        is_refused = not keeps_both or _is_branch_on_data(step)
        for graph in [each for each in step.args if each.__class__ is InnerGraph]:
            for guard in graph.demands if is_refused else ():
                asked = {s for s in guard.cond.symbols() if s.declared and s not in unnamed}
                is_answered = guard.kind in ("branch", "specialize")
                if is_answered and asked and not guard.cond.unbacked:
                    error = CaptureError(
                        f"{guard.predicate} is asked in a branch on data, or in a loop, of a size "
                        f"that is declared to vary.\n  at {guard.where}\n"
                        "  why: the example would answer, and the program refuse other sizes, but "
                        f"only when it gets there\n  instead: {_BOTH_KEPT if keeps_both else _KEEP}"
                        "declare sizes for which there is one answer"
                    )
                    error.is_final = True  # type: ignore[attr-defined]
                    raise error
            _refuse_asked_inside(graph.region.steps, unnamed, keeps_both)


_KEEP = 'export(..., control_flow="sizes"), which keeps both ways; or '
_BOTH_KEPT = (
    "ask before the branch, where both ways can be kept; of squeeze(), name the dimension; or "
)


def _is_branch_on_data(step: Step) -> bool:
    by = step.args[0] if step.target is torch.ops.higher_order.cond else None
    return isinstance(by, Value) or (isinstance(by, BoolExpr) and by.unbacked)


def _find_yielding(guard: Guard, unnamed: Collection[Symbol], defers: bool) -> Collection[Symbol]:
    """The sizes that the guard may restrict without a word, as long as it does not fix them."""
    symbols = guard.cond.symbols()
    return symbols if defers and len(symbols) > 1 else unnamed


def _is_input(symbol: Symbol) -> bool:
    return definition(symbol) is None


def _check_computable(guard: Guard, origins: SymbolOrigins) -> None:
    for source in number_sources(guard.cond):
        if source not in origins:
            name = source.source if isinstance(source, Symbol) else str(source)
            raise CaptureError(
                f"the program is right only where {guard.predicate}, and cannot check that when "
                f"it runs: nothing gives it {name}.\n  at {guard.where}\n  because {guard.reason}"
            )


def breaks_declaration(env: ShapeEnv, guard: Guard, unnamed: Collection[Symbol] = ()) -> bool:
    """Does the guard restrict a declared dimension in a way that the user must know of?

    A guard from a branch that follows the example does. A guard for what eager would refuse, too,
    does only if it fixes a dimension, ties it to another, leaves gaps in its range, or goes against
    a limit that the user stated; otherwise it narrows the range silently. If a guard also speaks of
    a size without a Dim (`Dim.AUTO`, `Dim.DYNAMIC`), that size gives way, unless a dimension is
    fixed or tied to another all the same.
    """
    cond = guard.cond
    symbols = cond.symbols()
    named = {s for s in symbols if s.declared and s not in unnamed}
    if any(env.current_form(s.expr).const is not None for s in symbols if s.declared):
        return True
    if any(not s.unbacked for s in symbols - named):
        return any(_is_tied(env, s, unnamed) for s in named)
    if guard.kind in ("branch", "specialize"):
        return True
    if cond.kind == "eq":
        return True
    if len(symbols) != 1:
        return False
    (symbol,) = symbols
    return _makes_gaps(cond, symbol) or _breaks_limit(cond, symbol)


def _is_tied(env: ShapeEnv, symbol: Symbol, unnamed: Collection[Symbol]) -> bool:
    """Does its value depend on another Dim?"""
    others = env.normal_form(symbol.expr).symbols() - {symbol}
    return any(s.declared and s not in unnamed for s in others)


def _makes_gaps(cond: BoolExpr, symbol: Symbol) -> bool:
    """Does the condition exclude sizes in the middle of the range (`n % 4 <= 1`), not only at an
    end? We try only the first sizes: whatever the answer, each call is checked."""
    if not any(part.poly.composite for part in cond.args or (cond,)):
        return False
    least = symbol.lo or 0
    holds = [_holds(cond, symbol, n) for n in range(least, least + _FIRST_SIZES)]
    return sum(a is not b for a, b in pairwise(holds)) > 1


def _holds(cond: BoolExpr, symbol: Symbol, size: int) -> bool:
    try:
        return bool(evaluate(cond, {symbol: size}))
    except ZeroDivisionError:
        return False


def _breaks_limit(cond: BoolExpr, symbol: Symbol) -> bool:
    """Does it restrict the side of the range for which the user stated a limit?"""
    if cond.kind != "ge" or cond.poly.terms.keys() - {(symbol,), ()}:
        return False
    is_lower = cond.poly.terms[(symbol,)] > 0
    return bool(symbol.lo) if is_lower else symbol.hi is not None


def range_constraints(env: ShapeEnv, sizes: list[Expr]) -> RangeConstraints:
    """The ranges of the symbols for sizes and data of inputs, and of the sizes computed from them.
    (The strides of an input with gaps are symbols, too, but no user declares them.)"""
    computed = dict.fromkeys(e for e in sizes if e.terms.keys() != {_only(e)})
    declared = frozenset[Symbol]().union(*(e.symbols() for e in sizes))
    shown = (s for s in env.symbols if s.unbacked or s in declared)
    free = [s.expr for s in shown if _is_free(env, s)]
    return RangeConstraints((e, env.bounds(e)) for e in [*free, *computed])


def _is_free(env: ShapeEnv, symbol: Symbol) -> bool:
    """Does its value not follow from others? A symbol whose declared range has a single value
    counts as free: no guard says so, so its range must be checked in each call."""
    form = env.current_form(symbol.expr)
    if not _is_input(symbol):
        return form is symbol.expr
    limited = bool(symbol.lo) or symbol.hi is not None
    return form is symbol.expr or (form.const is not None and limited)


def _only(e: Expr) -> tuple[Symbol, ...]:
    return tuple(e.symbols())
