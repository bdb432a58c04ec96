"""Reports changes that the module's Python makes and a program does not: a count in an attribute,
an item put into a list of the caller's.

An export warns of them. `adaptive.py` collects them instead, to decide whether it can use the
program; a strict export collects the warnings, and refuses. Must not decide what counts as a
change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lostwax.capture.heap.cached import ResultCache
from lostwax.location import warn
from lostwax.undo.undo import Undo


class _TextListener(NamedTuple):
    """Collects the texts."""

    heard: list[str]
    hears_all: bool
    """Also those of changes that cause no warning?"""


T = TypeVar("T")
_told: ContextVar[list[str] | None] = ContextVar("told", default=None)
_listening: ContextVar[_TextListener | None] = ContextVar("listening", default=None)
KeptResults = dict[ResultCache, list[tuple[Any, Any]]]
_results: ContextVar[KeptResults | None] = ContextVar("results", default=None)


def collect_changes(undo: Undo, hears_all: bool = True) -> list[str]:
    """From here on, changes go into the returned list instead of warnings."""
    heard: list[str] = []
    undo.add(partial(_listening.set, _listening.get()))
    _listening.set(_TextListener(heard, hears_all))
    return heard


def collect_results(undo: Undo) -> KeptResults:
    """From here on, numbers and words that functions keep in caches are collected: each capture
    takes them out again, and a call would leave them there."""
    found: KeptResults = {}
    undo.add(partial(_results.set, _results.get()))
    _results.set(found)
    return found


def note_results(place: ResultCache, new: list[tuple[Any, Any]]) -> None:
    """Note what a capture has taken out of the cache of a function; the last counts."""
    found = _results.get()
    if found is not None and new:
        found[place] = new


def note_changes(work: Callable[[], T]) -> tuple[T, list[str]]:
    """What the work returns, and the changes that the next call may find."""
    told: list[str] = []
    token = _told.set(told)
    try:
        return work(), told
    finally:
        _told.reset(token)


def note_change(text: str) -> bool:
    """Note the change if all are collected; False if not, so that a warning is due."""
    listener = _listening.get()
    if listener is None or not listener.hears_all:
        return False
    listener.heard.append(text)
    return True


def note_silent_change(text: str) -> None:
    """Note a change that causes no warning. If the program keeps tensors, the next call is tried,
    as it is after a warning."""
    told = _told.get()
    if not note_change(text) and told is not None:
        told.append(text)


def warn_of_change(text: str) -> None:
    listener = _listening.get()
    if listener is None:
        warn(text)
        told = _told.get()
        if told is not None:
            told.append(text)
    else:
        listener.heard.append(text)
