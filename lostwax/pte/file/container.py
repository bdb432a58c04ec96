"""The file around the flatbuffer: its header, and the segments with weights behind it.

Must not know what a program is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from lostwax.pte.file.flat import Table, write_table
from lostwax.pte.file.schema import (
    HEADER,
    HEADER_SIZE,
    IDENTIFIER,
    WEIGHTS_HEADER,
    WEIGHTS_HEADER_SIZE,
    WEIGHTS_IDENTIFIER,
)

SEGMENT_ALIGNMENT = 128
DATA_ALIGNMENT = 16


def round_up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


class Piece(NamedTuple):
    """Bytes and where they begin."""

    offset: int
    data: Any


class Pool:
    """One segment: pieces of data, each at an aligned offset. The first is a reserved one."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.offsets = [0]
        self.size = 0

    def add(self, data: Any) -> int:
        """Add a piece of data; return its index."""
        offset = round_up(self.size, DATA_ALIGNMENT)
        self.pieces.append(Piece(offset, data))
        self.offsets.append(offset)
        self.size = offset + len(data)
        return len(self.offsets) - 1


class Within(NamedTuple):
    """A segment that is a piece of the first one: data that is read in two ways is there once."""

    offset: int
    size: int


def write_file(fields: dict[str, Any], pools: Sequence[Pool | Within]) -> list[Any]:
    """The whole file: a program with these fields, and a segment for each pool. It comes in chunks,
    which are written one after the other: data is not copied."""
    segments, at = [], 0
    starts = []
    for pool in pools:
        if isinstance(pool, Within):
            segments.append(Table("DataSegment", pool._asdict()))
            continue
        at = round_up(at, SEGMENT_ALIGNMENT)
        starts.append(at)
        segments.append(Table("DataSegment", {"offset": at, "size": pool.size}))
        at += pool.size
    flat = write_table(Table("Program", {**fields, "segments": segments}), IDENTIFIER)
    size = len(flat) + HEADER_SIZE
    base = round_up(size, SEGMENT_ALIGNMENT)
    (root,) = struct.unpack_from("<I", flat)
    header = HEADER + struct.pack("<IQQQ", HEADER_SIZE, size, base, at)
    head = [struct.pack("<I", root + HEADER_SIZE), flat[4:8], header, flat[8:]]
    pieces = [
        Piece(base + start + offset, data)
        for start, pool in zip(starts, (p for p in pools if isinstance(p, Pool)), strict=True)
        for offset, data in pool.pieces
    ]
    return _line_up(head, pieces, base + at)


def write_weights(named: Sequence[Table], pool: Pool) -> bytes:
    """The file of weights beside a program: each piece of the pool is a segment of its own."""
    segments = [
        Table("DataSegment", {"offset": piece.offset, "size": len(piece.data)})
        for piece in pool.pieces
    ]
    root = Table("FlatTensor", {"segments": segments, "named_data": list(named)})
    flat = write_table(root, WEIGHTS_IDENTIFIER)
    room = round_up(WEIGHTS_HEADER_SIZE, DATA_ALIGNMENT)
    base = round_up(len(flat) + room, SEGMENT_ALIGNMENT)
    (at,) = struct.unpack_from("<I", flat)
    header = WEIGHTS_HEADER + struct.pack(
        "<IQQQQ", WEIGHTS_HEADER_SIZE, room, len(flat), base, pool.size
    )
    head = [struct.pack("<I", at + room), flat[4:8], header.ljust(room, b"\0"), flat[8:]]
    pieces = [Piece(base + offset, data) for offset, data in pool.pieces]
    return b"".join(_line_up(head, pieces, base + pool.size))


def _line_up(head: Sequence[bytes], pieces: Sequence[Piece], size: int) -> list[Any]:
    """The head, and each piece at its offset."""
    parts: list[Any] = list(head)
    written = sum(map(len, head))
    for offset, data in pieces:
        parts += [bytes(offset - written), data]
        written = offset + len(data)
    parts.append(bytes(size - written))
    return parts
