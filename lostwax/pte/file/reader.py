"""Reads `.pte` files as tables, by their description. The file is taken as hostile.

No length, offset, index or text of it is trusted: what a program refers to by index is there.
Nothing of it is run. Must not know what to do with a program.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from lostwax.errors import LoadError
from lostwax.pte.file.schema import HEADER, HEADER_SIZE, IDENTIFIER, IN_SEGMENT, MOST_DIMS
from lostwax.pte.file.tables import TableReader


@dataclass(frozen=True)
class File:
    """A file: its program as nested dicts, each with the name of its table under "", and where its
    segments lie."""

    program: dict[str, Any]
    segments: tuple[tuple[int, int], ...]
    """Where each segment begins in the file, and its bytes."""
    size: int

    @property
    def data_size(self) -> int:
        """The bytes of all segments; what lies in two of them counts once."""
        total = end = 0
        for start, size in sorted(self.segments):
            total += max(0, start + size - max(start, end))
            end = max(end, start + size)
        return total


def read_file(data: bytes) -> File:
    """Read the bytes of a file; a `LoadError` says what is wrong with them."""
    reader = TableReader(data)
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


def _read_header(reader: TableReader) -> tuple[int, int] | None:
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
    _check_data(program, len(segments))
    constants = len(offsets["offsets"] or ())
    starts = [len(p["offsets"] or ()) for _, p in pools[1:]]
    for plan in program["execution_plan"] or ():
        _check_plan(plan, constants, starts[0] if starts else 0)


def _check_data(program: dict[str, Any], segments: int) -> None:
    """Check that the data of delegates is there."""
    inline = len(program["backend_delegate_data"] or ())
    for named in program["named_data"] or ():
        if named["key"] is None or named["segment_index"] >= segments:
            raise LoadError(f"the data {named['key']!r} is in a segment that is not there")
    for plan in program["execution_plan"] or ():
        for delegate in plan["delegates"] or ():
            data = delegate["processed"] or {"location": IN_SEGMENT, "index": segments}
            limit = segments if data["location"] == IN_SEGMENT else inline
            if delegate["id"] is None or data["index"] >= limit:
                raise LoadError(
                    f"the delegate {delegate['id']!r} has its data at {data['index']} of {limit}",
                    (f"method {plan['name']!r}",),
                )


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
