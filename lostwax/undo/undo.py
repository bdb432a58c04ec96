"""Work that changes something while it lasts: wherever anything is raised, the change is put back.

A `with` block is not enough for that. An interrupt (Ctrl-C, an alarm) is an exception between any
two steps of Python, also in the middle of an `__enter__` or `__exit__`. So each change is
registered before it is made, putting it back may be done twice, and what an interrupt has cut short
is done again. Must not know what is changed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import torch

from lostwax.identity import Seen
from lostwax.location import find_tracebacks, warn
from lostwax.undo import thread_state

T = TypeVar("T")
_TRIES = 3


class Undo:
    """What is to be done when the work ends, last step first."""

    def __init__(self) -> None:
        self.thread = thread_state.take_state()
        """The state of the thread when the work began."""
        self._thread_is_back = False
        self._steps: list[Callable[[], Any]] = [self.put_thread_back]
        self.notes: list[str] = []
        """What to warn of when all is put back."""
        self.tell: Callable[[str], None] = warn

    def add(self, step: Callable[[], Any]) -> None:
        """Register how a change is put back; *then* make it. The step may be done although the
        change was not made, and may be done twice."""
        self._steps.append(step)

    def put_thread_back(self) -> None:
        """Put the state of the thread back. Once is enough: later steps do not change it."""
        if not self._thread_is_back:
            thread_state.put_back(self.thread)
            self._thread_is_back = True

    def put_back(self) -> None:
        raised: BaseException | None = None
        steps = self._steps
        while steps:
            for _ in range(_TRIES):  # more than one: an interrupt may have cut it short
                try:
                    steps[-1]()
                    break
                except BaseException as error:
                    raised = error
            steps.pop()
        if raised is not None:
            raise raised


def run_and_undo(work: Callable[[Undo], T]) -> T:
    """Do the work. What it has registered is put back when it ends, and so is what torch keeps for
    the thread."""
    undo, outer = Undo(), sys.exception()
    try:
        try:
            return work(undo)
        except BaseException as error:
            undo.add(partial(_release_guards, error, outer))
            raise
        finally:
            undo.put_back()
    finally:
        undo.put_back()  # do what an interrupt has cut short
        for note in undo.notes:
            undo.tell(note)


# ------------------------------------------------------- guards that a traceback would keep alive


def _release_guards(error: BaseException, outer: BaseException | None) -> None:
    """Release the guards that the frames of a traceback hold, before anything else is put back.

    An interrupted `__enter__` leaves its guard to nobody but its own frame, which lives as long as
    the traceback: there the guard would put back, much later, what was before *it*.
    """
    seen = Seen()
    seen.add(outer)
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each not in seen:
            seen.add(each)
            for at in reversed(list(find_tracebacks(each))):
                _release_guards_of(at.tb_frame)
            left += (each.__context__, each.__cause__)


def _release_guards_of(frame: FrameType) -> None:
    code = frame.f_code
    known = frame.f_locals
    held = [known[name] for name in code.co_varnames if name in known]
    if code.co_filename == contextlib.__file__:
        for each in held:
            if isinstance(each, contextlib._GeneratorContextManager):
                with contextlib.suppress(Exception):  # it may be running, or object
                    each.gen.close()
    elif code.co_name in ("__enter__", "__exit__"):
        held += [v for each in held for v in getattr(each, "__dict__", {}).values()]
    for each in held:
        if type(each) in _GUARDS:
            each.__exit__(None, None, None)


_GUARDS = frozenset(
    cls
    for cls in vars(torch._C).values()
    if isinstance(cls, type) and hasattr(cls, "__exit__")
    if cls.__name__.startswith(("_", "ExcludeDispatchKey"))
)
"""They are released by `__exit__`, or else when they die."""
