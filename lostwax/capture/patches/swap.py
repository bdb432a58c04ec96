"""Functions of torch and of Python that others stand in for while a capture runs.

What stands in knows the function itself as `stands_for`. It is made once, not for each capture, and
asks `running` whose calls it gets. Must not know what the functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from lostwax.capture.tracer import Tracer

running: list[Tracer] = []
"""Of the captures that run, the innermost last."""


class Exchange(NamedTuple):
    """What stands in for the function of this name."""

    where: Any
    name: str
    function: Callable[..., Any]


@contextmanager
def exchanged(tracer: Tracer, exchanges: Sequence[Exchange]) -> Iterator[None]:
    """Inside, the functions are exchanged."""
    running.append(tracer)
    try:
        if len(running) == 1:
            for where, name, function in exchanges:
                function.stands_for = getattr(where, name)  # type: ignore[attr-defined]
                setattr(where, name, function)
        yield
    finally:
        running.pop()
        if not running:
            for where, name, function in exchanges:
                setattr(where, name, function.stands_for)  # type: ignore[attr-defined]
