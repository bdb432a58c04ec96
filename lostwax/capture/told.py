"""What the module's Python changes and a program would not keep: a count in an attribute, what it
puts into a list of the caller's.

An export warns of it. Who would rather know it before the program is used (`adaptive.py`) listens
instead. Must not decide what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lostwax.location import warn

_listening: ContextVar[list[str] | None] = ContextVar("listening", default=None)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Inside, nobody is warned; the list has what there would have been to say."""
    heard: list[str] = []
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)


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
