"""What the other side of an `if` would do, read off the bytecode of who asks.

`if size == 1: raise ValueError(...)` is no choice between two ways: where it does not hold, eager
raises. Nothing depends on the answer but how a guard is called. Layer 0: imports nothing of the
house but `location`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from lostwax.location import is_user_code

_LONGEST = 80  # instructions of a side that raises


OUTERMOST: set[CodeType] = set()
"""What calls the user's program: who catches exceptions above it is no part of that."""


def raises_otherwise(frame: FrameType | None, answer: bool) -> bool:
    """Does the frame, about to follow `answer`, raise if it is the other one, with nobody in the
    user's code to catch it?"""
    raised_at = _raising(frame.f_code).get((frame.f_lasti, not answer)) if frame else None
    if frame is None or raised_at is None or _is_caught(frame.f_code, raised_at):
        return False
    above = frame.f_back
    while above is not None and above.f_code not in OUTERMOST:
        if is_user_code(above.f_code) and _is_caught(above.f_code, above.f_lasti):
            return False
        above = above.f_back
    return True


def way_on(frame: FrameType | None) -> bool | None:
    """The answer with which the frame goes on, where with the other one it raises."""
    ways = [answer for answer in (True, False) if raises_otherwise(frame, answer)]
    return ways[0] if len(ways) == 1 else None


def is_moot(frame: FrameType | None, answer: bool) -> bool:
    """Is the frame in a condition of several parts (`if a != 1 and b != 1 and a != b: raise`), of
    which a later one is to say that nothing is raised? With `answer` that one is asked next; with
    the other answer it is not, and nothing is raised either."""
    return frame is not None and (frame.f_lasti, answer) in _moot(frame.f_code)


class _Step(NamedTuple):
    """An instruction, as far as it matters here."""

    name: str
    offset: int
    target: object
    jumps_if: bool | None
    """The truth on which it jumps, if it asks one."""
    asks: bool
    """May it be this one that asks for the truth on which the next jumps?"""


@lru_cache(maxsize=256)
def _moot(code: CodeType) -> frozenset[tuple[int, bool]]:
    steps = _steps(code)
    return frozenset(
        (offset, not jumps_if)
        for i, jumps_if, asked in _jumps(steps)
        if _only_asks_on(steps[i + 1 : i + _LONGEST], steps[i].target)
        for offset in asked
    )


def _only_asks_on(steps: list[_Step], way_out: object) -> bool:
    """Do these steps only look at things and ask, each time with the same way out, until they
    raise?"""
    asks = False
    is_looking = True
    for step in steps:
        if step.name == "RAISE_VARARGS":
            return asks
        if step.jumps_if is not None:
            if not is_looking or step.target != way_out:
                return False
            asks = True
        elif _goes_elsewhere(step):
            return False
        else:
            is_looking = is_looking and step.name.startswith(_LOOKING)
    return False


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


@lru_cache(maxsize=256)
def _raising(code: CodeType) -> dict[tuple[int, bool], int]:
    """Where a truth is asked, and for which answer what follows raises: where it does."""
    steps = _steps(code)
    places: dict[object, int] = {step.offset: i for i, step in enumerate(steps)}
    found: dict[tuple[int, bool], int] = {}
    for i, jumps_if, asked in _jumps(steps):
        for start, answer in ((places.get(steps[i].target), jumps_if), (i + 1, not jumps_if)):
            end = None if start is None else _raised_at(steps[start : start + _LONGEST])
            if end is not None:
                found.update({(offset, answer): end for offset in asked})
    return found


def _steps(code: CodeType) -> list[_Step]:
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
    """Which steps jump on a truth, on which one, and where it is asked."""
    for i, step in enumerate(steps):
        if step.jumps_if is not None:
            asked = [step.offset]
            if i and steps[i - 1].asks:
                asked.append(steps[i - 1].offset)
            yield i, step.jumps_if, asked


def _raised_at(steps: list[_Step]) -> int | None:
    """Where these steps raise, if they go straight there."""
    for step in steps:
        if step.name == "RAISE_VARARGS":
            return step.offset
        if _goes_elsewhere(step):
            return None
    return None


def _goes_elsewhere(step: _Step) -> bool:
    ends = ("RETURN", "YIELD", "SEND", "RERAISE")
    return dis.opmap.get(step.name) in _JUMPS or step.name.startswith(ends)


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _is_caught(code: CodeType, offset: int) -> bool:
    """May an exception from here be caught in this code? The end of a `with` passes it on."""
    return any(
        start <= offset < end and not _ends_with_block(code, handler)
        for start, end, handler in _handlers(code)
    )


@lru_cache(maxsize=256)
def _handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    return tuple(_parsed(code.co_exceptiontable))


def _parsed(table: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end, handler) of each entry: numbers of six bits a byte, the first with a mark."""
    rest = iter(table)
    for first in rest:
        numbers = [_number(first, rest), *(_number(next(rest), rest) for _ in range(3))]
        start, length, handler = (2 * n for n in numbers[:3])
        yield start, start + length, handler


def _number(byte: int, rest: Iterator[int]) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(rest)
        value = value << 6 | byte & 63
    return value


@lru_cache(maxsize=256)
def _ends_with_block(code: CodeType, handler: int) -> bool:
    steps: Any = (s for s in dis.get_instructions(code) if s.offset >= handler)
    names = [s.opname for _, s in zip(range(2), steps, strict=False)]
    return names == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]
