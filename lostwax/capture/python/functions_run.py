"""Which functions a call runs. What others would read is no matter, as long as what these read is
the same: then these run again, and no others.

Must not know what the functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import CodeType, FrameType
from typing import Any, TypeVar

from lostwax.fake.undo import Undo
from lostwax.location import is_user_code

T = TypeVar("T")
Ran = frozenset[tuple[str, int, str]]
"""By file, line and name: while it is captured, a function may have other code."""


def union(one: Ran | None, other: Ran | None) -> Ran | None:
    """None stands for all functions."""
    return None if one is None or other is None else one | other


def place_of(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


class Notes:
    """Which functions have run."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._are_all = True

    def ran(self) -> Ran | None:
        """The user's; None if that cannot be known, since somebody else looked at calls."""
        codes = filter(is_user_code, self._codes)
        return frozenset(map(place_of, codes)) if self._are_all else None

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call it, and note what runs in this thread."""
        if sys.getprofile() is not None:
            self._are_all = False
            return function(*args, **kwargs)
        add = self._codes.add

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                add(frame.f_code)

        try:
            sys.setprofile(note)
            return function(*args, **kwargs)
        finally:
            sys.setprofile(None)


_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


def watch(undo: Undo) -> Notes:
    """From here on it is noted what captures run."""
    notes = Notes()
    undo.add(partial(_notes.set, _notes.get()))
    if sys.getprofile() is None:
        undo.add(partial(sys.setprofile, None))
    _notes.set(notes)
    return notes


def watched(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call it, as part of a capture."""
    notes = _notes.get()
    if notes is None:
        return function(*args, **kwargs)
    return notes.call(function, *args, **kwargs)
