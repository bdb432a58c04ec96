"""Which values of a `.pte` file another one shows, by the memory that it lies in.

A view has no instruction: it is one more value in the same bytes.
"""

from __future__ import annotations

import math
from typing import Any

from lostwax.pte.file.schema import DTYPES

_BYTES = {number: dtype.itemsize for dtype, number in DTYPES.items()}


class Writers:
    """The tensors that were written last, so far, in each piece of memory."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self._outside: set[int] = set()
        """Those that are written to memory that the caller gives."""
        self._inside: dict[int, list[tuple[int, int, int]]] = {}
        """For each arena: from which byte to which, and the tensor that was written there."""
        self._read: set[int] = set()

    def read(self, index: int) -> None:
        self._read.update(self.find(index))

    def write(self, index: int) -> None:
        self._read.discard(index)
        place = self._locate(index)
        if place is None:
            self._outside.add(index)
            return
        arena, begin, end = place
        left = [(begin, end, index)]
        for a, b, other in self._inside.get(arena, ()):
            left += [(x, y, other) for x, y in ((a, min(b, begin)), (max(a, end), b)) if x < y]
        self._inside[arena] = left

    def find(self, index: int) -> list[int]:
        """The tensors that were written where this one lies, itself or others; none, if all of it
        was there before the first instruction."""
        place = self._locate(index)
        if place is None:
            return [index] if index in self._outside else []
        arena, begin, end = place
        written = sorted(self._inside.get(arena, ()))
        return list(dict.fromkeys(other for a, b, other in written if a < end and begin < b))

    def may_be_written(self, index: int) -> bool:
        """Whether a step that does not say so may write it: nobody has, and what lies there was
        read before. (What was never read is there for this step to read.)"""
        is_planned = self.values[index]["allocation_info"] is not None
        sources = self.find(index)
        return is_planned and index not in sources and self._read.issuperset(sources)

    def _locate(self, index: int) -> tuple[int, int, int] | None:
        value = self.values[index]
        place, size = value["allocation_info"], tensor_bytes(value)
        if place is None or not size:
            return None
        begin = place["memory_offset_low"] + (place["memory_offset_high"] << 32)
        return place["memory_id"], begin, begin + size


def tensor_bytes(value: dict[str, Any]) -> int:
    """The bytes of a tensor, at its greatest sizes."""
    return math.prod(value["sizes"] or ()) * _BYTES.get(value["scalar_type"], 1)
