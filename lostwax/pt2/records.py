"""The records of a `.pt2` archive one by one, under torch's names: `PT2ArchiveWriter`,
`PT2ArchiveReader`, `is_pt2_package`.

`save` and `load` are for programs; these are for what else one puts into such a file.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import IO, Any, Self

from lostwax.errors import LoadError, SaveError
from lostwax.pt2.container.archive import Archive
from lostwax.pt2.container.writer import Writer
from lostwax.pt2.schema import ARCHIVE_FORMAT, ARCHIVE_VERSION, CONTAINER_VERSION
from lostwax.undo.replace_files import replace_files

File = str | os.PathLike[str] | IO[bytes]


class PT2ArchiveWriter:
    """Writes records into an archive, in a `with` block. A path is replaced at the end of the
    block, when all is written, and stays as it was if the block raises."""

    def __init__(self, archive_path_or_buffer: File) -> None:
        self._file: Any = archive_path_or_buffer
        self._records: dict[str, bytes] = {}
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        self._is_open = False

    def write_bytes(self, name: str, data: bytes) -> None:
        """Add a record of bytes."""
        if not self._is_open:
            raise SaveError("the archive is closed: nothing can be added to it")
        check_record_name(name)
        if name in self._records or name in _MARKS:
            raise SaveError(f"the archive has a record {name!r} already")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise SaveError(f"the record {name!r} is to be bytes, not a {type(data).__name__}")
        self._records[name] = bytes(data)

    def write_string(self, name: str, data: str) -> None:
        """Add a record of text."""
        self.write_bytes(name, data.encode())

    def write_file(self, name: str, file_path: str | os.PathLike[str]) -> None:
        """Add a file's content as a record."""
        self.write_bytes(name, Path(file_path).read_bytes())

    def write_folder(self, archive_dir: str, folder_dir: str | os.PathLike[str]) -> None:
        """Add all files of a folder, also of those inside of it, below `archive_dir`."""
        for path in sorted(Path(folder_dir).rglob("*")):
            if path.is_file():
                inner = path.relative_to(folder_dir).as_posix()
                self.write_file(f"{archive_dir.rstrip('/')}/{inner}", path)

    def has_record(self, name: str) -> bool:
        """Was this record added?"""
        return name in self._records

    def count_prefix(self, prefix: str) -> int:
        """How many records have names that begin so."""
        return sum(name.startswith(prefix) for name in self._records)

    def close(self) -> None:
        """Write the archive. A `with` block does it at its end."""
        if not self._is_open:
            return
        self._is_open = False
        if isinstance(self._file, (str, os.PathLike)):
            replace_files({self._file: self._write})
        elif self._file.seekable():
            self._write(self._file)
        else:
            buffer = io.BytesIO()
            self._write(buffer)
            self._file.write(buffer.getbuffer())

    def _write(self, file: IO[bytes]) -> None:
        writer = Writer(file)
        try:
            for name, data in self._records.items():
                writer.add(name, data)
            close_archive(writer)
        except BaseException:
            writer.abandon()
            raise


class PT2ArchiveReader:
    """Reads records of an archive; each is checked against its checksum."""

    def __init__(self, archive_path_or_buffer: File) -> None:
        self._archive = Archive(archive_path_or_buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def read_bytes(self, name: str) -> bytes:
        """The bytes of a record."""
        return self._archive.read(name)

    def read_string(self, name: str) -> str:
        """A record that is text."""
        return self.read_bytes(name).decode()

    def archive_version(self) -> int:
        """The version that the archive says it has."""
        return int(self.read_bytes("archive_version"))

    def get_file_names(self) -> list[str]:
        """The names of all records."""
        return list(self._archive.records)


def is_pt2_package(serialized_model: bytes | str | os.PathLike[str]) -> bool:
    """Is `serialized_model` a `.pt2` archive: the bytes of one, or the path of a file?"""
    try:
        archive = Archive(serialized_model)
        return archive.read("archive_format", 100) == ARCHIVE_FORMAT
    except (LoadError, OSError):
        return False


_MARKS = {
    "archive_format": ARCHIVE_FORMAT,
    "archive_version": ARCHIVE_VERSION,
    ".data/version": CONTAINER_VERSION,
    "byteorder": b"little",
}
"""The records by which readers know what the file is."""


def close_archive(writer: Writer) -> None:
    """Add the records that every archive has, and close it."""
    for name, data in _MARKS.items():
        writer.add(name, data)
    writer.add(".data/serialization_id", _identity(writer))
    writer.close()


def check_record_name(name: Any) -> None:
    """Refuse a name that is not a plain path."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise SaveError(f"{name!r} cannot be the name of a record: it is not a plain path")


def _identity(writer: Writer) -> bytes:
    """40 digits that tell archives apart, made of the names and checksums of their records."""
    digest = hashlib.sha256()
    for name, crc in writer.checksums():
        digest.update(f"{name}:{crc};".encode())
    return str(int(digest.hexdigest(), 16))[:40].zfill(40).encode()
