"""Reads `.pte` files as tables, by their description. The file is taken as hostile.

No length, offset, index or text of it is trusted: every byte that is read lies in the file, tables
are read at most so deep and so many as a real program needs, and what a program refers to by index
is there. Nothing of it is run. Must not know what to do with a program.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from lostwax.errors import LoadError
from lostwax.pte.file.schema import HEADER, HEADER_SIZE, IDENTIFIER, MOST_DIMS, SCALARS, TABLES

MOST_TABLES = 4_000_000
MOST_ITEMS = 16_000_000
DEEPEST = 16


@dataclass(frozen=True)
class File:
    """A file: its program as nested dicts, each with the name of its table under "", and where its
    segments lie."""

    program: dict[str, Any]
    segments: tuple[tuple[int, int], ...]
    """Where each segment begins in the file, and its bytes."""
    size: int


def read_file(data: bytes) -> File:
    """Read the bytes of a file; a `LoadError` says what is wrong with them."""
    reader = _Reader(data)
    header = _read_header(reader)
    root = reader.number("u32", 0, "the offset of the program")
    program = reader.table(root, "Program", "the program", 0)
    base, room = header if header is not None else (0, 0)
    segments = []
    for i, segment in enumerate(program["segments"] or ()):
        if segment["offset"] + segment["size"] > room:
            raise LoadError(f"segment {i} does not lie in the file", ("segments",))
        segments.append((base + segment["offset"], segment["size"]))
    _check_program(program, segments)
    return File(program, tuple(segments), len(data))


def _read_header(reader: _Reader) -> tuple[int, int] | None:
    """Where the segments begin, and the bytes of all of them; None if there is no header."""
    data = reader.data
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        found = bytes(data[4:8])
        raise LoadError(f"not a .pte file: its identifier is {found!r}, not {IDENTIFIER!r}")
    if data[8:12] != HEADER:
        return None
    if len(data) < 8 + HEADER_SIZE:
        raise LoadError("the file ends in its header")
    length, size, base, room = struct.unpack_from("<IQQQ", data, 12)
    if length < HEADER_SIZE:
        raise LoadError(f"the header says that it has {length} bytes; it has {HEADER_SIZE}")
    if size > len(data) or base > len(data) or base + room > len(data):
        raise LoadError(
            f"the file has {len(data):,} bytes; its header speaks of {max(size, base + room):,}"
        )
    reader.end = size
    return base, room


_ABSENT: dict[str, Any] = {**dict.fromkeys(SCALARS, 0), "bool": False}
"""What a field is that is not there; else None."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.end = len(data)
        """Where the tables end; behind them are segments."""
        self.tables = 0
        self.items = 0

    def number(self, kind: str, at: int, what: str) -> Any:
        letter, size = SCALARS[kind]
        self._require(at, size, what)
        return struct.unpack_from(f"<{letter}", self.data, at)[0]

    def _require(self, at: int, size: int, what: str) -> None:
        if at < 0 or at + size > self.end:
            raise LoadError(f"{what} does not lie in the file: byte {at:,} of {self.end:,}")

    def table(self, at: int, name: str, what: str, depth: int) -> dict[str, Any]:
        self.tables += 1
        if self.tables > MOST_TABLES or depth > DEEPEST:
            raise LoadError(f"{what}: more tables, or deeper, than a program has")
        vtable = at - self.number("i32", at, what)
        self._require(vtable, 4, what)
        size = struct.unpack_from("<H", self.data, vtable)[0]
        self._require(vtable, size, what)
        found: dict[str, Any] = {"": name}
        slot = 0
        for field, kind in TABLES[name]:
            place = f"{field} of {what}"
            where = self._slot(vtable, size, slot)
            if kind[0] == "|":
                value = self._slot(vtable, size, slot + 1)
                found[field] = self._union(at, where, value, kind, place, depth)
                slot += 1
            elif not where:
                found[field] = _ABSENT.get(kind)
            else:
                found[field] = self._field(at + where, kind, place, depth)
            slot += 1
        return found

    def _slot(self, vtable: int, size: int, slot: int) -> int:
        at = 4 + 2 * slot
        if at + 2 > size:
            return 0
        return int(struct.unpack_from("<H", self.data, vtable + at)[0])

    def _union(
        self, at: int, tag_at: int, value_at: int, kind: str, what: str, depth: int
    ) -> dict[str, Any]:
        names = kind[1:].split()
        tag = self.number("u8", at + tag_at, what) if tag_at else 0
        if not 1 <= tag <= len(names) or not value_at:
            raise LoadError(f"{what} is of the unknown kind {tag}")
        return self.table(self._follow(at + value_at, what), names[tag - 1], what, depth + 1)

    def _follow(self, at: int, what: str) -> int:
        return at + int(self.number("u32", at, what))

    def _field(self, at: int, kind: str, what: str, depth: int) -> Any:
        if kind in SCALARS:
            return self.number(kind, at, what)
        at = self._follow(at, what)
        if kind == "str":
            return self._text(at, what)
        if kind[0] != "[":
            return self.table(at, kind, what, depth + 1)
        item = kind[1:-1]
        count = self.number("u32", at, what)
        self.items += count
        if self.items > MOST_ITEMS:
            raise LoadError(f"{what}: more items than a program has")
        at += 4
        size = SCALARS[item][1] if item in SCALARS else 4
        self._require(at, count * size, what)
        if item == "u8":
            return self.data[at : at + count]
        if item in SCALARS:
            return list(struct.unpack_from(f"<{count}{SCALARS[item][0]}", self.data, at))
        return [self._item(at + 4 * i, item, f"{what}[{i}]", depth + 1) for i in range(count)]

    def _item(self, at: int, item: str, what: str, depth: int) -> Any:
        at = self._follow(at, what)
        return self._text(at, what) if item == "str" else self.table(at, item, what, depth)

    def _text(self, at: int, what: str) -> str:
        count = self.number("u32", at, what)
        self._require(at + 4, count, what)
        try:
            return self.data[at + 4 : at + 4 + count].decode()
        except UnicodeDecodeError:
            raise LoadError(f"{what} is no text") from None


# ------------------------------------------------------------------------------- references


def _check_program(program: dict[str, Any], segments: list[tuple[int, int]]) -> None:
    offsets = program["constant_segment"] or {"segment_index": 0, "offsets": []}
    pools = [("constant_segment", offsets)]
    pools += [("mutable_data_segments", p) for p in program["mutable_data_segments"] or ()]
    for name, pool in pools:
        if pool["offsets"] and pool["segment_index"] >= len(segments):
            raise LoadError(f"{name} is in segment {pool['segment_index']}, which is not there")
        room = segments[pool["segment_index"]][1] if pool["offsets"] else 0
        if any(o > room for o in pool["offsets"] or ()):
            raise LoadError(f"{name} has data outside of its segment")
    constants = len(offsets["offsets"] or ())
    starts = [len(p["offsets"] or ()) for _, p in pools[1:]]
    for plan in program["execution_plan"] or ():
        _check_plan(plan, constants, starts[0] if starts else 0)


def _check_plan(plan: dict[str, Any], constants: int, starts: int) -> None:
    name = plan["name"]
    if name is None:
        raise LoadError("a method has no name")
    where = (f"method {name!r}",)
    values = plan["values"] or []
    count = len(values)

    def check(index: int, limit: int, what: str) -> None:
        if not 0 <= index < limit:
            raise LoadError(f"{what} {index} is not there: there are {limit}", where)

    for field in ("inputs", "outputs"):
        for index in plan[field] or ():
            check(index, count, f"the value of {field},")
    sizes = plan["non_const_buffer_sizes"] or []
    if any(size < 0 for size in sizes):
        raise LoadError("an arena has a negative size", where)
    for i, value in enumerate(values):
        _check_value(value["val"], i, count, where, (constants, starts), sizes)
    for chain in plan["chains"] or ():
        steps = chain["instructions"] or []
        for step in steps:
            _check_step(step["instr_args"], plan, len(steps), check)


def _check_value(
    value: dict[str, Any],
    at: int,
    count: int,
    where: tuple[str, ...],
    data: tuple[int, int],
    sizes: list[int],
) -> None:
    kind = value[""]
    if kind in ("IntList", "TensorList", "OptionalTensorList"):
        least = -1 if kind == "OptionalTensorList" else 0
        if any(not least <= i < count for i in value["items"] or ()):
            raise LoadError(f"value {at}, a list, has an item that is not there", where)
    if kind != "Tensor":
        return
    dims = value["sizes"] or []
    order = list(value["dim_order"] or b"")
    if len(dims) > MOST_DIMS or any(d < 0 for d in dims) or sorted(order) != [*range(len(dims))]:
        raise LoadError(f"value {at} is no tensor: sizes {dims}, dim order {order}", where)
    place = value["allocation_info"]
    limit = data[1] if place is not None else data[0]
    if value["data_buffer_idx"] and value["data_buffer_idx"] >= limit:
        raise LoadError(f"value {at} has its data at {value['data_buffer_idx']} of {limit}", where)
    if place is not None and not 1 <= place["memory_id"] < len(sizes):
        raise LoadError(f"value {at} lies in arena {place['memory_id']}, which is not there", where)


def _check_step(step: dict[str, Any], plan: dict[str, Any], steps: int, check: Any) -> None:
    count = len(plan["values"] or ())
    kind = step[""]
    if kind == "KernelCall":
        check(step["op_index"], len(plan["operators"] or ()), "operator")
    elif kind == "DelegateCall":
        check(step["delegate_index"], len(plan["delegates"] or ()), "delegate")
    elif kind == "JumpFalseCall":
        check(step["destination_instruction"], steps + 1, "instruction")
    indices = {"MoveCall": ("move_from", "move_to"), "JumpFalseCall": ("cond_value_index",)}
    for field in (*indices.get(kind, ()), *(("value_index",) if kind == "FreeCall" else ())):
        check(step[field], count, "value")
    for index in step.get("args") or ():
        check(index, count, "value")
