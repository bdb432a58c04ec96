"""Files that are written again: all of them when all went well, else none.

Each is written under another name beside it, and then takes its place. Must not know what is
written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO

from lostwax.location import user_location
from lostwax.undo.undo import Undo, run_and_undo

Path = str | os.PathLike[str]
Write = Callable[[IO[bytes]], object]


def replace_files(writes: Mapping[Path, Write]) -> None:
    """Write new files that take the places of these paths when all went well; else, also if it is
    interrupted, these are as before, and nothing is left beside them."""
    files = {os.path.realpath(os.fspath(path)): write for path, write in writes.items()}
    for path in files:
        if os.path.isdir(path):
            error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            _explain(error, "a file cannot take the place of a folder", "the name of a file in it")
            raise error
    run_and_undo(partial(_replace_files, files))


def _replace_files(files: Mapping[str, Write], undo: Undo) -> None:
    written = [_write_beside(path, write, undo) for path, write in files.items()]
    for temporary, path in zip(written, files, strict=True):
        os.replace(temporary, path)


def _write_beside(path: str, write: Write, undo: Undo) -> str:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")
    mode = _mode(path)
    undo.add(partial(_remove, temporary))
    with _new(temporary, 0o666 if mode is None else 0o600) as file:
        write(file)
    if mode is not None:
        os.chmod(temporary, mode)
    return temporary


def _new(path: str, mode: int) -> IO[bytes]:
    try:
        return open(path, "xb", buffering=1 << 20, opener=partial(os.open, mode=mode))
    except OSError as error:  # about a name that the user has not chosen
        folder = os.path.dirname(path)
        shown = type(error)(error.errno, error.strerror, folder)
        if not os.path.isdir(folder):
            why = "files are written into folders that are there"
            _explain(shown, why, f"os.makedirs({folder!r}), or another path")
        raise shown from None


def _explain(error: OSError, why: str, instead: str) -> None:
    for note in (f"at {user_location()}", f"why: {why}", f"instead: {instead}"):
        error.add_note(f"  {note}")


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _mode(path: str) -> int | None:
    """The permissions of the file that is replaced; None if there is none."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None
