"""Weights that stay in the `.safetensors` files of a checkpoint: a `.pt2` refers to them by the
file's name, size and digest.

The names are those of files beside the archive, or in the folder that the reader names: never a
path. A digest covers a file's header, and the first and last bytes of each tensor; so it tells
checkpoints apart, but no damage in the middle of a tensor.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lostwax.checkpoints import read_header
from lostwax.checkpoints.mapped import MappedFile, find_place, map_file
from lostwax.errors import LoadError, SaveError

Json = Mapping[str, Any]
_SEEN = 4096
FOLDER = "checkpoint/"
"""Before the number of a file, in place of a record's name."""


class Reference(NamedTuple):
    """Where a tensor of a program lies: which of the files, and the byte in it."""

    file: int
    offset: int


class References:
    """The tensors of an archive's programs that are a checkpoint's, and its files."""

    def __init__(self) -> None:
        self._files: dict[MappedFile, int] = {}

    def find(self, tensor: torch.Tensor) -> Reference | None:
        """Where a tensor lies in a checkpoint; None if it does not."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return None
        place = find_place(tensor.data_ptr())
        if place is None or not place.file.path.endswith(".safetensors"):
            return None
        if place.offset % tensor.dtype.itemsize:
            return None
        return Reference(self._files.setdefault(place.file, len(self._files)), place.offset)

    def describe(self) -> list[dict[str, Any]]:
        """The files, each with what tells it from others. Refused if weights were changed."""
        names = [os.path.basename(file.path) for file in self._files]
        if len({*names}) < len(names):
            raise SaveError(
                f"weights lie in several files of one name, {max(names, key=names.count)}\n"
                "  instead: copy them into the archive, lostwax.save(program, path)"
            )
        for file in self._files:
            _require_unchanged(file)
        return [
            {"name": name, "size": len(file), "digest": compute_digest(file)}
            for name, file in zip(names, self._files, strict=True)
        ]


def _require_unchanged(file: MappedFile) -> None:
    if not file.is_unchanged():
        raise SaveError(
            f"weights of {file.path} were changed after they were read\n  why: the file would be "
            "referred to, and has the old ones\n  instead: copy them into the archive, "
            "lostwax.save(program, path)"
        )


def compute_digest(file: MappedFile) -> str:
    """What tells this file from other checkpoints."""
    view, digest = memoryview(file), hashlib.sha256()
    entries = sorted(read_header(file.path).values(), key=lambda each: each.start)
    first = min((each.start for each in entries), default=len(view))
    digest.update(view[:first])
    for each in entries:
        digest.update(view[each.start : min(each.start + _SEEN, each.stop)])
        digest.update(view[max(each.stop - _SEEN, each.start) : each.stop])
    return digest.hexdigest()


class CheckpointFiles:
    """The files that an archive refers to, found and compared when they are first read."""

    def __init__(self, described: Any, folder: str | None) -> None:
        self._described = described
        self._folder = folder
        self._found: dict[int, MappedFile] = {}

    def map(self, number: int) -> MappedFile:
        """A file by its number."""
        if number not in self._found:
            self._found[number] = self._map(*self._read_entry(number))
        return self._found[number]

    def _read_entry(self, number: int) -> tuple[str, int, str]:
        try:
            entry = self._described[number]
            name, size, digest = entry["name"], entry["size"], entry["digest"]
        except (KeyError, TypeError, IndexError):
            raise LoadError("our own record of a checkpoint's files is damaged") from None
        is_name = isinstance(name, str) and os.path.basename(name) == name
        if not is_name or not name.endswith(".safetensors") or type(size) is not int:
            raise LoadError(f"a checkpoint's file cannot be called {name!r}")
        return name, size, digest

    def _map(self, name: str, size: int, digest: str) -> MappedFile:
        hint = '\n  instead: lostwax.load(path, checkpoint="folder"), the folder where it is'
        if self._folder is None:
            raise LoadError(f"its weights are in {name}, a file of a checkpoint{hint}")
        path = os.path.join(self._folder, name)
        if not os.path.isfile(path):
            raise LoadError(f"its weights are in {name}, which is not in {self._folder!r}{hint}")
        if os.path.getsize(path) != size:
            raise LoadError(
                f"{path} has {os.path.getsize(path):,} bytes, and the program's weights lie in one "
                f"of {size:,}{hint}"
            )
        found = map_file(path)
        if compute_digest(found) != digest:
            raise LoadError(f"{path} is of another checkpoint than the program{hint}")
        return found
