"""`lostwax.cache`: exports that look into a folder before they capture.

An entry is found in two steps. The request's key is the name of a folder in it. The entries there
say which functions ran at capture; what these read is looked at once more, and an entry is right if
all of it is as it was. Must not make a program that an export would not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from lostwax import bytecode, collector
from lostwax.capture.attempt import Attempt
from lostwax.capture.python.functions_run import FunctionKeys, function_key
from lostwax.capture.request import Request, disable_store, enable_store, enter_store
from lostwax.capture.surroundings.world import Surroundings
from lostwax.errors import LoadError
from lostwax.export_cache.entry import Live, read_program, write_program
from lostwax.export_cache.facts import Facts, find_difference
from lostwax.export_cache.folder import EntryFolder
from lostwax.export_cache.looks import (
    Dependencies,
    KnownLook,
    KnownLooks,
    look_again,
    read_dependencies,
)
from lostwax.export_cache.recording import Recording, record
from lostwax.export_cache.request_key import find_objection, make_key
from lostwax.export_cache.spelling import NoTextError
from lostwax.ir.program import ExportedProgram
from lostwax.undo.undo import Undo, run_and_undo

_log = logging.getLogger("lostwax.exports")


class ExportCache:
    """Programs in a folder; see `lostwax.cache`."""

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int = 1 << 30) -> None:
        _check(folder, most_bytes)
        self._folder = EntryFolder(folder, most_bytes)
        self._ends: list[Callable[[], None]] = []
        self.hits = 0
        """How many exports were read from the folder."""
        self.misses = 0
        """How many were captured."""
        self._why = ""
        self._looks: KnownLooks = []

    def why(self) -> str:
        """Why the last export was captured, and not kept; "" if it was read from the folder."""
        return self._why

    def __enter__(self) -> ExportCache:
        self._ends.append(enter_store(self))
        return self

    def __exit__(self, *raised: object) -> None:
        self._ends.pop()()
        if not self._ends:  # what was looked at is held no longer
            self._looks.clear()

    def enable(self) -> ExportCache:
        """From here on, the exports of all threads look into the folder."""
        enable_store(self)
        return self

    def disable(self) -> None:
        """From here on, they do not."""
        disable_store(self)

    def find_or_make(
        self, request: Request, attempt: Attempt, make: Callable[[], ExportedProgram]
    ) -> ExportedProgram:
        """The program of a request, from the folder if it is there."""
        self._why = find_objection(request, attempt)
        found = None
        search = None
        if not self._why:
            try:
                looks = self._looks if self._ends else None
                search = _Search(self._folder, request, make_key(request, attempt), looks)
                found = run_and_undo(search.find)
            except NoTextError as error:
                self._why = f"the request has {error}, which another process cannot compare"
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        if search is None or self._why:
            return self._say(make())
        recording = record(request.mod, make)
        self._why = "; ".join([*search.reasons, *search.keep(recording)])
        return self._say(recording.program)

    def _say(self, program: ExportedProgram) -> ExportedProgram:
        _log.info("captured: %s", self._why)
        return program


def _check(folder: object, most_bytes: object) -> None:
    """Refuse what no folder can be: that its exports are not kept would be seen late."""
    if not isinstance(folder, (str, os.PathLike)) or os.path.isfile(folder):
        what = f"the file {os.fspath(folder)}" if isinstance(folder, (str, os.PathLike)) else folder
        raise LoadError.here(
            f"a cache of exports is a folder, not {what}",
            instead='the path of one, lostwax.cache("exports"); it is made if it is not there',
        )
    if not isinstance(most_bytes, int) or most_bytes <= 0:
        raise LoadError.here(
            f"most_bytes is a number of bytes, not {most_bytes!r}",
            instead="most_bytes=1 << 30, which is a gigabyte",
        )


class _Search:
    """KnownLooks for the program of one request."""

    def __init__(
        self, folder: EntryFolder, request: Request, key: str, looks: KnownLooks | None
    ) -> None:
        self._folder, self._request, self._key = folder, request, key
        self._looks = [] if looks is None else looks
        self.reasons: list[str] = []
        """Why none was found."""

    def find(self, undo: Undo) -> ExportedProgram | None:
        """The program; None if there is none that is right now."""
        collector.pause(undo.add)
        by_ran: dict[str, list[str]] = {}
        for name in self._folder.list_names(self._key):
            by_ran.setdefault(name.partition("-")[0], []).append(name)
        if not by_ran:
            self.reasons.append("the first export of its kind")
        for names in by_ran.values():
            program = self._find_among(names)
            if program is not None:
                return program
        return None

    def _find_among(self, names: list[str]) -> ExportedProgram | None:
        """The program of the entry whose functions, the same for all of these, read what they
        read now."""
        for name in names:
            entry = _read_entry(self._folder, self._key, name)
            if entry is None:
                self.reasons.append("an entry is damaged")
                continue
            look = look_again(self._request.mod, entry.depends, self._looks)
            wanted = _name_entry(entry.depends, look)
            if wanted not in names:
                self.reasons.append(find_difference(look.facts, entry.read_facts()))
                return None
            if wanted != name:
                entry = _read_entry(self._folder, self._key, wanted)
            if entry is not None and (program := self._read(entry, look.world)) is not None:
                self._folder.touch(self._key, wanted)
                return program
            self.reasons.append("an entry is damaged")
            self._folder.remove(self._key, wanted)
            return None
        return None

    def _read(self, entry: _KeptProgram, world: Surroundings) -> ExportedProgram | None:
        try:
            return read_program(entry.program, Live(self._request, world.tensors))
        except LoadError:
            return None

    def keep(self, recording: Recording) -> Iterator[str]:
        """Keep the program; why not, if it cannot be kept."""
        if recording.objections:
            yield f"it is not kept: {recording.objections[0]}"
            return
        depends = Dependencies(recording.ran, recording.variables, frozenset())
        try:
            look = look_again(self._request.mod, depends, self._looks)
            unread = recording.numbers.list_paths(look.world)
            if unread:
                depends = depends._replace(unread=unread)
                look = look_again(self._request.mod, depends, self._looks)
            _check_all_read(recording.ran, look.world)
            program = write_program(recording.program, Live(self._request, look.world.tensors))
        except NoTextError as error:
            yield f"it is not kept: {error}"
            return
        parts = _write_entry(depends, look.facts, program)
        reason = self._folder.write(self._key, _name_entry(depends, look), parts)
        if reason:
            yield f"it is not kept: {reason}"


def _check_all_read(ran: FunctionKeys, world: Surroundings) -> None:
    """Raise `NoTextError` if a function has run to which nothing leads that we look at."""
    known = {
        function_key(code)
        for function in world.functions
        for code in bytecode.nested_codes(function.__code__)
    }
    for file, line, name in sorted(ran - known):
        raise NoTextError(f"{name} at {file}:{line} runs, and nothing leads to it")


# ------------------------------------------------------------------------------------------ entries


class _KeptProgram(NamedTuple):
    """An entry as it was read."""

    depends: Dependencies
    program: bytes
    facts: bytes

    def read_facts(self) -> Facts:
        return dict(json.loads(self.facts))


def _name_entry(depends: Dependencies, look: KnownLook) -> str:
    return f"{_digest(depends.to_json())[:16].decode()}-{look.digest}"


def _write_entry(depends: Dependencies, facts: Facts, program: bytes) -> list[bytes]:
    """Three lines, the digest of them before."""
    lines = b"%b\n%b\n%b\n" % (depends.to_json(), program, json.dumps(facts).encode())
    return [b"%b\n" % _check_sum(lines), lines]


def _check_sum(lines: bytes) -> bytes:
    """Tells damage; who forges an entry can compute it, too."""
    return b"%08x" % zlib.crc32(lines)


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def _read_entry(folder: EntryFolder, key: str, name: str) -> _KeptProgram | None:
    """An entry; None, and it is removed, if it is damaged."""
    data = folder.read(key, name)
    if data is None:
        return None
    digest, _, rest = data.partition(b"\n")
    lines = rest.split(b"\n")
    if digest == _check_sum(rest) and len(lines) == 4:
        with suppress(TypeError, ValueError):
            return _KeptProgram(read_dependencies(lines[0]), lines[1], lines[2])
    folder.remove(key, name)
    return None


def cache(folder: str | os.PathLike[str], *, most_bytes: int = 1 << 30) -> ExportCache:
    """Exports that look into a folder before they capture: `with lostwax.cache("exports"): ...`.

    What `lostwax.export` captures inside of the block is kept in `folder`, without its weights, and
    found again by a later export, in this process or another one, if all that the capture has read
    is as it was: the code that ran, what it finds in attributes, globals and closures, the types of
    the example, the options, the settings of torch, the versions. Then the program is the one that
    an export would make, bound to the module's own tensors. What cannot be compared is not kept;
    `why()` says so. Several processes may share a folder. It has at most `most_bytes` bytes; what
    was used longest ago goes first. `enable()` is for all threads and without a block, until
    `disable()`. Nothing that is read is executed; but who may write to the folder decides which
    programs are found.
    """
    return ExportCache(folder, most_bytes)
