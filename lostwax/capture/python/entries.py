"""Code that tells when it begins: a copy of a function's code with one more call in front.

So a capture learns of the functions that run, each before its first line, and pays nothing for the
others. The call stands before the function's own first instruction, where Python hides the frame:
nobody who looks at frames, lines or signatures sees a difference. Must not know who is told.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType
from typing import Any

from lostwax.cache import cached


def add_call(code: CodeType, call: Callable[[], Any]) -> CodeType:
    """The code, which first calls this. The call is its last constant."""
    front = _BEFORE + write_step(_LOAD_CONST, len(code.co_consts)) + _AFTER
    units = len(front) // 2
    table = code.co_exceptiontable
    return code.replace(
        co_code=front + code.co_code,
        co_consts=(*code.co_consts, call),
        co_stacksize=max(code.co_stacksize, _STACK),
        co_linetable=_no_lines(units) + code.co_linetable,
        co_exceptiontable=move_handlers(table, units.__add__) if table else table,
    )


def write_step(operation: int, argument: int) -> bytes:
    """An instruction. The bytes of an argument that does not fit into one stand in front."""
    before = write_step(dis.EXTENDED_ARG, argument >> 8) if argument >> 8 else b""
    return before + bytes((operation, argument & 255))


def _call_it(call: Callable[[], Any]) -> None:
    call()


def _cut_call() -> tuple[bytes, bytes]:
    """What Python makes of a call: the instructions before and after the one that loads what is
    called."""
    code, found = _call_it.__code__.co_code, [*dis.get_instructions(_call_it)]
    start, load, end = (
        next(each.offset for each in found if each.opname.startswith(name))
        for name in ("RESUME", "LOAD_FAST", "POP_TOP")
    )
    return code[start + 2 : load], code[load + 2 : end + 2]


_LOAD_CONST = dis.opmap["LOAD_CONST"]
_BEFORE, _AFTER = _cut_call()
_STACK = _call_it.__code__.co_stacksize


# ------------------------------------------------------------------------ the tables of a code


@cached(10)
def _no_lines(units: int) -> bytes:
    """Entries for instructions that have no line; each is for at most eight."""
    full, rest = divmod(units, 8)
    return b"\xff" * full + (bytes((0xF8 | rest - 1,)) if rest else b"")


def move_handlers(table: bytes, move: Callable[[int], int]) -> bytes:
    """What is guarded, and where its handler is, lies elsewhere. An entry has four numbers: start,
    length, handler, depth; each is written in groups of six bits. The first byte of an entry is
    marked."""
    moved, number, entry = bytearray(), 0, list[int]()
    for byte in table:
        number = number << 6 | byte & 0x3F
        if byte & 0x40:
            continue
        entry.append(number)
        number = 0
        if len(entry) == 4:
            start, length, handler, depth = entry
            first, at = move(start), len(moved)
            for each in (first, move(start + length) - first, move(handler), depth):
                moved += _write_high(each >> 6) if each >= 64 else b""
                moved.append(each & 0x3F)
            moved[at] |= 0x80
            entry = []
    return bytes(moved)


def _write_high(number: int) -> bytes:
    """The groups of a number before its last; each says that more follow."""
    before = _write_high(number >> 6) if number >= 64 else b""
    return before + bytes((number & 0x3F | 0x40,))
