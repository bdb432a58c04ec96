"""Exceptions that data raise and that another function catches: which functions have to give them
back, and what becomes of one that nobody catches (`rewriting/raises.py`). Must not record regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from lostwax.branches import is_caught_above
from lostwax.bytecode import instruction_at
from lostwax.capture import threads
from lostwax.capture.flow.merging import NOTHING
from lostwax.capture.flow.retry import Calls, RaiseLeaves
from lostwax.capture.flow.rewriting.picks import Place
from lostwax.capture.python.one_of import OneOf
from lostwax.capture.python.raising import MayRaise, make_raised
from lostwax.capture.python.returning import CallsInProgress, passes_result_on
from lostwax.errors import CaptureError
from lostwax.handlers import is_caught, is_told_nothing
from lostwax.location import find_tracebacks, is_user_code, locate_line

_Step = tuple[FrameType, int]
"""A function that runs, and where in its code."""


def REFUSE() -> CaptureError:
    return CaptureError.here(
        "data decide whether a function raises, and something else than its caller gets what it "
        "returns",
        why="whether it is raised is known only when the program runs",
        instead="return a second value that says whether it failed, and ask that",
    )


def _refuse_called(frame: FrameType, error: Any, catching: FrameType) -> CaptureError:
    name, where = frame.f_code.co_name, locate_line(catching, catching.f_lineno)
    return CaptureError(
        f"data decide whether {name} raises {type(error).__name__}, and that may be caught: "
        f"{error}."
        f"\n  at {where}\n"
        "  why: something else than a function of the user's has called it, and cannot be told "
        "what it raises\n"
        "  instead: call it by its name, for x in values; or return a second value that says "
        "whether it failed"
    )


def leave_managers(*managers: Any) -> None:
    """An exception leaves a `with` of each of these, as a `break` would."""
    for each in managers:
        if threads.is_capturing() and not is_told_nothing(each):
            raise CaptureError.here(
                "data decide whether an exception leaves a `with` and is caught, and the manager "
                f"of that, a {type(each).__name__}, may look at it",
                why="its end is captured once, and is told of no exception",
                instead="catch the exception inside of the `with`; or let __exit__ do the same "
                "whether there is one or not",
            )


def may_be_caught(frame: FrameType, error: BaseException) -> bool:
    """May the function that runs here catch it, or one that has called it?"""
    kinds = (type(error), *getattr(error, "stands_for", ()))
    caught = any(is_caught(frame, frame.f_lasti, each) for each in kinds)
    return caught or is_caught_above(frame, error)


def find_ways(frame: FrameType, error: BaseException) -> tuple[list[CodeType], Calls] | None:
    """The functions that an exception leaves, which has come to this one, and the calls that it
    comes from; None, if they do not call each other, or no `raise` has begun it."""
    inner: list[_Step] = [(each.tb_frame, each.tb_lasti) for each in find_tracebacks(error)]
    if not inner or instruction_at(inner[-1][0].f_code, inner[-1][1]) != "RAISE_VARARGS":
        return None
    at = next((i for i, step in enumerate(inner) if step[0] is frame), len(inner))
    inner = inner[at:][::-1]
    steps = [*inner, *_walk_up(frame, type(error))]
    found = [step for step in steps if is_user_code(step[0].f_code)]
    others = [step for step in steps if not is_user_code(step[0].f_code)]
    if len(found) < 2 or not all(passes_result_on(each) for each, _ in others):
        return None
    return _list_ways(found, 1)


def _walk_up(frame: FrameType, kind: type[BaseException]) -> Iterator[_Step]:
    """The functions around one, up to that which catches the exception."""
    around: FrameType | None = frame
    while around is not None and not is_caught(around, around.f_lasti, kind):
        around = around.f_back
        if around is not None:
            yield around, around.f_lasti


def _list_ways(found: list[_Step], count: int) -> tuple[list[CodeType], Calls] | None:
    """… of these, the innermost first; the first call may raise so many."""
    calls = []
    for i, (each, at) in enumerate(found[1:]):
        place = _find_place(each.f_code, at)
        if place is None:
            return None
        calls.append((each.f_code, (place, count if i == 0 else 1)))
    return [each.f_code for each, _ in found[:-1]], calls


def _find_place(code: CodeType, at: int) -> Place | None:
    line, last_line, column, last_column = [*code.co_positions()][at // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return None
    return line, column, last_line, last_column


def give_raised(calls: CallsInProgress, frame: FrameType, value: MayRaise) -> Any:
    """What a function returns: what it raises and its result, to who expects that."""
    is_open = not isinstance(value.number, int)
    if not is_open and value.number == 0:
        return value.result
    if type(value.result) is OneOf:
        raise value.result._lw_refuse()
    # A function that calls itself gives back more in each attempt, if those count that it never is.
    most = max((at for at, each in enumerate(value.raised, 1) if each is not NOTHING), default=0)
    value = value._replace(raised=value.raised[:most])
    if calls.give_raised(frame, value):
        return value
    if not is_open:
        raise make_raised(value.raised[value.number - 1])
    for number, kept in enumerate(value.raised, 1):
        if kept is not NOTHING:
            _check_raised(frame, value, number, make_raised(kept))
    return value.result


def _check_raised(frame: FrameType, value: MayRaise, number: int, error: Any) -> None:
    """The program stops with an error that nobody catches."""
    if is_caught_above(frame, error):
        found = [(frame, frame.f_lasti), *_walk_up(frame, type(error))]
        users = [step for step in found if is_user_code(step[0].f_code)]
        ways = _list_ways(users, len(value.raised)) if len(users) > 1 else None
        refusal = _refuse_called(frame, error, users[-1][0])
        raise refusal if ways is None else RaiseLeaves(*ways, refusal)
    if not isinstance(error, Exception):
        raise REFUSE()
    text = f"{type(error).__name__}: {error}"
    torch._check_with(type(error), value.number != number, partial(str, text))
