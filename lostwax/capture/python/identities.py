"""`one is other` in the user's functions: a copy of a function's code that asks us.

Python compares the objects, and tells nobody. But a number that is not known is another object than
the one that it stands for, `flag is True`; and of two tensors data may decide whether they are one.
So in the copy the comparison is `(one, other) in ASKED`. `x is None` stays as it is. The bytes are
exchanged, and not the source (`flow/rewriting`): that would have to be read and compiled, for
functions most of which compare no number. Must not know who wants the answer.
"""

from __future__ import annotations

import dis
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import is_not
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor

from lostwax.capture import threads
from lostwax.capture.python.entries import move_handlers, write_step
from lostwax.classes import SYMBOLIC
from lostwax.fake.symbolic.objects import are_one_object
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)
_SYMBOLIC: frozenset[type] = frozenset(SYMBOLIC)


def is_same(one: Any, other: Any) -> Any:
    """`one is other`: a truth, symbolic where data or sizes decide it. Refused for tensors, if it
    is so on one side of an `if` only."""
    if type(one) in _SYMBOLIC or type(other) in _SYMBOLIC:
        return are_one_object(one, other) if threads.is_capturing() else one is other
    are_two = one is not other and isinstance(one, Tensor) and isinstance(other, Tensor)
    if are_two and FakeTensor in (type(one), type(other)) and threads.is_capturing():
        threads.running[-1].check_apart(one, other)
    return one is other


class _Asked:
    def __contains__(self, pair: tuple[Any, Any]) -> Any:
        return is_same(*pair)  # Python makes a truth of it


ASKED = _Asked()


def ask_identities(code: CodeType) -> CodeType:
    """The code, and those of the functions in it, with questions for comparisons of objects; itself
    if there is none that can be of numbers or tensors."""
    constants = code.co_consts
    if CodeType in map(type, constants):
        inner = tuple([ask_identities(c) if type(c) is CodeType else c for c in constants])
        if any(map(is_not, inner, constants)):
            code, constants = code.replace(co_consts=inner), inner
    written = code.co_code
    found = [at for at in _find(written, _COMPARING) if _may_matter(written, at, constants)]
    if not found:
        return code
    ask = _TUPLE + write_step(_LOAD_CONST, len(constants)) + _IN[:1]
    new = {at: ask + written[2 * at + 1 : 2 * at + 2] + _IN[2:] for at in found}
    return _put_in(code, new).replace(co_consts=(*constants, ASKED))


def _find(written: bytes, marks: bytes) -> Iterator[int]:
    """Where these instructions are, in units of two bytes, as jumps and tables count."""
    marked = written[::2].translate(marks)
    at = marked.find(1)
    while at >= 0:
        yield at
        at = marked.find(1, at + 1)


def _may_matter(written: bytes, at: int, constants: tuple[Any, ...]) -> bool:
    """Is it no comparison with a constant that is no number? (`x is None`.)"""
    if written[2 * at - 2] != _LOAD_CONST:
        return True
    return type(constants[_read_argument(written, at - 1)[1]]) in (bool, int, float)


def _read_argument(written: bytes, at: int) -> tuple[int, int]:
    """Where an instruction begins, and its argument: of that stands in front what does not fit."""
    start = at
    while start and written[2 * start - 2] == dis.EXTENDED_ARG:
        start -= 1
    return start, int.from_bytes(written[2 * start + 1 : 2 * at + 2 : 2], "big")


def _contain(one: Any, other: Any) -> bool:
    return one in other


def _cut_in() -> bytes:
    """What Python makes of `in`: the instruction, and what it keeps behind it."""
    found = [*dis.get_instructions(_contain)]
    (i,) = [i for i, each in enumerate(found) if each.opname == "CONTAINS_OP"]
    return _contain.__code__.co_code[found[i].offset : found[i + 1].offset]


_LOAD_CONST = dis.opmap["LOAD_CONST"]
_TUPLE, _IN = write_step(dis.opmap["BUILD_TUPLE"], 2), _cut_in()
_COMPARING, _JUMPING = (
    bytes(each in marked for each in range(256)) for marked in ([dis.opmap["IS_OP"]], dis.hasjrel)
)


# ------------------------------------------------------------------------------ longer instructions


class _Jump(NamedTuple):
    start: int
    at: int
    """Where its instruction is, behind a part of the argument."""
    origin: int
    """From where it is counted, behind what Python keeps there."""
    target: int


def _read_jump(written: bytes, at: int) -> _Jump:
    (start, distance), origin = _read_argument(written, at), at + 1
    while written[2 * origin : 2 * origin + 1] == _KEPT:
        origin += 1
    is_back = "BACKWARD" in dis.opname[written[2 * at]]
    return _Jump(start, at, origin, origin - distance if is_back else origin + distance)


_KEPT, _NOTHING = bytes((dis.opmap["CACHE"],)), bytes((dis.EXTENDED_ARG, 0))


def _put_in(code: CodeType, pieces: dict[int, bytes]) -> CodeType:
    """The code with longer instructions in the places of some; jumps lead where they led."""
    written, ends, before = code.co_code, {at: at + 1 for at in pieces}, dict[int, bytes]()
    jumps = [_read_jump(written, at) for at in _find(written, _JUMPING)]
    while pieces != before:  # a jump that is longer may itself need more bytes
        before = {**pieces}
        grown = {at: len(each) // 2 - (ends[at] - at) for at, each in pieces.items()}
        moved = _Moved(grown)
        for start, at, origin, target in jumps:
            made = write_step(written[2 * at], abs(moved(target) - moved(origin)))
            least = len(pieces.get(start, written[2 * start : 2 * at + 2]))
            pieces[start], ends[start] = _NOTHING * ((least - len(made)) // 2) + made, at + 1
    result, last = bytearray(), 0
    for at in sorted(pieces):
        result += written[2 * last : 2 * at] + pieces[at]
        last = ends[at]
    return code.replace(
        co_code=bytes(result + written[2 * last :]),
        co_linetable=_move_lines(code.co_linetable, grown),
        co_exceptiontable=move_handlers(code.co_exceptiontable, moved),
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
