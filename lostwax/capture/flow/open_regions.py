"""The regions that are being recorded, the innermost last: whatever is raised, they are closed.

Must not know what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lostwax.capture.control.scope import Scope
from lostwax.sym import BoolExpr

_open: list[ExitStack] = []


def open_region(scope: Scope, facts: Sequence[BoolExpr]) -> ExitStack:
    """Record into a region, until what is returned is closed."""
    stack = ExitStack()
    stack.enter_context(scope.record(facts))
    _open.append(stack)
    stack.callback(_open.remove, stack)
    return stack


def count_open() -> int:
    return len(_open)


def close_regions(left: int = 0) -> None:
    """Close the innermost ones, until so many are left."""
    while len(_open) > left:
        _open[-1].close()
