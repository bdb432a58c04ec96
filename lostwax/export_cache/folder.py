"""A folder of entries: bytes by key and by name, written in one step, bounded.

Processes may share it: an entry is written under another name and then renamed, so that all who
read find all of it or nothing. What was used longest ago goes first. Whatever fails here is no
error: then nothing is found, or nothing kept. Must not know what is in an entry.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".entry"
_MOST_OF_A_KEY = 32
"""Entries: of one request the module may have been in so many states."""


class EntryFolder:
    """The entries in a folder."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int) -> None:
        self.path = Path(path)
        self._most_bytes = most_bytes

    def list_names(self, key: str) -> list[str]:
        """The names of the entries of a key."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.path / key)
            return [each.removesuffix(_SUFFIX) for each in names if each.endswith(_SUFFIX)]
        return []

    def read(self, key: str, name: str) -> bytes | None:
        """An entry; None if it is gone."""
        file = self._locate(key, name)
        with contextlib.suppress(OSError):
            return file.read_bytes()
        return None

    def touch(self, key: str, name: str) -> None:
        """Note that an entry was used."""
        with contextlib.suppress(OSError):
            os.utime(self._locate(key, name))

    def write(self, key: str, name: str, parts: list[bytes]) -> str:
        """Keep an entry. Returns why that is not possible, "" if it is."""
        if sum(map(len, parts)) > self._most_bytes:
            return f"it has more than the {self._most_bytes:,} bytes that the folder may have"
        try:
            file = self._locate(key, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._replace(file, parts)
            self._drop_oldest(key)
        except OSError as error:
            return f"the folder cannot be written to: {error}"
        return ""

    def remove(self, key: str, name: str) -> None:
        with contextlib.suppress(OSError):
            self._locate(key, name).unlink()

    def _locate(self, key: str, name: str) -> Path:
        return self.path / key / f"{name}{_SUFFIX}"

    def _replace(self, file: Path, parts: list[bytes]) -> None:
        number, draft = tempfile.mkstemp(prefix=".draft-", dir=file.parent)
        try:
            with open(number, "wb") as opened:
                opened.writelines(parts)
            os.replace(draft, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def _drop_oldest(self, key: str) -> None:
        """Remove what is too much, of the key and of all."""
        found = sorted(self._list_files(), reverse=True)
        total = of_key = 0
        for _, size, file in found:
            total, of_key = total + size, of_key + (file.parent.name == key)
            is_too_old = file.parent.name == key and of_key > _MOST_OF_A_KEY
            if total > self._most_bytes or is_too_old:
                with contextlib.suppress(OSError):
                    file.unlink()
                with contextlib.suppress(OSError):
                    file.parent.rmdir()  # if it is empty

    def _list_files(self) -> Iterator[tuple[int, int, Path]]:
        """All entries, and drafts that a process has left: when each was used, and its size."""
        for folder in os.scandir(self.path):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder.path):
                with contextlib.suppress(OSError):
                    told = file.stat(follow_symlinks=False)
                    yield told.st_mtime_ns, told.st_size, Path(file.path)
