"""Refuses what a module reads of the world around it while it is captured: the clock, random
numbers, files, the environment; and what it begins there: threads, processes.

A function that is watched runs at half its speed. So the watch begins when a function of the user's
begins that names something of Python's library which leads outside; most modules name none. It is
the profiler of this thread alone. Code of torch's may read what it likes, and so may imports,
logging and warnings. Must not change what others see.
"""

from __future__ import annotations

import _thread
import datetime
import io
import os
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from types import BuiltinFunctionType, CodeType, FrameType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from lostwax.bytecode.outline import argument_defaults, closure_variables, modules_imported
from lostwax.cache import PerClass
from lostwax.capture.patches import random_numbers
from lostwax.capture.python.function_holders import unwrap
from lostwax.capture.python.reachable import ReadFunction
from lostwax.capture.state.root_module import forward_of
from lostwax.errors import StrictError
from lostwax.location import PASSING_ON, Location, is_of_torch, is_user_file
from lostwax.undo.undo import Undo


class OutsideWatch:
    """Watches a call, from the moment on when it may read something outside."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self._is_on = False

    def look_at(self, found: ReadFunction) -> None:
        """A function of the user's begins."""
        if not self._is_on and _leads_outside(found):
            self._begin()

    def look_at_call(self, call: Any, modules: Sequence[nn.Module]) -> None:
        """The call begins. What modules hold may lead outside, and functions that are made by
        `exec` are not looked at when they begin."""
        values = [*chain.from_iterable([vars(each).values() for each in modules])]
        kinds = {cls for cls in {*map(type, values)} if cls not in _DULL}
        held = [each for each in values if type(each) in kinds]
        classes: set[Any] = {*map(type, modules)}
        forwards = [forward_of(call), *[each.forward for each in classes]]
        if any(map(_is_outside, held)) or any(map(_has_no_file, forwards)):
            self._begin()

    def end(self) -> None:
        """The call is over."""
        if self._is_on:
            sys.setprofile(None)

    def _begin(self) -> None:
        if sys.getprofile() is not None:
            raise StrictError.here(
                "a profiler watches this thread",
                why="strict=True has to see what the module calls, and Python has room for one",
                instead="export without the profiler",
            )
        self._undo.add(partial(sys.setprofile, None))
        self._is_on = True
        sys.setprofile(_watch)


# -------------------------------------------------------------------------- what may lead outside


def _leads_outside(found: ReadFunction) -> bool:
    if not _WORDS.isdisjoint(found.code.names):
        return True
    function, values = found.function, [*found.named.values()]
    if not hasattr(function, "__code__"):  # it has a cache; what it caches is read by itself
        return False
    values += [value for _, value in closure_variables(function)]
    values += [value for _, value in argument_defaults(function)]
    if any(map(_is_outside, values)):
        return True
    if not found.code.has_imports():
        return False
    known = function.__globals__
    imported = [name for code in found.code.codes for name in modules_imported(code, known)]
    return any(_is_outside_module(name) for name in imported)


def _has_no_file(function: Any) -> bool:
    code = getattr(unwrap(function), "__code__", None)
    return code is not None and _is_made(code.co_filename)


def _is_made(file: str) -> bool:
    """Has `exec` or `eval` made it?"""
    return file.startswith("<") and not file.startswith("<frozen")


def _is_outside(value: Any) -> bool:
    """Is it something of Python's own library that we do not know to be harmless?"""
    if isinstance(value, ModuleType):
        return _is_outside_module(value.__name__)
    if type(value) in (BuiltinFunctionType, MethodType):
        owner = value.__self__
        if not isinstance(owner, (ModuleType, type)):
            return _LEADS_OUTSIDE[type(owner)]
    where = getattr(value, "__module__", None) if callable(value) else None
    return _is_outside_module(where) if isinstance(where, str) else _LEADS_OUTSIDE[type(value)]


def _is_outside_module(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names and top not in _HARMLESS


_LEADS_OUTSIDE = PerClass(
    __name__,
    "classes that lead outside",
    lambda cls: any(_is_outside_module(str(each.__module__)) for each in cls.__mro__),
)
"""Is it a class of something that leads outside, as open files are?"""
_DULL = frozenset((int, float, bool, str, type(None), tuple, list, dict, set, OrderedDict))
_HARMLESS = frozenset(
    (
        "__future__", "__main__", "_abc", "_collections_abc", "_operator", "_thread", "_weakref",
        "_weakrefset", "abc", "array", "ast", "bisect", "builtins", "cmath", "collections",
        "contextlib", "contextvars", "copy", "copyreg", "dataclasses", "decimal", "dis", "enum",
        "fractions", "functools", "heapq", "inspect", "itertools", "json", "keyword", "logging",
        "math", "numbers", "operator", "pprint", "re", "statistics", "string", "struct", "sys",
        "textwrap", "traceback", "types", "typing", "unicodedata", "warnings", "weakref",
        "_collections", "_contextvars", "_functools", "_struct", "_typing",
    )
)  # fmt: skip
"""Modules of Python's library that read nothing outside, or nothing that they tell."""
_WORDS = frozenset(
    (
        "open", "input", "eval", "exec", "__import__", "import_module", "now", "utcnow", "today",
        "read", "readline", "readlines", "read_text", "read_bytes", "write", "stdin", "load",
        "loadtxt", "genfromtxt", "memmap", "default_rng", "RandomState",
        "SeedSequence", "start_new_thread",
    )
)  # fmt: skip
"""Names that lead outside from where no value tells of it: builtins, functions of torch's and
numpy's, methods of what an attribute holds."""


# ------------------------------------------------------------------------------------- the profiler


def _watch(frame: FrameType, event: str, arg: Any) -> None:
    what = ""
    if event == "c_call":
        what = _describe_builtin(arg)
    elif event == "call" and frame.f_code in _DOORS:
        what = _describe_function(frame)
    if what:
        is_torchs = frame.f_code in _TORCHS
        asking = _find_asking(frame.f_back if event == "call" else frame, is_torchs)
        if asking is not None:
            _refuse(what, asking)


def _describe_builtin(function: Any) -> str:
    owner = function.__self__
    if isinstance(owner, ModuleType):
        module, name = owner.__name__, function.__name__
        is_public = not name.startswith("_") and name not in _TELLING_NOTHING
        if (module in _MODULES and is_public) or function in _FUNCTIONS:
            return f"{_NAMES.get(module, module)}.{name}()".removeprefix("builtins.")
    elif isinstance(owner, type):
        if issubclass(owner, datetime.date) and function.__name__ in ("now", "utcnow", "today"):
            return f"{owner.__module__}.{owner.__qualname__}.{function.__name__}()"
    elif isinstance(owner, random.Random):
        is_shared = owner is _SHARED or owner in random_numbers.list_copies()
        if is_shared and function.__name__ not in ("getstate", "setstate"):  # it draws nothing
            return f"random.{function.__name__}()"
    elif isinstance(owner, io.IOBase) and not _is_harmless_stream(owner):
        return f"{type(owner).__name__}.{function.__name__}()"
    return ""


def _is_harmless_stream(stream: Any) -> bool:
    """Is it in memory alone, or where everybody prints?"""
    printed = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(stream, (io.StringIO, io.BytesIO)) or any(stream is each for each in printed)


def _describe_function(frame: FrameType) -> str:
    code, known = frame.f_code, frame.f_locals
    if code is not _SEED:
        return _DOORS[code]
    if known["self"] is _SHARED:
        return "random.seed()"
    return "a random generator without a seed" if known["a"] is None else ""


def _find_asking(frame: FrameType | None, is_torchs: bool) -> FrameType | None:
    """The user's frame that asks; None if it is not the user who does, or nobody may know of it."""
    asking, at = None, frame
    while at is not None:
        file = at.f_code.co_filename
        if file.startswith("<frozen importlib") or file in _NOTING:
            return None
        if asking is None and is_of_torch(file) and not is_torchs and file not in PASSING_ON:
            return None
        is_users = is_user_file(file) or _is_made(file)
        if asking is None and is_users and not file.startswith(_NUMPY):
            asking = at
        at = at.f_back
    return asking


def _refuse(what: str, asking: FrameType) -> None:
    code = asking.f_code
    raise StrictError(
        f"the module reads or changes what is outside of it: {what}.\n"
        f"  at {Location(code.co_filename, asking.f_lineno, code.co_name)}\n"
        "  why: the program would have what was read at capture, in every run\n"
        "  instead: read it before, and pass it as an argument; for random numbers, torch.rand is "
        "drawn anew in each run"
    )


_MODULES = frozenset(
    ("time", "posix", "nt", "select", "_socket", "_posixsubprocess", "_uuid", "_sqlite3", "_winapi")
)
"""Modules of C all of whose public functions lead outside, ..."""
_TELLING_NOTHING = frozenset(("fspath", "strerror", "get_terminal_size"))
"""... but for these. The others, which each version of Python has anew, split texts of paths."""
_FUNCTIONS = frozenset((io.open, io.open_code, input, _thread.start_new_thread))
_NAMES = {"posix": "os", "nt": "os", "_io": "io", "_thread": "threading"}
_SHARED: Any = random._inst
_SEED: CodeType = random.Random.seed.__code__
_TORCHS: dict[CodeType, str] = {
    each.__code__: f"{each.__module__}.{each.__name__}()".replace("torch.serialization", "torch")
    for each in (torch.load, torch.save, torch.hub.load, torch.jit.load)
}  # fmt: skip
"""Functions of torch's that read or write files for the user."""
_DOORS: dict[CodeType, str] = {
    **{
        function.__code__: f"os.environ ({name})"
        for name, function in vars(type(os.environ)).items()
        if hasattr(function, "__code__") and name != "__init__"
    },
    **_TORCHS,
    threading.Thread.start.__code__: "threading.Thread.start()",
    _SEED: "",
}
"""Functions of Python that lead outside without calling one of C, or in the user's name."""
_NOTING = frozenset(
    filter(None, [getattr(find_spec(n), "origin", None) for n in
                  ("logging", "warnings", "linecache", "traceback", "tokenize")])
)  # fmt: skip
"""The files of what tells the user something."""
_NUMPY = str(getattr(find_spec("numpy"), "origin", "")).removesuffix("__init__.py")
