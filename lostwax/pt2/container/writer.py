"""The container of a `.pt2`, for writing: a zip file, streamed, each payload aligned so that it can
be mapped.

Checksums of large payloads are computed by a second thread while the first one writes; the headers
get them at the end. The same records give the same bytes: no times, no names of this machine.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from threading import Thread
from typing import IO, Any, NamedTuple

from lostwax.checkpoints.mapped import PART, is_mapped, write_parts

_ALIGNMENT = 64
_FOLDER = "archive"
_LARGE = 1 << 20
_DATE = 0x21  # the first of January 1980: zip has no earlier day
_UTF8 = 0x800
_BIG = 0xFFFFFFFF
LENGTH = struct.Struct("<2sHQ")
LENGTH_MARK = (b"LW", 8)
"""The extra field of the first record with the length of the whole file, by which a file that was
cut off can be told how long it should be."""


class _ZipEntry(NamedTuple):
    name: bytes
    header: int
    size: int
    crcs: list[int]
    """Of each part, as far as they are known."""


class Writer:
    """Writes records one after the other into a file that can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._start = file.tell()
        self._at = 0
        self._entries: list[_ZipEntry] = []
        self._checksums = _Checksums()

    def add(self, name: str, data: bytes | memoryview) -> None:
        """Write one record. Its bytes must not change before `close`."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        path = f"{_FOLDER}/{name}".encode()
        small, mapped = len(view) < _LARGE, is_mapped(view)
        crcs = [zlib.crc32(view)] if small else [] if mapped else self._checksums.order(view)
        entry = _ZipEntry(path, self._at, len(view), crcs)
        self._entries.append(entry)
        self._put(_local_header(entry, crcs[0] if small else 0))
        if small or not mapped:
            self._put(view)
        else:  # while its pages are there
            write_parts(self._file, view, lambda part: crcs.append(zlib.crc32(part)))
            self._at += len(view)

    def checksums(self) -> list[tuple[str, int]]:
        """The name and checksum of each record so far."""
        self._checksums.finish()
        return [(entry.name.decode(), _join_checksums(entry)) for entry in self._entries]

    def close(self) -> None:
        """Write the directory, and the checksums and the length that were not known when headers
        were written."""
        self._checksums.finish()
        directory = b"".join(_directory_entry(e, _join_checksums(e)) for e in self._entries)
        start = self._at
        self._put(directory)
        self._put(_end(len(self._entries), start, len(directory)))
        for entry in self._entries:
            if entry.size >= _LARGE:
                self._file.seek(self._start + entry.header + 14)
                self._file.write(struct.pack("<I", _join_checksums(entry)))
        for first in self._entries[:1]:
            self._file.seek(self._start + 30 + len(first.name))
            self._file.write(LENGTH.pack(*LENGTH_MARK, self._at))
        self._file.seek(self._start + self._at)

    def abandon(self) -> None:
        """Stop: the bytes may change again from now on."""
        self._checksums.abandon()

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._at += len(data)


def _local_header(entry: _ZipEntry, crc: int) -> bytes:
    wide = struct.pack("<HHQQ", 1, 16, entry.size, entry.size) if entry.size >= _BIG else b""
    length = b"" if entry.header else LENGTH.pack(*LENGTH_MARK, 0)
    fixed = 30 + len(entry.name) + len(length) + len(wide) + 4
    padding = -(entry.header + fixed) % _ALIGNMENT
    extra = length + wide + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    size = min(entry.size, _BIG)
    version = 45 if wide else 20
    fields = (0x04034B50, version, _UTF8, 0, 0, _DATE, crc, size, size)
    return struct.pack("<IHHHHHIIIHH", *fields, len(entry.name), len(extra)) + entry.name + extra


def _directory_entry(entry: _ZipEntry, crc: int) -> bytes:
    wide = struct.pack("<QQ", entry.size, entry.size) if entry.size >= _BIG else b""
    if entry.header >= _BIG:
        wide += struct.pack("<Q", entry.header)
    extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
    size, header = min(entry.size, _BIG), min(entry.header, _BIG)
    version = 45 if wide else 20
    fields = (0x02014B50, 45, version, _UTF8, 0, 0, _DATE, crc, size, size)
    lengths = (len(entry.name), len(extra), 0, 0, 0, 0, header)
    return struct.pack("<IHHHHHHIIIHHHHHII", *fields, *lengths) + entry.name + extra


def _end(count: int, start: int, size: int) -> bytes:
    wide = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    few, small, near = min(count, 0xFFFF), min(size, _BIG), min(start, _BIG)
    return wide + locator + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, small, near, 0)


# ---------------------------------------------------------------------------------------- checksums


class _Checksums:
    """Checksums of parts. A second thread computes them while the first one writes; when that is
    done, both do."""

    def __init__(self) -> None:
        self._left: deque[tuple[memoryview, list[int], int]] = deque()
        self._thread: Thread | None = None

    def order(self, view: memoryview) -> list[int]:
        """A list that will hold the checksum of each part."""
        parts = [view[i : i + PART] for i in range(0, len(view), PART)]
        crcs = [0] * len(parts)
        self._left.extend((part, crcs, i) for i, part in enumerate(parts))
        if self._thread is None or not self._thread.is_alive():
            thread = Thread(target=self._work, name="lostwax-crc", daemon=True)
            thread.start()
            self._thread = thread  # not before: an interrupt may keep it from starting
        return crcs

    def finish(self) -> None:
        self._work()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        self._left.clear()
        self.finish()

    def _work(self) -> None:
        while True:
            try:
                part, crcs, i = self._left.popleft()
            except IndexError:
                return
            crcs[i] = zlib.crc32(part)


def _join_checksums(entry: _ZipEntry) -> int:
    """The checksum of a record from those of its parts."""
    crc, left = entry.crcs[0], entry.size - PART
    for part in entry.crcs[1:]:
        crc = _behind(crc, min(PART, left)) ^ part
        left -= PART
    return crc


def _behind(crc: int, zeros: int) -> int:
    """The checksum register after `zeros` more bytes: a linear map over bits, by repeated
    squaring of the map for one byte."""
    if not crc:
        return 0
    for i in range(zeros.bit_length()):
        if zeros >> i & 1:
            crc = _apply(_power(i), crc)
    return crc


_POWERS: list[list[int]] = []


def _power(i: int) -> list[int]:
    """The map for 2**i zero bytes: where each of the 32 bits goes."""
    while len(_POWERS) <= i:
        if not _POWERS:
            _POWERS.append([_one_byte(1 << bit) for bit in range(32)])
        else:
            last = _POWERS[-1]
            _POWERS.append([_apply(last, column) for column in last])
    return _POWERS[i]


def _one_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc


def _apply(columns: list[int], bits: int) -> int:
    out = 0
    for column in columns:
        if bits & 1:
            out ^= column
        bits >>= 1
    return out
