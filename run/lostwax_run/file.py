"""A `.pte` file in memory, with its weights: mapped, verified, and described. All sessions of a
program are over one of these. Must not load numpy."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from lostwax_run.checks import check_program, check_weights
from lostwax_run.description import Description, describe
from lostwax_run.errors import FileError, InputError, MissingError, RunError
from lostwax_run.runtime import DONE, last_problem, load_library

AnyFile = str | os.PathLike[str] | bytes | bytearray | memoryview


class File:
    """A file that the runtime has opened. It is mapped, not read: it must not be written in place
    as long as this lives. (It may be replaced by another.)"""

    def __init__(self, file: AnyFile, weights: AnyFile | None) -> None:
        if weights is None and isinstance(file, (str, os.PathLike)):
            beside = os.path.splitext(os.fspath(file))[0] + ".ptd"
            weights = beside if os.path.exists(beside) else None
        self._library = load_library()
        self._data = _map(file)
        self._weights = _map(weights) if weights is not None else None
        _require_head(self._data, b"ET12", ".pte")
        if self._weights is not None:
            _require_head(self._weights, b"FT01", ".ptd")
            check_weights(memoryview(self._weights))
        self.handle = ctypes.c_void_p()
        places = (*_place(self._data), *_place(self._weights))
        if self._library.run_open(*places, ctypes.byref(self.handle)) != DONE:
            raise FileError(
                f"the runtime does not take the file: {last_problem()}\n"
                "  why: it is damaged or cut off, or of a later version"
            )
        view = memoryview(self._data)
        check_program(view, None if self._weights is None else memoryview(self._weights))
        self.methods = describe(view)

    def list_missing(self, method: Description) -> list[str]:
        """The kernels and backends that the runtime has not."""
        has_backend, has_kernel = self._library.run_has_backend, self._library.run_has_kernel
        backends = [name for name in method.backends if not has_backend(name.encode())]
        return backends + [name for name in method.kernels if not has_kernel(name.encode())]

    def require(self, method: Description) -> None:
        """Refuse a method for which the runtime lacks something."""
        missing = self.list_missing(method)
        if missing:
            is_backend = missing[0] in method.backends
            what = "the backend" if is_backend else "kernels"
            instead = "XNNPACK as the backend, or none" if is_backend else "other operators"
            raise MissingError(
                f"{method.name!r} needs {what} {', '.join(missing)}, which lostwax_run has not\n"
                f"  instead: a program with {instead}, or ExecuTorch's own runtime, built with them"
            )

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._library.run_close(handle)


class Trace(NamedTuple):
    """What methods did, in ExecuTorch's form."""

    dump: bytes
    """The ETDump: when each instruction began and ended, also those of delegates."""
    values: bytes
    """What instructions computed, where the dump refers to it; empty if it was not asked for."""


class Session:
    """The memory of one use of a file, and the methods that are loaded into it. If it is traced,
    they note what they do, and keep so many bytes of what they compute."""

    def __init__(
        self, file: File, alone: bool, traced: bool = False, traced_bytes: int = 0
    ) -> None:
        self.file, self.alone, self.traced = file, alone, traced
        self.traced_bytes = traced_bytes
        if traced_bytes < 0 or (traced_bytes and not traced):
            raise InputError(
                f"traced_bytes={traced_bytes} with traced={traced}\n"
                "  instead: traced=True, and how many bytes of values are kept, or 0"
            )
        self.lock = threading.Lock()
        self._library = load_library()
        self._handle = ctypes.c_void_p()
        self._methods: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """The handle of a method. What shares memory is loaded together: to load a method writes
        its state as it is at the start, and another may have written there since."""
        if name not in self._methods:
            if not self._handle:
                begin = self._library.run_begin
                how = self.alone, self.traced, self.traced_bytes
                _require(begin(self.file.handle, *how, ctypes.byref(self._handle)), RunError)
            methods = self.file.methods
            shares = len(methods[name].arenas) > 1
            for each in methods.values():
                if each.name == name or (shares and len(each.arenas) > 1):
                    self._methods[each.name] = self._load(each)
        return self._methods[name]

    def _load(self, method: Description) -> Any:
        self.file.require(method)
        handle = ctypes.c_void_p()
        load = self._library.run_load
        _require(load(self._handle, method.name.encode(), ctypes.byref(handle)), FileError)
        return handle

    def take_trace(self) -> Trace:
        """What was noted. With it the session ends."""
        if not self.traced or not self._handle:
            raise RunError(
                "nothing was traced\n  instead: Program(file, traced=True), calls, take_trace()"
            )
        dump, values = ctypes.c_void_p(), ctypes.c_void_p()
        size, room = ctypes.c_size_t(), ctypes.c_size_t()
        places = map(ctypes.byref, (dump, size, values, room))
        _require(self._library.run_trace(self._handle, *places), RunError)
        found = Trace(
            ctypes.string_at(dump.value or 0, size.value),
            ctypes.string_at(values.value or 0, room.value),
        )
        self._library.run_free(dump)
        self.close()
        return found

    def close(self) -> None:
        """Give all memory back; the next call begins anew."""
        while self._methods:
            self._library.run_unload(self._methods.popitem()[1])
        if self._handle:
            self._library.run_end(self._handle)
            self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if hasattr(self, "_methods"):
            self.close()


def _require(outcome: int, error: Callable[[str], Exception]) -> None:
    if outcome != DONE:
        raise error(f"the runtime does not take the program: {last_problem()}")


def _map(file: AnyFile) -> mmap.mmap:
    """The bytes of a file where the runtime can have them, at the start of a page."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if not size:
                raise FileError(f"{os.fspath(file)} is empty")
            return mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
    if not len(file):
        raise FileError("there are no bytes")
    held = mmap.mmap(-1, memoryview(file).nbytes)
    held.write(file)
    return held


def _place(data: mmap.mmap | None) -> tuple[int | None, int]:
    if data is None:
        return None, 0
    return ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)


def _require_head(data: mmap.mmap, identifier: bytes, kind: str) -> None:
    found = bytes(data[4:8])
    if found != identifier:
        raise FileError(f"not a {kind} file: its identifier is {found!r}, not {identifier!r}")
