"""Reports changes that the module's Python makes and a program does not: a count in an attribute,
an item put into a list of the caller's.

An export warns of them. `adaptive.py` collects them instead, to decide whether it can use the
program. Must not decide what counts as a change.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

from lostwax.location import warn
from lostwax.undo.undo import Undo

_listening: ContextVar[list[str] | None] = ContextVar("listening", default=None)


def collect_changes(undo: Undo) -> list[str]:
    """From here on, changes go into the returned list instead of warnings."""
    heard: list[str] = []
    undo.add(partial(_listening.set, _listening.get()))
    _listening.set(heard)
    return heard


def note_change(text: str) -> bool:
    """Note the change if someone collects them; False if nobody does, so that a warning is due."""
    heard = _listening.get()
    if heard is None:
        return False
    heard.append(text)
    return True


def tell_of_change(text: str) -> None:
    if not note_change(text):
        warn(text)
