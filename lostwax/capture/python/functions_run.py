"""Notes which functions of the user's a call runs. As long as the values that they read stay the
same, the next call runs the same functions; what others would read does not matter.

Must not know what the functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from lostwax.location import is_user_code
from lostwax.undo.undo import Undo

T = TypeVar("T")
FunctionKeys = frozenset[tuple[str, int, str]]
"""Functions by file, line and name: a capture may exchange a function's code object."""


def union(one: FunctionKeys | None, other: FunctionKeys | None) -> FunctionKeys | None:
    """The functions in either; None stands for all functions."""
    return None if one is None or other is None else one | other


def function_key(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


class PassingOn:
    """A profile function that passes calls on to another: Python has room for one."""

    other: Callable[..., Any] | None = None
    """The one that calls are passed on to."""

    def drop(self, other: Callable[..., Any]) -> None:
        """Stop reporting calls to it."""
        if self.other is other:
            self.other = None
        elif isinstance(self.other, PassingOn):
            self.other.drop(other)


_IMPORTING = "<frozen importlib"
"""How the files of Python's code that imports modules begin."""


class CallNotes(PassingOn):
    """Notes the code that runs, but not that of modules which are imported meanwhile."""

    def __init__(self, codes: set[CodeType]) -> None:
        self._codes = codes
        self._importing: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, given: Any) -> None:
        if self._importing is not None:
            if event == "return" and frame is self._importing:
                self._importing = None
        elif event == "call":
            if frame.f_code.co_filename.startswith(_IMPORTING):
                self._importing = frame
            else:
                self._codes.add(frame.f_code)
        if self.other is not None:
            self.other(frame, event, given)


class FunctionNotes:
    """Notes the code of the functions that run."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._are_all = True

    def ran(self) -> FunctionKeys | None:
        """The user's functions that ran; None if another profiler was active, so that we could not
        note them."""
        codes = filter(is_user_code, self._codes)
        return frozenset(map(function_key, codes)) if self._are_all else None

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function, and note what runs in this thread."""
        note, current = CallNotes(self._codes), sys.getprofile()
        if isinstance(current, PassingOn) and current.other is None:
            current.other = note
            try:
                return function(*args, **kwargs)
            finally:
                current.drop(note)
        if current is not None:
            self._are_all = False
            return function(*args, **kwargs)
        try:
            sys.setprofile(note)
            return function(*args, **kwargs)
        finally:
            sys.setprofile(None)


class Watcher(Protocol):
    """Runs around the call that a capture makes of the module."""

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def find_watcher() -> Watcher | None:
    """The watcher of captures in this context, if there is one."""
    return _watcher.get()


def let_watch(watcher: Watcher, undo: Undo) -> None:
    """From here on, it makes the calls of captures."""
    undo.add(partial(_watcher.set, _watcher.get()))
    if sys.getprofile() is None:
        undo.add(partial(sys.setprofile, None))
    _watcher.set(watcher)


def watch_functions(undo: Undo) -> FunctionNotes:
    """From here on, note the functions that captures run."""
    notes = FunctionNotes()
    let_watch(notes, undo)
    return notes


def call_watched(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call the function as part of a capture, watched by those who asked for it."""
    watcher = _watcher.get()
    if watcher is None:
        return function(*args, **kwargs)
    return watcher.call(function, *args, **kwargs)
