"""What the module's Python changes and a program would not keep: a count in an attribute, what it
puts into a list of the caller's.

An export warns of it. Who would rather know it before the program is used (`adaptive.py`) listens
instead. Must not decide what is lost.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

from lostwax.fake.undo import Undo
from lostwax.location import warn

_listening: ContextVar[list[str] | None] = ContextVar("listening", default=None)


def listen(undo: Undo) -> list[str]:
    """From here on nobody is warned; the list gets what there would have been to say."""
    heard: list[str] = []
    undo.add(partial(_listening.set, _listening.get()))
    _listening.set(heard)
    return heard


def is_heard(text: str) -> bool:
    """Has someone listened? Otherwise a warning is due."""
    heard = _listening.get()
    if heard is None:
        return False
    heard.append(text)
    return True


def tell(text: str) -> None:
    if not is_heard(text):
        warn(text)
