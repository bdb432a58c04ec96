"""Finds the lines that change something: the call is captured again, and after each line of the
user's we look whether it has happened.

It is slow, and done only for an error. If a debugger watches this thread, or nothing changes the
second time, we guess from the code (`assignments.py`). Must not know what is done with the lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeVar

from lostwax.capture import threads
from lostwax.capture.attempt import Retry
from lostwax.capture.heap.contents import find_change, read
from lostwax.capture.heap.paths import PathSearch
from lostwax.capture.python.functions_run import let_watch
from lostwax.capture.state.unkept_changes import collect_changes
from lostwax.capture.strict.changes import Before, SideEffect, name_arguments
from lostwax.location import Location, is_user_code
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")
_Question = Callable[[], bool]


def find_lines(capture: Callable[[], Any], changes: Sequence[SideEffect]) -> list[Location | None]:
    """For each change the line that makes it, as far as it shows when captured again."""
    finder = LineFinder(changes)

    def work(undo: Undo) -> None:
        collect_changes(undo)
        let_watch(finder, undo)
        capture()

    if sys.gettrace() is None:
        with suppress(Exception, Retry):  # what was found until then is good
            copy_context().run(run_and_undo, work)
    return finder.lines


class LineFinder:
    """Runs around the second call."""

    def __init__(self, changes: Sequence[SideEffect]) -> None:
        self._changes = changes
        self.lines: list[Location | None] = [None] * len(changes)
        self._questions: list[_Question] = []
        self._are_changed = [False] * len(changes)
        self._last: FrameType | None = None
        self._last_line = 0

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        modules = threads.running[-1].python.modules
        names = name_arguments(function, args, kwargs)
        arguments = PathSearch(modules, names, ())
        self._questions = [_ask_whether_changed(each, arguments) for each in self._changes]
        before = Before(threads.running[-1], names)
        sys.settrace(self._trace)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(None)
            self._look()
            before.put_back()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not is_user_code(frame.f_code):
            return None
        self._look()
        if event in ("call", "line"):
            self._last, self._last_line = frame, frame.f_lineno
        elif event == "return" and frame.f_back is not None:
            self._last, self._last_line = frame.f_back, frame.f_back.f_lineno
        return self._trace

    def _look(self) -> None:
        if self._last is None:
            return
        for i, is_changed in enumerate([ask() for ask in self._questions]):
            if is_changed and not self._are_changed[i]:
                code = self._last.f_code
                self.lines[i] = Location(code.co_filename, self._last_line, code.co_name)
            self._are_changed[i] = is_changed


def _ask_whether_changed(change: SideEffect, arguments: PathSearch) -> _Question:
    """The question whether something else is in a place than now. (Each capture has containers of
    its own for the arguments.)"""
    given = arguments.find_holder(change.place)
    place = change.holder if given is None else given
    before = read(place)
    return lambda: find_change(place, before) is not None
