"""The library with the ExecuTorch runtime, by ctypes: `src/runtime.cpp` says what its functions do.

It is loaded when the first program is opened. Must not know what values mean.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

MOST_DIMS = 16
NONE, TENSOR, INT, FLOAT, BOOL, TEXT, OTHER = range(7)
DONE, FAILED, STOPPED = range(3)


class Value(ctypes.Structure):
    """One input or result; as in runtime.cpp."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * MOST_DIMS),
        ("order", ctypes.c_uint8 * MOST_DIMS),
        ("number", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("array", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


_HANDLE = ctypes.c_void_p
_PLACE = ctypes.POINTER(ctypes.c_void_p)
_SIZE = ctypes.c_size_t
_SIZES = ctypes.POINTER(_SIZE)
_FUNCTIONS = {
    "run_problem": (ctypes.c_char_p, ()),
    "run_start": (None, ()),
    "run_has_backend": (ctypes.c_bool, (ctypes.c_char_p,)),
    "run_has_kernel": (ctypes.c_bool, (ctypes.c_char_p,)),
    "run_threads": (_SIZE, ()),
    "run_set_threads": (ctypes.c_bool, (ctypes.c_uint32,)),
    "run_open": (ctypes.c_int, (_HANDLE, _SIZE, _HANDLE, _SIZE, _PLACE)),
    "run_close": (None, (_HANDLE,)),
    "run_begin": (ctypes.c_int, (_HANDLE, ctypes.c_bool, ctypes.c_bool, _SIZE, _PLACE)),
    "run_end": (None, (_HANDLE,)),
    "run_load": (ctypes.c_int, (_HANDLE, ctypes.c_char_p, _PLACE)),
    "run_unload": (None, (_HANDLE,)),
    "run_call": (ctypes.c_int, (_HANDLE, _HANDLE, _SIZE, _HANDLE, _SIZE)),
    "run_trace": (ctypes.c_int, (_HANDLE, _PLACE, _SIZES, _PLACE, _SIZES)),
    "run_free": (None, (_HANDLE,)),
}


@cache
def load_library() -> ctypes.CDLL:
    """The library, ready to be called."""
    library = ctypes.CDLL(str(Path(__file__).parent / "lib" / "liblostwax_run.so"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.run_start()
    return library


def last_problem() -> str:
    """Why the last call of this thread failed."""
    text: bytes = load_library().run_problem()
    lines = text.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("arg "))  # only numbers
