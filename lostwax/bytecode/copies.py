"""Copies of code with more instructions in it; nobody who looks at frames, lines or signatures sees
a difference.

Must not know what is put in. Layer 0.
"""

from __future__ import annotations

import dis
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from types import CodeType
from typing import Any, NamedTuple

from lostwax.bytecode import Guarded, find_units, read_argument, read_guarded
from lostwax.cache import cached

# ---------------------------------------------------------------------------------------- the bytes


def write_instruction(operation: int, argument: int) -> bytes:
    before = write_instruction(dis.EXTENDED_ARG, argument >> 8) if argument >> 8 else b""
    return before + bytes((operation, argument & 255))


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


# ------------------------------------------------------------------------------- a call in front


def add_call(code: CodeType, call: Callable[[], Any]) -> CodeType:
    """The code, which first calls this. The call is its last constant, and stands before the
    code's own first instruction, where Python hides the frame."""
    front = _BEFORE + write_instruction(_LOAD_CONST, len(code.co_consts)) + _AFTER
    units = len(front) // 2
    table = code.co_exceptiontable
    return code.replace(
        co_code=front + code.co_code,
        co_consts=(*code.co_consts, call),
        co_stacksize=max(code.co_stacksize, _STACK),
        co_linetable=_no_lines(units) + code.co_linetable,
        co_exceptiontable=_move_handlers(table, units.__add__) if table else table,
    )


def _call_it(call: Callable[[], Any]) -> None:
    call()


def _cut(function: Any, *beginnings: str) -> list[bytes]:
    """The instructions of a function, as Python makes them: cut before and behind each that is the
    first to begin with one of these names."""
    found, parts, last = [*dis.get_instructions(function)], list[bytes](), 0
    offsets = [each.offset for each in found]
    for name in beginnings:
        i = next(i for i, each in enumerate(found) if each.opname.startswith(name))
        parts += [function.__code__.co_code[last : offsets[i]]]
        parts += [function.__code__.co_code[offsets[i] : (last := offsets[i + 1])]]
    return parts


_LOAD_CONST = dis.opmap["LOAD_CONST"]
_, _, _BEFORE, _, *_REST = _cut(_call_it, "RESUME", "LOAD_FAST", "POP_TOP")
_AFTER, _STACK = b"".join(_REST), _call_it.__code__.co_stacksize


@cached(10)
def _no_lines(units: int) -> bytes:
    """Entries for instructions that have no line; each is for at most eight."""
    full, rest = divmod(units, 8)
    return b"\xff" * full + (bytes((0xF8 | rest - 1,)) if rest else b"")


def _move_handlers(table: bytes, move: Callable[[int], int]) -> bytes:
    """What is guarded, and where its handler is, lies elsewhere."""
    return write_guarded(
        Guarded(first := move(start), move(start + length) - first, move(handler), depth)
        for start, length, handler, depth in read_guarded(table)
    )


# ------------------------------------------------------------------------------ longer instructions


class Replacement(NamedTuple):
    """What stands for instructions, up to this one."""

    end: int
    steps: bytes


class _Jump(NamedTuple):
    start: int
    at: int
    """Where its instruction is, behind a part of the argument."""
    origin: int
    """From where it is counted, behind what Python keeps there."""
    target: int


def _read_jump(written: bytes, at: int) -> _Jump:
    (start, distance), origin = read_argument(written, at), at + 1
    while written[2 * origin : 2 * origin + 1] == _KEPT:
        origin += 1
    is_back = "BACKWARD" in dis.opname[written[2 * at]]
    return _Jump(start, at, origin, origin - distance if is_back else origin + distance)


_JUMPING = bytes(each in dis.hasjrel for each in range(256))
_KEPT, _NOTHING = bytes((dis.opmap["CACHE"],)), bytes((dis.EXTENDED_ARG, 0))


def put_in(code: CodeType, new: Mapping[int, Replacement]) -> CodeType:
    """The code with longer pieces in the places of some units; jumps lead where they led."""
    written, before = code.co_code, dict[int, bytes]()
    ends = {at: each.end for at, each in new.items()}
    pieces = {at: each.steps for at, each in new.items()}
    jumps = [_read_jump(written, at) for at in find_units(written[::2].translate(_JUMPING), 1)]
    while pieces != before:  # a jump that is longer may itself need more bytes
        before = {**pieces}
        grown = {at: len(each) // 2 - (ends[at] - at) for at, each in pieces.items()}
        moved = _Moved(grown)
        for start, at, origin, target in jumps:
            made = write_instruction(written[2 * at], abs(moved(target) - moved(origin)))
            least = len(pieces.get(start, written[2 * start : 2 * at + 2]))
            pieces[start], ends[start] = _NOTHING * ((least - len(made)) // 2) + made, at + 1
    result, last = bytearray(), 0
    for at in sorted(pieces):
        result += written[2 * last : 2 * at] + pieces[at]
        last = ends[at]
    return code.replace(
        co_code=bytes(result + written[2 * last :]),
        co_linetable=_move_lines(code.co_linetable, grown),
        co_exceptiontable=_move_handlers(code.co_exceptiontable, moved),
    )


class _Moved:
    """Where the units of a code lie, if instructions grow by so many units."""

    def __init__(self, grown: Mapping[int, int]) -> None:
        self._places = sorted(grown)
        self._more = [0, *accumulate([grown[at] for at in self._places])]

    def __call__(self, unit: int) -> int:
        return unit + self._more[bisect_left(self._places, unit)]


def _move_lines(table: bytes, grown: Mapping[int, int]) -> bytes:
    """The table of lines and columns, if instructions grow. An entry is for at most eight units;
    its first byte is marked, and has its kind and for how many it is."""
    ends, more = [*accumulate(table.translate(_UNITS))], dict[int, int]()
    for unit, count in grown.items():
        if count:
            head = bisect_right(ends, unit)
            more[head] = more.get(head, 0) + count
    made, last = bytearray(), 0
    for head in sorted(more):
        made += table[last:head]
        last = bisect_right(ends, ends[head])
        kind, place = table[head] >> 3 & 15, table[head + 1 : last]
        left = (table[head] & 7) + 1 + more[head]
        while left:
            made += bytes((0x80 | kind << 3 | min(left, 8) - 1,)) + place
            left -= min(left, 8)
            kind, place = _repeat_place(kind, place)
    return bytes(made + table[last:])


_UNITS = bytes((byte & 7) + 1 if byte & 0x80 else 0 for byte in range(256))


def _repeat_place(kind: int, place: bytes) -> tuple[int, bytes]:
    """The same place once more: lines are counted from the entry before."""
    if kind in (13, 14):  # the line is the first number, in groups of six bits
        last = next(i for i, byte in enumerate(place) if not byte & 0x40)
        return kind, b"\0" + place[last + 1 :]
    return (10 if kind in (11, 12) else kind), place
