"""What the other side of an `if` would do, read off the code that asks.

`if size == 1: raise ValueError(...)` is no choice between two ways: on the other side eager raises.
Nothing depends on the answer but the kind of the guard. Layer 0: imports nothing of lostwax but
`bytecode`, `handlers` and `location`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple, Protocol, TypeAlias

from lostwax import handlers
from lostwax.bytecode import NOWHERE, find_moot, find_raising
from lostwax.handlers import is_caught
from lostwax.location import Location, is_of_torch, is_user_code

RAISES = "the original raises there where it does not hold"
"""Why a program demands it of its data."""
OUTERMOST: set[CodeType] = set()
"""The functions that call the user's program. Handlers above them are not the program's."""


class Decision(Protocol):
    """Where a function decides something."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class Catching(NamedTuple):
    """Where an exception of a class is caught."""

    kind: type[BaseException]
    at: Location


MergeSite: TypeAlias = tuple[CodeType, Decision]
"""An `if` of Python's whose two ways have merged."""


def is_run_by_capture(frame: FrameType | None) -> bool:
    """Is it part of a program that is captured?"""
    while frame is not None and frame.f_code not in OUTERMOST:
        frame = frame.f_back
    return frame is not None


def raises_otherwise(frame: FrameType | None, answer: bool) -> bool:
    """The frame is about to follow `answer`. Would it raise with the other answer, and would
    neither the user's code nor Python itself catch that?"""
    raised = find_raising(frame.f_code).get((frame.f_lasti, not answer)) if frame else None
    if frame is None or raised is None or is_caught(frame, raised.offset):
        return False
    callers = list(_callers(frame))
    if _is_pythons(raised.names, frame, [each.f_code.co_name for each in (frame, *callers)]):
        return False
    return not any(is_caught(each, each.f_lasti) for each in callers)


def _callers(frame: FrameType) -> Iterator[FrameType]:
    """Yield the callers that may catch what the frame raises. torch's own pass it on."""
    above = frame.f_back
    while above is not None and above.f_code not in OUTERMOST:
        if not is_of_torch(above.f_code.co_filename):
            yield above
        above = above.f_back


def is_caught_above(frame: FrameType, error: BaseException) -> bool:
    """May an exception that leaves the frame be caught by the user's code, or by Python itself?"""
    callers = list(_callers(frame))
    if isinstance(error, _find_expected([each.f_code.co_name for each in (frame, *callers)])):
        return True
    return any(is_caught(each, each.f_lasti, type(error)) for each in callers)


def find_catching(kinds: Iterable[type[BaseException]]) -> Catching | None:
    """Where the user's code is sure to catch an exception of one of these classes, if what runs now
    raises it, and to go on; None: nowhere."""
    above: FrameType | None = sys._getframe(1)
    found: Catching | None = None
    while above is not None and above.f_code not in OUTERMOST:
        code = above.f_code
        if found is None and code.co_exceptiontable and is_user_code(code):
            found = _find_catching_in(above, kinds)
        above = above.f_back
    return None if above is None else found


def _find_catching_in(frame: FrameType, kinds: Iterable[type[BaseException]]) -> Catching | None:
    for kind in kinds:
        line = handlers.find_catching(frame, frame.f_lasti, kind)
        if line is not None:
            return Catching(kind, Location(frame.f_code.co_filename, line, frame.f_code.co_name))
    return None


def _find_expected(functions: list[str]) -> tuple[type[Exception], ...]:
    """The exceptions to which Python itself reacts: a loop ends with `StopIteration`, or with the
    `IndexError` of a `__getitem__`, and `hasattr` is False."""
    expected: tuple[type[Exception], ...] = (StopIteration, StopAsyncIteration, AttributeError)
    return (*expected, LookupError) if "__getitem__" in functions else expected


def _is_pythons(names: tuple[str, ...], frame: FrameType, functions: list[str]) -> bool:
    """Does Python itself react to such an exception?"""
    expected = _find_expected(functions)
    found = [frame.f_globals.get(name, frame.f_builtins.get(name)) for name in names]
    return any(isinstance(each, type) and issubclass(each, expected) for each in found)


def only_nonraising_answer(frame: FrameType | None) -> bool | None:
    """The answer with which the frame goes on, if it raises with the other one; else None."""
    ways = [answer for answer in (True, False) if raises_otherwise(frame, answer)]
    return ways[0] if len(ways) == 1 else None


def asked_after(frame: FrameType | None, answer: bool) -> frozenset[int]:
    """Find where the later parts of a condition are asked: `if a != 1 and b != 1 and a != b:
    raise`.

    With `answer` the next part is asked, and one of them may still say that nothing is raised. With
    the other answer no further part is asked, and nothing is raised either. Empty if the frame is
    in no such condition."""
    return find_moot(frame.f_code).get((frame.f_lasti, answer), NOWHERE) if frame else NOWHERE
