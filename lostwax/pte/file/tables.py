"""Reads the tables of a flatbuffer, by their description, from a file that is taken as hostile.

Every byte that is read lies in the file; tables are read at most so deep and so many as a real
program needs. Must not know what the tables mean.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from lostwax.errors import LoadError
from lostwax.pte.file.schema import SCALARS, TABLES, Fields

MOST_TABLES = 4_000_000
MOST_ITEMS = 16_000_000
DEEPEST = 16

_ABSENT: dict[str, Any] = {**dict.fromkeys(SCALARS, 0), "bool": False}
"""What a field is that is not there; else None."""


class TableReader:
    """Reads tables of one file. `absent` says what fields are that are not there, by their names,
    if that is not 0."""

    def __init__(
        self,
        data: bytes,
        tables: Mapping[str, Fields] = TABLES,
        absent: Mapping[str, Any] | None = None,
    ) -> None:
        self.data = data
        self.forms, self.absent = tables, absent or {}
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
        for field, kind in self.forms[name]:
            place = f"{field} of {what}"
            where = self._slot(vtable, size, slot)
            if kind[0] == "|":
                value = self._slot(vtable, size, slot + 1)
                found[field] = self._union(at, where, value, kind, place, depth)
                slot += 1
            elif not where:
                found[field] = self.absent.get(field, _ABSENT.get(kind))
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
