"""Which thread captures. Captures are of one thread at a time: others wait for their turn, and what
is exchanged while one runs (`patches/`) asks here whether its own thread is the one.

Must not know what is exchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any

from lostwax.errors import CaptureError
from lostwax.fake import thread_state
from lostwax.fake.undo import Undo
from lostwax.location import user_location

if TYPE_CHECKING:
    from lostwax.fake.thread_state import ThreadState

running: list[Any] = []
"""The tracers of the captures that run, the innermost last. They are of one thread: others wait."""
_outside: list[ThreadState] = []
"""For each of them, what torch kept for the thread before."""
capturing = 0
"""The thread that captures."""


def is_capturing() -> bool:
    """Is it this thread that captures?"""
    return get_ident() == capturing


one_at_a_time = RLock()
"""A capture puts fakes into its module: another thread's capture waits."""
_LONGEST = 120.0
"""Seconds that a call of a module waits for its capture: the capture may wait for that call."""


def wait() -> None:
    """Wait in another thread until nothing is captured."""
    if not one_at_a_time.acquire(timeout=_LONGEST):
        raise CaptureError(
            "a module is called in this thread while another thread exports it, and that takes too "
            f"long.\n  at {user_location()}\n"
            "  why: while it is exported, its parameters have no data; and if its own forward "
            "waits for this thread, it waits for ever\n"
            "  instead: call a module's parts in the thread that calls its forward"
        )
    one_at_a_time.release()


def claim(tracer: Any, undo: Undo) -> None:
    """From here on no other thread computes with the fakes of this tracer: before they are in the
    module, until they are out of it."""
    undo.add(partial(setattr, tracer, "thread", 0))
    tracer.thread = get_ident()


def is_alone() -> bool:
    """Is there no other thread that runs Python?"""
    return len(sys._current_frames()) == 1


def begin(tracer: Any, undo: Undo) -> None:
    """From here on this thread captures."""
    global capturing
    undo.add(partial(_end, capturing, len(running)))
    undo.add(undo.put_thread_back)  # here, too: what follows is put back outside of the tracer
    running.append(tracer)
    _outside.append(undo.thread)
    capturing = get_ident()


def _end(before: int, count: int) -> None:
    global capturing
    capturing = before
    del running[count:], _outside[count:]


def outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call something in the capturing thread that is no part of the capture: torch is as it was
    before it."""
    global capturing
    thread, inside = capturing, thread_state.take()
    try:
        capturing = 0
        # Transforms of torch.func stay: they could not be entered again.
        thread_state.put_back(_outside[-1]._replace(transforms=inside.transforms))
        return function(*args)
    finally:
        thread_state.put_back(inside)
        capturing = thread
