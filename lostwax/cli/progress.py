"""Progress on a terminal; silence in a pipe. One line, which is there from the start of a command,
also while torch is imported. Must not import what takes time: neither torch nor rich."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def is_terminal() -> bool:
    """Does a person look at stderr?"""
    return sys.stderr is not None and sys.stderr.isatty()


class _Screen:
    """The line that is shown; None if nobody looks."""

    line: Any = None
    text: str = ""
    first: str = ""
    """What stands there without rich; what is written next covers it."""

    def show(self, text: str) -> None:
        self.text = text
        if self.line is not None:
            self.line.update(text)

    def write_first(self, text: str) -> None:
        sys.stderr.write(f"{text:{len(self.first)}}\r")
        sys.stderr.flush()
        self.first = text


_screen = _Screen()
_SILENT = frozenset(("--json", "-q", "--quiet", "-h", "--help"))


def show_first(words: Sequence[str]) -> None:
    """Say that a command begins, before its options are read: what reads them takes time, too."""
    if words and not words[0].startswith("-") and _SILENT.isdisjoint(words) and is_terminal():
        _screen.write_first(f"{words[0]}: starting")


@contextlib.contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show a line while a command runs, if somebody looks; with an empty text no other than is
    there."""
    if not text or not is_terminal() or _screen.line is not None:
        try:
            yield
        finally:
            if _screen.first:
                _screen.write_first("")
        return
    _screen.write_first(text)  # there before rich is imported, whose line covers it
    _screen.first = ""
    from rich.console import Console
    from rich.markup import escape
    from rich.status import Status

    status = Status(escape(text), console=Console(stderr=True))
    with status:
        _screen.line = status
        try:
            yield
        finally:
            _screen.line = None


def hide_progress() -> None:
    """Take the line away, where the answer itself is printed as it comes."""
    if _screen.line is not None:
        _screen.line.stop()


@contextlib.contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, while it is done; the function that comes with it says how far."""
    before = _screen.text
    _screen.show(text)
    try:
        yield lambda part: _screen.show(f"{text}: {part}")
    finally:
        _screen.show(before)


@contextlib.contextmanager
def count_steps(text: str, total: int) -> Iterator[Callable[[str], None]]:
    """Say how many of so many steps are done; the function that comes with it is called after
    each, with what was done."""
    done = 0

    with show_status(f"{text}: 0 of {total}"):

        def advance(what: str) -> None:
            nonlocal done
            done += 1
            _screen.show(f"{text}: {done} of {total}, {what}")

        yield advance
