"""The regions that are being recorded, the innermost last: whatever is raised, they are closed.

Must not know what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lostwax.capture.control.scope import Scope
from lostwax.capture.steps.to_graph import acts
from lostwax.capture.trace.tracer import Tracer
from lostwax.ir.trace.log import Step, values_of
from lostwax.sym import BoolExpr

_open: list[ExitStack] = []


def open_region(scope: Scope, facts: Sequence[BoolExpr]) -> ExitStack:
    """Record into a region, until what is returned is closed."""
    stack = ExitStack()
    stack.enter_context(scope.record(facts))
    _open.append(stack)
    stack.callback(_open.remove, stack)
    return stack


def forget_effects(tracer: Tracer, since: int) -> None:
    """What was recorded since then is recorded again elsewhere: here it draws no random numbers,
    and nothing is computed of such."""
    steps, gone = tracer.region.steps, set[Step]()
    for step in steps[since:]:
        read = values_of([step.args, *step.kwargs.values()])
        if acts(step) or any(each.step in gone for each in read):
            gone.add(step)
    steps[since:] = [each for each in steps[since:] if each not in gone]


def count_open() -> int:
    return len(_open)


def close_regions(left: int = 0) -> None:
    """Close the innermost ones, until so many are left."""
    while len(_open) > left:
        _open[-1].close()
