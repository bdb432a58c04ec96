"""Which code catches an exception, read off the bytecode.

A `try` does, and so may a `with`: `contextlib.suppress`. Layer 0: imports nothing of the house but
`cache`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import nullcontext
from types import CodeType, FrameType
from typing import Any

from lostwax.cache import cached, cached_by_identity


def is_caught(frame: FrameType, offset: int) -> bool:
    """May an exception from here be caught in this frame?"""
    return any(
        start <= offset < end and not _is_passed_on(frame, handler)
        for start, end, handler in _handlers(frame.f_code)
    )


def _is_passed_on(frame: FrameType, handler: int) -> bool:
    """Is it the end of a `with` whose manager passes exceptions on?"""
    path = _manager(frame.f_code, handler)
    if path is None:
        return False
    name, *attributes = path
    made: Any = frame.f_globals.get(name)
    for each in attributes:
        made = getattr(made, each, None)
    if str(getattr(made, "__module__", "")).partition(".")[0] == "torch" or made is nullcontext:
        return True
    left = getattr(made, "__exit__", None) if isinstance(made, type) else None
    code = getattr(left, "__code__", None)
    return code is not None and _is_never_true(code)


@cached_by_identity(1000)
def _is_never_true(code: CodeType) -> bool:
    """Does the function return None or False at every `return`? (A generator does not tell.)"""
    steps = _instructions(code)
    for i, step in enumerate(steps):
        if step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            said = step if step.opname == "RETURN_CONST" else steps[i - 1]
            is_constant = said.opname in ("LOAD_CONST", "RETURN_CONST")
            if not is_constant or said.argval not in (None, False):
                return False
    return not code.co_flags & _GENERATOR


_GENERATOR = 0x20 | 0x80 | 0x200  # of any kind


@cached(1000)
def _manager(code: CodeType, handler: int) -> tuple[str, ...] | None:
    """What the `with` that ends here calls to make its manager: a global name and attributes of it,
    `torch.no_grad`. None if it is no `with`, or calls nothing so simple."""
    steps = _instructions(code)
    names = [s.opname for s in steps if s.offset >= handler][:2]
    if names != ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
        return None
    start = min(start for start, _, each in _handlers(code) if each == handler)
    before = [s for s in steps if s.offset < start and s.opname != "NOP"]
    if [s.opname for s in before[-2:]] != ["CALL", "BEFORE_WITH"]:
        return None
    begins = _begins(before[-2])
    path: list[str] = []
    for step in reversed(before[:-2]):
        if begins is None or _begins(step) != begins:
            continue
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            return (step.argval, *reversed(path))
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(step.argval)
        elif step.opname not in ("PRECALL", "KW_NAMES", "PUSH_NULL"):
            return None
    return None


def _begins(step: dis.Instruction) -> tuple[int, int] | None:
    """Where in the source the expression that the step belongs to begins."""
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None
    return at.lineno, at.col_offset


@cached_by_identity(1000)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [s for s in dis.get_instructions(code) if s.opname != "CACHE"]


@cached_by_identity(1000)
def _handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    return tuple(_parse_table(code.co_exceptiontable))


def _parse_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, handler) of each entry. A number has six bits a byte; the first byte of an
    entry has a mark."""
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
