"""`torch.switch`, which torch has since 2.15: one of several functions, by an index.

It becomes conditions in each other, which every reader of programs knows. Must not know how these
are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lostwax.capture.control.cond import record_cond
from lostwax.capture.trace.tracer import Tracer


def record_switch(
    tracer: Tracer, index: Any, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]
) -> Any:
    """`torch.ops.higher_order.switch`: an index that is too small or too large means the first or
    the last function. Autograd does not see through it."""
    last = len(branches) - 1

    def choose(first: int, *given: Any) -> Any:
        if first == last:
            return branches[first](*given)
        if isinstance(index, int):
            return branches[first](*given) if index <= first else choose(first + 1, *given)
        others = _Rest(choose, first + 1)
        return record_cond(tracer, index <= first, branches[first], others, given)

    with torch.no_grad():
        return choose(0, *operands)


class _Rest:
    """The choice among the functions from one on."""

    def __init__(self, choose: Callable[..., Any], first: int) -> None:
        self._choose = choose
        self._first = first

    def __call__(self, *given: Any) -> Any:
        return self._choose(self._first, *given)
