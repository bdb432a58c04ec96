"""Watches an export, for what its program depends on: the user's functions that run, what is read
outside of Python (clocks, files, the environment), and the warnings.

Must not decide whether a program is kept.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from lostwax import bytecode
from lostwax.capture import threads
from lostwax.capture.python.functions_run import CallNotes, FunctionKeys, function_key, let_watch
from lostwax.capture.strict.outside import ENVIRONMENT, ExternalAccessMonitor
from lostwax.export_cache.unread import UnreadNumbers
from lostwax.ir.program import ExportedProgram
from lostwax.location import Location, hear_warnings, is_user_code
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")
_READS_VARIABLE = ENVIRONMENT.format("__getitem__")


class Recording(NamedTuple):
    """An export that was watched."""

    program: ExportedProgram
    ran: FunctionKeys
    """The user's functions that have run."""
    variables: frozenset[str]
    """Those of the environment that were read."""
    numbers: UnreadNumbers
    objections: list[str]
    """What speaks against keeping the program, in words."""


def record(subject: Any, make: Callable[[], ExportedProgram]) -> Recording:
    """Make a program of `subject`, and watch what runs meanwhile."""
    watchers: list[_RunsWatcher] = []
    numbers = UnreadNumbers(subject)

    def work(undo: Undo) -> ExportedProgram:
        numbers.watch(undo)
        watchers.append(_RunsWatcher(undo))
        let_watch(watchers[0], undo)
        return make()

    with hear_warnings() as heard:
        program = run_and_undo(work)
    codes = filter(is_user_code, watchers[0].codes)
    told = [f"it warns: {text.splitlines()[0]}" for text in heard]
    told += map(_NO_FILE.format, filter(None, map(_read_without_file, watchers[0].codes)))
    ran, variables = frozenset(map(function_key, codes)), frozenset(watchers[0].variables)
    return Recording(program, ran, variables, numbers, [*watchers[0].told, *told])


_NO_FILE = "code that has no file reads {}"


def _read_without_file(code: CodeType) -> str:
    """The first global that a text run by `exec` reads; "" if there is none. Whose text it is, we
    cannot tell, and do not look at what it reads. (That of named tuples reads one of its own.)"""
    if code.co_filename != "<string>" or code.co_name == "<module>":
        return ""
    found = [n for n in bytecode.globals_read(code) if not hasattr(builtins, n)]
    return next((name for name in found if name != "_tuple_new"), "")


class _RunsWatcher:
    """Runs around the call that a capture makes of the module."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self.codes: set[CodeType] = set()
        self.told: list[str] = []
        self.variables: set[str] = set()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if sys.getprofile() is not None:
            self.told.append("a profiler watches this thread, and Python has room for one")
            return function(*args, **kwargs)
        python = threads.running[-1].python
        notes = CallNotes(self.codes)
        try:
            sys.setprofile(notes)
            outside = ExternalAccessMonitor(self._undo, self._tell)
            python.reach.add_look(outside.look_at)
            outside.look_at_call(function, python.modules)
            try:
                return function(*args, **kwargs)
            finally:
                outside.end()
        finally:
            sys.setprofile(None)

    def _tell(self, what: str, asking: FrameType, entered: FrameType | None) -> None:
        if entered is not None and what == _READS_VARIABLE:
            self.variables.add(str(entered.f_locals["key"]))
        else:
            code = asking.f_code
            where = Location(code.co_filename, asking.f_lineno, code.co_name)
            self.told.append(
                f"the module reads or changes what is outside of it: {what} at {where}"
            )
