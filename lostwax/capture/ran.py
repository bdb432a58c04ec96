"""Which functions a call runs. What others would read is no matter, as long as what these read is
the same: then these run again, and no others.

Must not know what the functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, TypeVar

from lostwax.location import is_user_code

T = TypeVar("T")
Ran = frozenset[tuple[str, int, str]]
"""By file, line and name: while it is captured, a function may have other code."""


def union(one: Ran | None, other: Ran | None) -> Ran | None:
    """None stands for all functions."""
    return None if one is None or other is None else one | other


def place_of(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


class _Notes:
    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.is_all_seen = True


_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)


@contextmanager
def watching() -> Iterator[list[Ran | None]]:
    """Afterwards the list has one thing, the user's functions that `watched` calls have run inside;
    None if that cannot be known, since somebody else looks at calls."""
    found: list[Ran | None] = []
    notes = _Notes()
    token = _notes.set(notes)
    try:
        yield found
    finally:
        _notes.reset(token)
    codes = filter(is_user_code, notes.codes)
    found.append(frozenset(map(place_of, codes)) if notes.is_all_seen else None)


def watched(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call it."""
    notes = _notes.get()
    if notes is None:
        return function(*args, **kwargs)
    if sys.getprofile() is not None:
        notes.is_all_seen = False
        return function(*args, **kwargs)
    add = notes.codes.add

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            add(frame.f_code)

    try:
        sys.setprofile(note)
        return function(*args, **kwargs)
    finally:
        sys.setprofile(None)
