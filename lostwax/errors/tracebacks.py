"""What a user sees of an error's traceback: the user's frames and torch's, not ours.

All of it is shown with LOSTWAX_TRACEBACK=full in the environment.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TypeVar

from lostwax.errors.base import LostwaxError
from lostwax.errors.using import InputStructureError, InputValueError, SharedStateError
from lostwax.location import find_tracebacks, is_own_file, is_user_code, locate_line

CALL_ERRORS = (InputStructureError, InputValueError, SharedStateError)
"""What a program raises that is called in another way than it was captured for."""

Error = TypeVar("Error", bound=BaseException)


def leave_out_own_frames(error: Error) -> Error:
    """The error, to be raised again. One that is not ours gets the user's line as a note."""
    if os.environ.get("LOSTWAX_TRACEBACK") == "full":
        return error
    if not isinstance(error, LostwaxError):
        _note_line(error)
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and not any(each is other for other in seen):
            seen.append(each)
            each.__traceback__ = _leave_out(each)
            left += [each.__cause__, each.__context__]
    return error


def _note_line(error: BaseException) -> None:
    found = [each for each in find_tracebacks(error) if is_user_code(each.tb_frame.f_code)]
    if found:
        note = f"  at {locate_line(found[-1].tb_frame, found[-1].tb_lineno)}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _leave_out(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = None
    for each in reversed([*find_tracebacks(error)]):
        if not is_own_file(each.tb_frame.f_code.co_filename):
            # Code that the compiler adds, the end of a `with` or a `finally`, has no line.
            line = each.tb_lineno or each.tb_frame.f_code.co_firstlineno
            found = TracebackType(found, each.tb_frame, each.tb_lasti, line)
    return found
