"""Writes tables by their description, with the builder of the `flatbuffers` library.

A table is a `Table`: its name and its fields. Equal lists of numbers and equal texts are written
once. Must not know what the tables mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import flatbuffers
import numpy

from lostwax.pte.file.schema import SCALARS, TABLES, Fields


class Table(NamedTuple):
    """A table to write. Fields that are not given have their default, which takes no room."""

    name: str
    fields: dict[str, Any]


_PREPEND = {
    "bool": "PrependBoolSlot",
    "i8": "PrependInt8Slot",
    "u8": "PrependUint8Slot",
    "i16": "PrependInt16Slot",
    "i32": "PrependInt32Slot",
    "u32": "PrependUint32Slot",
    "i64": "PrependInt64Slot",
    "u64": "PrependUint64Slot",
    "f32": "PrependFloat32Slot",
    "f64": "PrependFloat64Slot",
}


def _number_slots(fields: Fields) -> list[tuple[int, str, str]]:
    """The fields of a table as slot, name and kind."""
    slots, slot = [], 0
    for field, kind in fields:
        slots.append((slot, field, kind))
        slot += 2 if kind.startswith("|") else 1
    return slots


class TableForm:
    """The tables that there may be in a flatbuffer, ready to be written. `absent` says what fields
    are that are not there, by their names, if that is not 0; `aligned` which fields of bytes lie
    at multiples of what."""

    def __init__(
        self,
        tables: Mapping[str, Fields],
        absent: Mapping[str, Any] | None = None,
        aligned: Mapping[str, int] | None = None,
    ) -> None:
        self.absent, self.aligned = absent or {}, aligned or {}
        self.slots = {name: _number_slots(fields) for name, fields in tables.items()}
        self.counts = {
            name: sum(2 if kind.startswith("|") else 1 for _, kind in fields)
            for name, fields in tables.items()
        }


PROGRAM = TableForm(TABLES)


def write_table(root: Table, identifier: bytes, form: TableForm = PROGRAM) -> bytes:
    """The flatbuffer with this root."""
    writer = _FlatWriter(form)
    writer.builder.Finish(writer.write(root), file_identifier=identifier)
    return bytes(writer.builder.Output())


class _FlatWriter:
    def __init__(self, form: TableForm) -> None:
        self.form = form
        self.builder: Any = flatbuffers.Builder(1 << 16)
        self.shared: dict[Any, int] = {}

    def write(self, table: Table) -> int:
        """Write what the table refers to, then the table; return where it is."""
        builder, ready = self.builder, []
        fields = table.fields
        for slot, name, kind in self.form.slots[table.name]:
            value = fields.get(name)
            if value is None:
                continue
            if kind in SCALARS:
                if value != self.form.absent.get(name, 0):
                    ready.append((slot, kind, value))
            elif kind[0] == "|":
                ready.append((slot, "u8", kind[1:].split().index(value.name) + 1))
                ready.append((slot + 1, "", self.write(value)))
            elif name in self.form.aligned:
                ready.append((slot, "", self._write_bytes(value, self.form.aligned[name])))
            elif kind[0] == "[":
                ready.append((slot, "", self._write_list(value, kind[1:-1])))
            elif kind == "str":
                ready.append((slot, "", self._write_text(value)))
            else:
                ready.append((slot, "", self.write(value)))
        builder.StartObject(self.form.counts[table.name])
        for slot, kind, value in ready:
            if kind:
                getattr(builder, _PREPEND[kind])(slot, value, not value)
            else:
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(builder.EndObject())

    def _write_bytes(self, data: Any, alignment: int) -> int:
        builder, count = self.builder, len(data)
        builder.StartVector(1, count, alignment)
        if count:
            builder.head -= count
            builder.Bytes[builder.head : builder.head + count] = data
        return int(builder.EndVector())

    def _write_text(self, text: str) -> int:
        key = ("str", text)
        if key not in self.shared:
            self.shared[key] = self.builder.CreateString(text)
        return self.shared[key]

    def _write_list(self, items: Any, kind: str) -> int:
        if kind in SCALARS:
            return self._write_numbers(items, kind)
        offsets = [self.write(item) for item in items]
        builder = self.builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def _write_numbers(self, items: Any, kind: str) -> int:
        letter = SCALARS[kind][0]
        array = numpy.array(items, dtype=f"<{letter}" if letter not in "?bB" else letter)
        key = (kind, array.tobytes())
        if key not in self.shared:
            if len(items):
                self.shared[key] = self.builder.CreateNumpyVector(array)
            else:
                self.builder.StartVector(*_EMPTY[kind])
                self.shared[key] = self.builder.EndVector()
        return self.shared[key]


_EMPTY = {kind: (size, 0, size) for kind, (_, size) in SCALARS.items()}
