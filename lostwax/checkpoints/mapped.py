"""Files that are mapped into memory: which memory is of which file, and how pages are given back.

Weights that are views of a file are read where they lie. Who has read them once, to write or to
pack them, gives their pages back, so that a process needs no memory for more than one of them. Must
not know what is in a file.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Any, NamedTuple
from weakref import WeakSet

import numpy as np

_PAGE_OUT = 21
"""Linux' MADV_PAGEOUT. Unlike MADV_DONTNEED, it loses nothing that was written to a page."""


PART = 4 << 20
_REGION = re.compile(r"([0-9a-f]+)-[0-9a-f]+ ")


class MappedFile(mmap.mmap):
    """A file in memory, copy on write: what is written there does not change the file."""

    path: str
    address: int

    def covers(self, address: int) -> bool:
        """Does this address lie in the file?"""
        return self.address <= address < self.address + len(self)

    def is_as_on_disk(self) -> bool:
        """Has nobody written to this memory? Only Linux can say it; elsewhere: False."""
        try:
            with open("/proc/self/smaps", encoding="ascii", errors="replace") as opened:
                return self._count_own_pages(opened) == 0
        except OSError:
            return False

    def is_unchanged(self) -> bool:
        """The same everywhere: where the system cannot say it, all bytes are compared."""
        return self.is_as_on_disk() or self._is_equal()

    def _is_equal(self) -> bool:
        view = memoryview(self)
        with open(self.path, "rb") as opened:
            return all(
                opened.read(PART) == view[at : at + PART] for at in range(0, len(view), PART)
            )

    def _count_own_pages(self, lines: Iterable[str]) -> int:
        """The pages that are no longer those of the file, in KiB."""
        count, is_ours = 0, False
        for line in lines:
            if found := _REGION.match(line):
                is_ours = self.covers(int(found[1], 16))
            elif is_ours and line.startswith("Anonymous:"):
                count += int(line.split()[1])
        return count


class FilePlace(NamedTuple):
    """Where in a file some memory comes from."""

    file: MappedFile
    offset: int


_MAPPED: WeakSet[MappedFile] = WeakSet()


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Map a file that is not empty."""
    name = os.path.abspath(os.fspath(path))
    with open(name, "rb") as opened:
        found = MappedFile(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    found.path = name
    found.address = _address(memoryview(found))
    _MAPPED.add(found)
    return found


def find_place(address: int) -> FilePlace | None:
    """The place of a file that lies at this address in memory, if it is of a mapped file."""
    for file in tuple(_MAPPED):
        if file.covers(address):
            return FilePlace(file, address - file.address)
    return None


def is_mapped(data: memoryview) -> bool:
    """Are these bytes a mapped file's?"""
    return find_place(_address(data)) is not None


def release(address: int, size: int) -> None:
    """Give back the pages that these bytes lie in, if they are a mapped file's. They are read
    again when somebody asks for them."""
    place = find_place(address)
    if place is not None and size:
        start = place.offset // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(OSError, AttributeError):  # other systems; what the kernel does not allow
            place.file.madvise(_PAGE_OUT, start, place.offset + size - start)


def write_parts(file: IO[bytes], data: Any, see: Callable[[memoryview], object] = len) -> None:
    """Write bytes to a file. Those of a mapped file go part by part, and their pages are given
    back; `see` is shown each part before that."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    for at in range(0, len(view), PART):
        part = view[at : at + PART]
        file.write(part)
        see(part)
        release(_address(part), len(part))


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
