"""The base class of every error, and what all of them can do: a code, the user's line with the
guilty part marked, lists of the errors that were made meanwhile.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from lostwax.location import Location, Span, find_user_frame, locate_span, mark_span, user_location


class LostwaxError(Exception):
    """The base class of every error that lostwax raises on purpose.

    What to do: catch it where any refusal of lostwax is meant. Most classes below are also a
    `RuntimeError`, `ValueError` or `TypeError`, so that code written for `torch.export` catches
    them as it is.
    """

    code: ClassVar[str] = "LW0001"
    """What scripts and `lostwax explain` know the class by. It never changes."""

    span: Span | None = None
    """The part of the user's line that ran when the error was made."""

    why: ClassVar[str] = ""
    instead: ClassVar[str] = ""
    """The reason that there are such errors, and what to do, for messages that say neither."""
    _notes: list[str] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        frame = find_user_frame(sys._getframe(1))
        self.span = None if frame is None else locate_span(frame)
        note_made(self)

    def __str__(self) -> str:
        """The message, with the code in its first line and the guilty part of the user's line
        marked, if it names one."""
        text = re.sub(_CODE, "", super().__str__())  # one error may tell of another
        text = text if self.span is None else mark_span(text, self.span)
        return f"[{self.code}] {text}" if self.code else text

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """What Python shows below the message: the user's line and the reason, if it has none."""
        if self._notes is None:
            text, where = super().__str__(), self.span
            here = None if where is None else Location(where.file, where.line, where.function)
            at = [f"  at {here}"] if here is not None and not re.search(_NAMES_LINE, text) else []
            why = [f"  why: {self.why}"] if self.why and "why: " not in text else []
            is_open = self.instead and "instead: " not in text and "fix: " not in text
            self._notes = [*at, *why, *([f"  instead: {self.instead}"] if is_open else [])]
        return self._notes

    @property
    def msg(self) -> str:
        """The message, by the name that errors of torch.export have for it."""
        return str(self)

    @classmethod
    def here(cls, what: str, *, why: str = "", instead: str) -> Self:
        """The error about what the user's code does now, with its line."""
        reason = f"  why: {why}\n" if why else ""
        return cls(f"{what}.\n  at {user_location()}\n{reason}  instead: {instead}")


_NAMES_LINE = r"\bat .*:\d+ in "
_CODE = r"^\[LW\d{4}\] "


class _Watching(threading.local):
    lists: tuple[list[BaseException], ...] = ()


_watching = _Watching()


def note_made(error: BaseException) -> None:
    """Put an error of ours onto the list that `collect_errors` makes."""
    for seen in _watching.lists[-1:]:
        seen.append(error)


@contextmanager
def collect_errors() -> Iterator[list[BaseException]]:
    """List the errors that are made inside, also those that the user's code catches: after a
    refusal, eager would not go on as that code does."""
    before, seen = _watching.lists, list[BaseException]()
    _watching.lists = (*before, seen)
    try:
        yield seen
    finally:
        _watching.lists = before


def did_you_mean(name: Any, known: Iterable[Any], ask: str = "did you mean") -> str:
    """Ask, in the words of `ask`, whether the nearest of the known names was meant by `name`;
    empty if none is near."""
    from difflib import get_close_matches

    by_text = {str(each).lower(): each for each in known}
    close = get_close_matches(str(name).lower(), by_text, n=1)
    return f" ({ask} {by_text[close[0]]!r}?)" if close else ""


def asks_data(error: BaseException | None) -> bool:
    """Was the `error` raised because Python's control flow asked what only data can answer?"""
    while error is not None and not getattr(error, "is_question", False):
        error = error.__cause__
    return error is not None


def find_own_error(error: BaseException | None) -> BaseException | None:
    """The error of lostwax's, or the question, over which the user's code has raised another
    exception: in a `finally`, in a handler, where a `with` ends."""
    while error is not None and not type(error).__module__.startswith("lostwax."):
        error = error.__cause__ or error.__context__
    return error
