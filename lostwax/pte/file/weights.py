"""Reads `.ptd` files: weights beside a program, by their names. The file is taken as hostile.

Must not know of programs.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.pte.file.schema import (
    DTYPES,
    MOST_DIMS,
    WEIGHTS_HEADER,
    WEIGHTS_HEADER_SIZE,
    WEIGHTS_IDENTIFIER,
)
from lostwax.pte.file.tables import TableReader

_DTYPES = {number: dtype for dtype, number in DTYPES.items()}


def load_weights(file: str | os.PathLike[str] | bytes) -> dict[str, torch.Tensor]:
    """The weights of a `.ptd` file by their names, given by its path or as bytes. Data that is said
    to be no tensor, as backends have it, comes as bytes (uint8). All lie in one memory: what the
    file has once for two names is one."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            file = opened.read()
    data = bytes(file)
    reader = TableReader(data)
    base, room = _read_header(reader)
    root = reader.number("u32", 0, "the offset of the weights")
    table = reader.table(root, "FlatTensor", "the weights", 0)
    segments = []
    for i, segment in enumerate(table["segments"] or ()):
        if segment["offset"] + segment["size"] > room:
            raise LoadError(f"segment {i} does not lie in the file", ("segments",))
        segments.append((base + segment["offset"], segment["size"]))
    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    found: dict[str, torch.Tensor] = {}
    for entry in table["named_data"] or ():
        name, index = entry["key"], entry["segment_index"]
        if name is None or name in found:
            raise LoadError("a weight has no name" if name is None else f"{name!r} is there twice")
        if index >= len(segments):
            raise LoadError(f"{name!r} is in segment {index}, of {len(segments)}")
        start, count = segments[index]
        found[name] = _read_tensor(name, entry["tensor_layout"], whole[start : start + count])
    return found


def _read_header(reader: TableReader) -> tuple[int, int]:
    """Where the segments begin, and the bytes of all of them."""
    data = reader.data
    if len(data) < 8 or data[4:8] != WEIGHTS_IDENTIFIER:
        found = bytes(data[4:8])
        raise LoadError(f"not a .ptd file: its identifier is {found!r}, not {WEIGHTS_IDENTIFIER!r}")
    if len(data) < 8 + WEIGHTS_HEADER_SIZE or data[8:12] != WEIGHTS_HEADER:
        raise LoadError("the file has no header, or ends in it")
    length, start, size, base, room = struct.unpack_from("<IQQQQ", data, 12)
    if length < WEIGHTS_HEADER_SIZE:
        raise LoadError(f"the header says that it has {length} bytes, not {WEIGHTS_HEADER_SIZE}")
    if start + size > len(data) or base + room > len(data):
        end = max(start + size, base + room)
        raise LoadError(f"the file has {len(data):,} bytes; its header speaks of {end:,}")
    reader.end = start + size
    return base, room


def _read_tensor(name: str, layout: dict[str, Any] | None, data: torch.Tensor) -> torch.Tensor:
    if layout is None:
        return data
    size, order = layout["sizes"] or [], list(layout["dim_order"] or b"")
    dtype = _DTYPES.get(layout["scalar_type"])
    if dtype is None:
        raise LoadError(f"{name!r} is of the unknown dtype {layout['scalar_type']}")
    is_size = len(size) <= MOST_DIMS and all(s >= 0 for s in size)
    if not is_size or sorted(order) != [*range(len(size))]:
        raise LoadError(f"{name!r} is no tensor: sizes {size}, dim order {order}")
    nbytes = math.prod(size) * dtype.itemsize
    if nbytes != data.nbytes:
        raise LoadError(f"{name!r} has {data.nbytes:,} bytes; its sizes speak of {nbytes:,}")
    if data.storage_offset() % dtype.itemsize:
        raise LoadError(f"{name!r} begins at byte {data.storage_offset():,}, between two numbers")
    if dtype is torch.bool and bool((data > 1).any()):
        raise LoadError(f"{name!r} has truths that are neither 0 nor 1")
    laid_out = data.view(dtype).view([size[d] for d in order])
    return laid_out.permute([order.index(d) for d in range(len(size))])
