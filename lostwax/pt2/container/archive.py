"""The container of a `.pt2`, for reading: a zip file whose records lie in one folder.

A file is mapped, copy on write; a record that is stored plainly is a window into it. Every length
and offset of the directory is checked before it is used, and records are found by name only. Must
not know what the records mean.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from lostwax.checkpoints.mapped import map_file
from lostwax.errors import LoadError
from lostwax.location import user_location
from lostwax.pt2.container.foreign import describe_bytes, describe_records
from lostwax.pt2.limits import MAX_NAME, MAX_RECORDS, expansion

_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_ENTRY = struct.Struct("<IHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_STORED, _DEFLATED = 0, 8


class Record(NamedTuple):
    """Where the bytes of a record lie in the file."""

    offset: int
    stored: int
    size: int
    method: int
    crc: int


class Archive:
    """An open archive: `records` by name, without the folder they lie in."""

    def __init__(self, source: str | os.PathLike[str] | IO[bytes] | bytes | memoryview) -> None:
        self.name, self.buffer = _open(source)
        self.view = memoryview(self.buffer)
        self.size = len(self.view)
        self._left = expansion(self.size)
        self._expanded: dict[str, bytearray] = {}
        try:
            self.records = _records(self.view)
        except LoadError as error:
            raise LoadError(error.message, (self.name,)) from None

    def __contains__(self, name: str) -> bool:
        return name in self.records

    def under(self, folder: str) -> Iterator[str]:
        """The names below a folder, without it."""
        for name in self.records:
            if name.startswith(folder):
                yield name[len(folder) :]

    def record(self, name: str) -> Record:
        found = self.records.get(name)
        if found is None:
            raise LoadError(f"the archive has no record {name!r}")
        return found

    def read(self, name: str, limit: int | None = None) -> bytes:
        """The bytes of a small record, checked against its checksum."""
        size = self.record(name).size
        if limit is not None and size > limit:
            raise LoadError(f"{name} has {size} bytes, more than the {limit} allowed")
        return bytes(self.check(name))

    def check(self, name: str) -> bytes | memoryview:
        """The bytes of any record, checked."""
        record = self.record(name)
        data = self._view_stored(record) if record.method == _STORED else self._expand(name, record)
        if zlib.crc32(data) != record.crc:
            raise LoadError(f"{name} is damaged: its checksum is not what the archive says")
        return data

    def window(self, name: str) -> tuple[Any, int, int]:
        """A buffer, and the offset and length of the record in it. The buffer is the file itself if
        the record is not compressed."""
        record = self.record(name)
        if record.method == _STORED:
            return self.buffer, record.offset, record.size
        if name not in self._expanded:
            self._expanded[name] = bytearray(self._expand(name, record))
        return self._expanded[name], 0, record.size

    def _view_stored(self, record: Record) -> memoryview:
        return self.view[record.offset : record.offset + record.size]

    def _expand(self, name: str, record: Record) -> bytes:
        if record.size > self._left:
            raise LoadError(
                f"{name} would expand to {record.size} bytes: too much for a file of {self.size}"
            )
        self._left -= record.size
        packed = self.view[record.offset : record.offset + record.stored]
        machine = zlib.decompressobj(-15)
        try:
            data = machine.decompress(packed, record.size + 1)
        except zlib.error as error:
            raise LoadError(f"{name} cannot be expanded: {error}") from None
        if len(data) != record.size:
            raise LoadError(f"{name} does not expand to the {record.size} bytes it should have")
        return data


def _open(source: Any) -> tuple[str, Any]:
    """A name for messages, and the bytes, which are mapped if it is a file on disk."""
    if isinstance(source, memoryview):
        return "the buffer", source
    if isinstance(source, (bytes, bytearray)):
        return "the buffer", bytearray(source)
    if hasattr(source, "read"):
        return str(getattr(source, "name", "the buffer")), _read(source)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"load reads a path or a file that is open for bytes, not an object of type "
            f"{type(source).__name__}\n"
            '  why: a .pt2 file is an archive\n  instead: lostwax.load("model.pt2")'
        )
    path = os.fspath(source)
    with _open_file(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return str(path), bytearray()
        return str(path), map_file(path)


def _open_file(path: Any) -> IO[bytes]:
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        error.add_note(f"  at {user_location()}")
        error.add_note(f"  why: there is no such file in {os.path.abspath(os.path.dirname(path))}")
        error.add_note("  instead: lostwax.save(program, path) writes it")
        raise


def _read(source: Any) -> bytearray:
    data = source.read()
    if not isinstance(data, (bytes, bytearray)):
        raise TypeError("load reads a path or a file that is open for bytes, not for text")
    if not data and source.seekable() and source.tell():
        raise LoadError(
            "there is nothing behind the present position of this file\n"
            "  fix: file.seek(0) first, to where the archive begins"
        )
    return bytearray(data)


# ------------------------------------------------------------------------------------ the directory


def _records(view: memoryview) -> dict[str, Record]:
    count, start, end = _directory(view)
    found: dict[str, Record] = {}
    folder: str | None = None
    position = start
    for i in range(count):
        try:
            name, record, position = _entry(view, position, end, start)
        except (struct.error, UnicodeDecodeError, IndexError):
            raise LoadError(f"entry {i} of the archive's directory is damaged") from None
        top, slash, rest = name.partition("/")
        if folder is None:
            folder = top
        if not slash:
            raise LoadError(describe_records([name]))
        if top != folder:
            raise LoadError(f"the record {name!r} is not in the archive's folder {folder!r}")
        if rest in found:
            raise LoadError(f"the archive has two records {rest!r}")
        if not rest.endswith("/"):  # a folder of its own
            found[_check_name(rest)] = record
    _check_apart(found, start)
    return found


def _directory(view: memoryview) -> tuple[int, int, int]:
    """How many entries the directory has, where it begins and ends."""
    tail = bytes(view[max(0, len(view) - _END.size - 0xFFFF) :])
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise LoadError(describe_bytes(view))
    _, _, _, _, count, size, start, _ = _END.unpack_from(tail, at)
    end = len(view) - len(tail) + at
    if end >= _LOCATOR.size:
        mark, _, where, _ = _LOCATOR.unpack_from(view, end - _LOCATOR.size)
        if mark == 0x07064B50:
            if where + _END64.size > end:
                raise LoadError("the end of the archive is damaged: its zip64 part is not there")
            mark, _, _, _, _, _, _, count, size, start = _END64.unpack_from(view, where)
            if mark != 0x06064B50:
                raise LoadError("the end of the archive is damaged: its zip64 part is not there")
            end = where
    if start + size > end:
        raise LoadError("the archive is cut off, or its directory lies outside of it")
    if count > MAX_RECORDS or count * _ENTRY.size > size:
        raise LoadError(f"the archive's directory cannot have {count} entries")
    return count, start, start + size


def _entry(view: memoryview, at: int, end: int, limit: int) -> tuple[str, Record, int]:
    if at + _ENTRY.size > end:
        raise IndexError
    fields = _ENTRY.unpack_from(view, at)
    mark, flags, method = fields[0], fields[3], fields[4]
    crc, stored, size, name_size, extra_size, note_size = fields[7:13]
    header = fields[16]
    stop = at + _ENTRY.size + name_size + extra_size
    if mark != 0x02014B50 or stop + note_size > end or name_size > MAX_NAME:
        raise IndexError
    name = bytes(view[at + _ENTRY.size : stop - extra_size]).decode("utf-8")
    if 0xFFFFFFFF in (stored, size, header):
        extra = bytes(view[stop - extra_size : stop])
        size, stored, header = _wide(extra, size, stored, header)
    if flags & 1 or method not in (_STORED, _DEFLATED):
        raise LoadError(f"the record {name!r} is encrypted, or compressed in an unknown way")
    if method == _STORED and stored != size:
        raise LoadError(f"the record {name!r} has two different sizes")
    offset = _payload(view, header, limit)
    if offset + stored > limit:
        raise LoadError(f"the record {name!r} reaches beyond the archive")
    return name, Record(offset, stored, size, method, crc), stop + note_size


def _wide(extra: bytes, size: int, stored: int, header: int) -> tuple[int, int, int]:
    """Replace the fields that are too small for their values by the 64-bit values, in their
    order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = list(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            wide = [values.pop(0) if v == 0xFFFFFFFF else v for v in (size, stored, header)]
            return wide[0], wide[1], wide[2]
        at += 4 + length
    raise IndexError


def _payload(view: memoryview, header: int, limit: int) -> int:
    """Where the bytes behind a local header begin."""
    if header + _LOCAL.size > limit:
        raise IndexError
    fields = _LOCAL.unpack_from(view, header)
    if fields[0] != 0x04034B50:
        raise IndexError
    return header + _LOCAL.size + int(fields[9]) + int(fields[10])


def _check_name(name: str) -> str:
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise LoadError(f"the record name {name!r} is not a plain path")
    return name


def _check_apart(records: dict[str, Record], end: int) -> None:
    """Check that no byte belongs to two records: a file cannot hold more than it has."""
    last, before = 0, ""
    for name, record in sorted(records.items(), key=lambda item: item[1].offset):
        if record.stored and record.offset < last:
            raise LoadError(f"the records {before!r} and {name!r} overlap")
        if record.stored:
            last, before = record.offset + record.stored, name
