"""What the other side of an `if` would do, read off the bytecode of the code that asks.

`if size == 1: raise ValueError(...)` is no choice between two ways: on the other side eager raises.
Nothing depends on the answer but the kind of the guard. Layer 0: imports nothing of the house but
`handlers` and `location`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from lostwax import handlers
from lostwax.cache import cached_by_identity
from lostwax.handlers import is_caught
from lostwax.location import Location, is_of_torch, is_user_code

RAISES = "the original raises there where it does not hold"
"""Why a program demands it of its data."""
_LONGEST = 80  # instructions of a side that raises


OUTERMOST: set[CodeType] = set()
"""The functions that call the user's program. Handlers above them are not the program's."""


def is_run_by_capture(frame: FrameType | None) -> bool:
    """Is it part of a program that is captured?"""
    while frame is not None and frame.f_code not in OUTERMOST:
        frame = frame.f_back
    return frame is not None


def raises_otherwise(frame: FrameType | None, answer: bool) -> bool:
    """The frame is about to follow `answer`. Would it raise with the other answer, and would
    neither the user's code nor Python itself catch that?"""
    raised = _find_raising(frame.f_code).get((frame.f_lasti, not answer)) if frame else None
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


def is_caught_above(frame: FrameType, error: Exception) -> bool:
    """May an exception that leaves the frame be caught by the user's code, or by Python itself?"""
    callers = list(_callers(frame))
    if isinstance(error, _find_told([each.f_code.co_name for each in (frame, *callers)])):
        return True
    return any(is_caught(each, each.f_lasti, type(error)) for each in callers)


def find_catching(kind: type[BaseException]) -> Location | None:
    """Where the user's code is sure to catch an exception of this class, if what runs now raises
    it, and to go on; None: nowhere."""
    above: FrameType | None = sys._getframe(1)
    found: Location | None = None
    while above is not None and above.f_code not in OUTERMOST:
        if found is None and is_user_code(above.f_code):
            line = handlers.find_catching(above, above.f_lasti, kind)
            if line is not None:
                found = Location(above.f_code.co_filename, line, above.f_code.co_name)
        above = above.f_back
    return None if above is None else found


def _find_told(functions: list[str]) -> tuple[type[Exception], ...]:
    """The exceptions to which Python itself reacts: a loop ends with `StopIteration`, or with the
    `IndexError` of a `__getitem__`, and `hasattr` is False."""
    told: tuple[type[Exception], ...] = (StopIteration, StopAsyncIteration, AttributeError)
    return (*told, LookupError) if "__getitem__" in functions else told


def _is_pythons(names: tuple[str, ...], frame: FrameType, functions: list[str]) -> bool:
    """Does Python itself react to such an exception?"""
    told = _find_told(functions)
    found = [frame.f_globals.get(name, frame.f_builtins.get(name)) for name in names]
    return any(isinstance(each, type) and issubclass(each, told) for each in found)


def way_on(frame: FrameType | None) -> bool | None:
    """The answer with which the frame goes on, if it raises with the other one; else None."""
    ways = [answer for answer in (True, False) if raises_otherwise(frame, answer)]
    return ways[0] if len(ways) == 1 else None


def asked_after(frame: FrameType | None, answer: bool) -> frozenset[int]:
    """Find where the later parts of a condition are asked: `if a != 1 and b != 1 and a != b:
    raise`.

    With `answer` the next part is asked, and one of them may still say that nothing is raised. With
    the other answer no further part is asked, and nothing is raised either. Empty if the frame is
    in no such condition."""
    return _find_moot(frame.f_code).get((frame.f_lasti, answer), _NOWHERE) if frame else _NOWHERE


_NOWHERE: frozenset[int] = frozenset()


class _Step(NamedTuple):
    """An instruction, as far as it matters here."""

    name: str
    offset: int
    target: object
    jumps_if: bool | None
    """The truth on which it jumps, if it asks one."""
    asks: bool
    """May it be this one that asks for the truth on which the next jumps?"""


@cached_by_identity(1000)
def _find_moot(code: CodeType) -> dict[tuple[int, bool], frozenset[int]]:
    steps = _steps(code)
    found: dict[tuple[int, bool], frozenset[int]] = {}
    for i, jumps_if, asked in _jumps(steps):
        later = _only_asks_on(steps[i + 1 : i + _LONGEST], steps[i].target)
        if later:
            found.update({(offset, not jumps_if): later for offset in asked})
    return found


def _only_asks_on(steps: list[_Step], way_out: object) -> frozenset[int]:
    """Find where these steps ask, if they only look at things and ask, each time with the same way
    out, until they raise."""
    later: list[int] = []
    is_looking = True
    for i, step in enumerate(steps):
        if step.name == "RAISE_VARARGS":
            return frozenset(later)
        if step.jumps_if is not None:
            if not is_looking or step.target != way_out:
                return _NOWHERE
            later += _find_asking(steps, i)
        elif _goes_elsewhere(step):
            return _NOWHERE
        else:
            is_looking = is_looking and step.name.startswith(_LOOKING)
    return _NOWHERE


_LOOKING = (
    "LOAD_",
    "BINARY_",
    "COMPARE_",
    "UNARY_",
    "TO_BOOL",
    "IS_OP",
    "CONTAINS_OP",
    "EXTENDED_",
)


class _Raised(NamedTuple):
    offset: int
    names: tuple[str, ...]
    """The globals that are read on the way there: the exception's class is one of them."""


@cached_by_identity(1000)
def _find_raising(code: CodeType) -> dict[tuple[int, bool], _Raised]:
    """For each place where a truth is asked, and each answer after which the code raises: where it
    raises."""
    steps = _steps(code)
    places: dict[object, int] = {step.offset: i for i, step in enumerate(steps)}
    found: dict[tuple[int, bool], _Raised] = {}
    for i, jumps_if, asked in _jumps(steps):
        for start, answer in ((places.get(steps[i].target), jumps_if), (i + 1, not jumps_if)):
            end = None if start is None else _raised_at(steps[start : start + _LONGEST])
            if end is not None:
                found.update({(offset, answer): end for offset in asked})
    return found


@cached_by_identity(1000)
def _steps(code: CodeType) -> list[_Step]:
    """Its instructions; none if it never raises, as then no answer leads there."""
    if _RAISE not in code.co_code[::2]:
        return []
    raw = [s for s in dis.get_instructions(code) if s.opname != "CACHE"]
    steps: list[_Step] = []
    for i, each in enumerate(raw):
        name, jumps_if = each.opname, None
        if "POP_JUMP" in name and name.endswith(("IF_TRUE", "IF_FALSE")):
            jumps_if = name.endswith("IF_TRUE")
        last = steps[-1] if steps else None
        if (
            name.startswith("JUMP_BACKWARD")
            and last is not None
            and last.jumps_if is not None
            and i + 1 < len(raw)
            and last.target == raw[i + 1].offset
        ):  # since Python 3.12 no jump on a truth goes back: it jumps over one that does
            steps[-1] = last._replace(target=each.argval, jumps_if=not last.jumps_if)
            continue
        # From Python 3.13 on these ask.
        asks = name == "TO_BOOL" or (name == "COMPARE_OP" and each.argrepr.startswith("bool("))
        steps.append(_Step(name, each.offset, each.argval, jumps_if, asks))
    return steps


def _jumps(steps: list[_Step]) -> Iterator[tuple[int, bool, list[int]]]:
    """Yield each step that jumps on a truth, the truth on which it jumps, and where it is asked."""
    for i, step in enumerate(steps):
        if step.jumps_if is not None:
            yield i, step.jumps_if, _find_asking(steps, i)


def _find_asking(steps: list[_Step], i: int) -> list[int]:
    """Where the truth on which this step jumps may be asked."""
    return [steps[i].offset, *[s.offset for s in steps[max(i - 1, 0) : i] if s.asks]]


def _raised_at(steps: list[_Step]) -> _Raised | None:
    """Where these steps raise, if they go there without a branch."""
    names: list[str] = []
    for step in steps:
        if step.name == "RAISE_VARARGS":
            return _Raised(step.offset, tuple(names))
        if _goes_elsewhere(step):
            return None
        if step.name in _GLOBAL:
            names.append(str(step.target))
    return None


def _goes_elsewhere(step: _Step) -> bool:
    ends = ("RETURN", "YIELD", "SEND", "RERAISE")
    return dis.opmap.get(step.name) in _JUMPS or step.name.startswith(ends)


_RAISE = dis.opmap["RAISE_VARARGS"]
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
