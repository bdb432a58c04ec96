"""How Python writes code into bytes: instructions, and the table of what catches exceptions.

Everything is counted in units of two bytes, as jumps and tables count. Must not know what any
instruction does.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from typing import NamedTuple


def find_units(operations: bytes, operation: int) -> Iterator[int]:
    """Yield where an instruction stands, of code without its arguments (`co_code[::2]`)."""
    at = operations.find(operation)
    while at >= 0:
        yield at
        at = operations.find(operation, at + 1)


def read_argument(written: bytes, at: int) -> tuple[int, int]:
    """Where an instruction begins, and its argument. The bytes of it that do not fit into one stand
    in front, in instructions of their own."""
    start = at
    while start and written[2 * start - 2] == dis.EXTENDED_ARG:
        start -= 1
    return start, int.from_bytes(written[2 * start + 1 : 2 * at + 2 : 2], "big")


def write_instruction(operation: int, argument: int) -> bytes:
    before = write_instruction(dis.EXTENDED_ARG, argument >> 8) if argument >> 8 else b""
    return before + bytes((operation, argument & 255))


class Guarded(NamedTuple):
    """A part of code from which exceptions go to a handler."""

    start: int
    length: int
    handler: int
    depth: int
    """Of the stack, and whether the handler is told where it was raised."""


def read_guarded(table: bytes) -> list[Guarded]:
    """Read `co_exceptiontable`: four numbers an entry, each in groups of six bits, of which all but
    its last are marked."""
    numbers, number = list[int](), 0
    for byte in table:
        number = number << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(number)
            number = 0
    return [Guarded(*numbers[i : i + 4]) for i in range(0, len(numbers), 4)]


def write_guarded(entries: Iterable[Guarded]) -> bytes:
    """The first byte of an entry has a mark of its own."""
    table = bytearray()
    for entry in entries:
        first = len(table)
        for number in entry:
            table += _write_high(number >> 6) if number >= 64 else b""
            table.append(number & 0x3F)
        table[first] |= 0x80
    return bytes(table)


def _write_high(number: int) -> bytes:
    """The groups of a number before its last."""
    before = _write_high(number >> 6) if number >= 64 else b""
    return before + bytes((number & 0x3F | 0x40,))
