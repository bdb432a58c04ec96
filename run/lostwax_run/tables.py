"""Reads tables of a flatbuffer, a field when it is asked for. Whatever the bytes are, nothing
outside of them is read, and what is wrong with them is a `FileError`. Must not know what tables
mean."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from lostwax_run.errors import FileError

Bytes = memoryview
P = ParamSpec("P")
T = TypeVar("T")


def reading(read: Callable[P, T]) -> Callable[P, T]:
    """What is read lies in the bytes, or the file is damaged."""

    @wraps(read)
    def safe(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
            raise FileError(
                "the file is damaged: its tables point outside of it\n  instead: write it again"
            ) from error

    return safe


class Table:
    """A table at a place of a flatbuffer; fields are asked for by their slots."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: Bytes, at: int) -> None:
        self._data, self._at = data, at
        fields = at - _read(data, "i", at)
        size = _read(data, "H", fields)
        self._fields = _format(f"<{max(size - 4, 0) // 2}H").unpack_from(data, fields + 4)

    def number(self, slot: int, letter: str, default: int | float = 0) -> int | float:
        at = self._find(slot)
        return _read(self._data, letter, at) if at else default

    def integer(self, slot: int, letter: str, default: int = 0) -> int:
        return int(self.number(slot, letter, default))

    def has(self, slot: int) -> bool:
        return bool(self._find(slot))

    def table(self, slot: int) -> Table | None:
        at = self._find(slot)
        return Table(self._data, self._follow(at)) if at else None

    def text(self, slot: int) -> str:
        at, count = self.span(slot)
        if at and self._data[at + count]:  # C++ reads to the zero behind it
            raise IndexError(at)
        return bytes(self._data[at : at + count]).decode()

    def numbers(self, slot: int, letter: str) -> tuple[int, ...]:
        at, count = self.span(slot)
        return _format(f"<{count}{letter}").unpack_from(self._data, at) if count else ()

    def tables(self, slot: int) -> Iterator[Table]:
        at, count = self.span(slot)
        for place in range(at, at + 4 * count, 4):
            yield Table(self._data, self._follow(place))

    def row(self, slot: int, index: int) -> Table:
        """One of a list of tables."""
        at, count = self.span(slot)
        if not 0 <= index < count:
            raise IndexError(index)
        return Table(self._data, self._follow(at + 4 * index))

    def count(self, slot: int) -> int:
        return self.span(slot)[1]

    def _find(self, slot: int) -> int:
        at = self._fields[slot] if slot < len(self._fields) else 0
        return self._at + at if at else 0

    def _follow(self, at: int) -> int:
        return at + int(_read(self._data, "I", at))

    def span(self, slot: int) -> tuple[int, int]:
        """Where the items of a list begin, and how many there are."""
        at = self._find(slot)
        if not at:
            return 0, 0
        at = self._follow(at)
        count = int(_read(self._data, "I", at))
        if count > len(self._data):
            raise IndexError(count)
        return at + 4, count


@lru_cache(256)
def _format(text: str) -> struct.Struct:
    return struct.Struct(text)


def _read(data: Bytes, letter: str, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    value: int = _format(f"<{letter}").unpack_from(data, at)[0]
    return value
