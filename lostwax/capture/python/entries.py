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
    front = _BEFORE + _load_constant(len(code.co_consts)) + _AFTER
    units = len(front) // 2
    table = code.co_exceptiontable
    return code.replace(
        co_code=front + code.co_code,
        co_consts=(*code.co_consts, call),
        co_stacksize=max(code.co_stacksize, _STACK),
        co_linetable=_no_lines(units) + code.co_linetable,
        co_exceptiontable=_shift_handlers(table, units) if table else table,
    )


def _load_constant(index: int) -> bytes:
    if index < 256:
        return bytes((_LOAD_CONST, index))
    return _extend(index >> 8) + bytes((_LOAD_CONST, index & 255))


def _extend(high: int) -> bytes:
    """The bytes of an argument that does not fit into one stand in front."""
    before = _extend(high >> 8) if high >> 8 else b""
    return before + bytes((dis.EXTENDED_ARG, high & 255))


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


def _shift_handlers(table: bytes, units: int) -> bytes:
    """What is guarded, and where its handler is, lies further back by so much. An entry has four
    numbers: start, length, handler, depth; each is written in groups of six bits. The first byte
    of an entry is marked."""
    shifted, number, field = bytearray(), 0, 0
    for byte in table:
        number = number << 6 | byte & 0x3F
        if byte & 0x40:
            continue
        if not field & 1:
            number += units
        start = len(shifted)
        if number >= 64:
            shifted += _write_high(number >> 6)
        shifted.append(number & 0x3F)
        if field == 0:
            shifted[start] |= 0x80
        number, field = 0, (field + 1) & 3
    return bytes(shifted)


def _write_high(number: int) -> bytes:
    """The groups of a number before its last; each says that more follow."""
    before = _write_high(number >> 6) if number >= 64 else b""
    return before + bytes((number & 0x3F | 0x40,))
