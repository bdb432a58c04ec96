"""Which thread captures. Only one does at a time, others wait for their turn. The patches of a
capture (`patches/`) ask here whether they run in its thread.

Must not know what is patched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any

from lostwax.errors import CaptureError
from lostwax.undo import thread_state
from lostwax.undo.undo import Undo

if TYPE_CHECKING:
    from lostwax.undo.thread_state import ThreadState

running: list[Any] = []
"""The tracers of the running captures, the innermost last. All run in one thread: others wait."""
_states_before: list[ThreadState] = []
"""For each of them, torch's state of the thread before it."""
capturing_thread = 0
"""The id of the thread that captures; 0 if none does."""


def is_capturing() -> bool:
    """Does this thread capture?"""
    return get_ident() == capturing_thread


one_at_a_time = RLock()
"""Held by each capture: it puts fakes into its module, so other threads' captures wait."""
_LONGEST = 120.0
"""How many seconds a call of a module waits for its capture: that may be waiting for this call."""


def wait() -> None:
    """Wait, in a thread that does not capture, until no capture runs."""
    if not one_at_a_time.acquire(timeout=_LONGEST):
        raise CaptureError.here(
            "a module is called in this thread while another thread exports it, and that takes "
            "too long",
            why="while it is exported, its parameters have no data; and if its own forward waits "
            "for this thread, it waits for ever",
            instead="call a module's parts in the thread that calls its forward",
        )
    one_at_a_time.release()


def claim_fakes(tracer: Any, undo: Undo) -> None:
    """From here on, no other thread may compute with the fakes of this tracer. Called before they
    are in the module; undone when they are out of it."""
    undo.add(partial(setattr, tracer, "thread", 0))
    tracer.thread = get_ident()


def is_alone() -> bool:
    """Does no other thread run Python?"""
    return len(sys._current_frames()) == 1


def begin_capture(tracer: Any, undo: Undo) -> None:
    """From here on, this thread captures."""
    global capturing_thread
    undo.add(partial(_end_capture, capturing_thread, len(running)))
    undo.add(undo.put_thread_back)  # here, too: what follows must be undone outside of the tracer
    running.append(tracer)
    _states_before.append(undo.thread)
    capturing_thread = get_ident()


def _end_capture(before: int, count: int) -> None:
    global capturing_thread
    capturing_thread = before
    del running[count:], _states_before[count:]


def call_outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the capturing thread as if nothing were captured: torch's state is that of
    before the capture."""
    global capturing_thread
    thread, inside = capturing_thread, thread_state.take_state()
    try:
        capturing_thread = 0
        # Transforms of torch.func stay: they could not be entered again.
        thread_state.put_back(_states_before[-1]._replace(transforms=inside.transforms))
        return function(*args)
    finally:
        thread_state.put_back(inside)
        capturing_thread = thread
