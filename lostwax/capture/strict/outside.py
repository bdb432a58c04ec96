"""Refuses what a module reads of the world around it while it is captured: the clock, random
numbers, files, the environment; and what it begins there: threads, processes.

Python itself reports most of that, by audit events: of files, sockets, processes, threads,
whichever function causes them, and in every version. Of the clock, of random numbers and of most
that the system is asked for it does not; these are calls of functions of C, which a profiler sees.
Both have a price: a function that is watched runs at half its speed, and an audit hook can never be
taken away (with it, `id(x)` takes four times as long, and an export a tenth longer). So the watch
begins when a function of the user's begins that names something of Python's library which leads
outside; most modules name none. It is for this thread alone. Code of torch's may read what it
likes, and so may imports, logging and warnings. Must not change what others see.
"""

from __future__ import annotations

import datetime
import io
import os
import random
import select
import sys
import time
from _thread import start_new_thread
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from mmap import mmap
from socket import socket
from threading import Event, get_ident
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from lostwax.bytecode import argument_defaults, closure_variables, modules_imported
from lostwax.bytecode.copies import add_call
from lostwax.cache import PerClass
from lostwax.capture import threads
from lostwax.capture.heap.functions import ReadFunction, unwrap
from lostwax.capture.patches import random_numbers
from lostwax.capture.python.functions_run import PassingOn
from lostwax.capture.state.root_module import forward_of
from lostwax.errors import StrictError
from lostwax.location import PASSING_ON, Location, is_of_torch, is_user_file
from lostwax.undo.undo import Undo

Listener = Callable[[str, FrameType, FrameType | None], None]
"""Is told what is read outside, the user's frame that asks for it, and that of the function of
Python's which was entered, where it is known."""


class ExternalAccessMonitor:
    """Watches a call, from the moment on when it may read something outside. `tell` is told of
    it."""

    def __init__(self, undo: Undo, tell: Listener) -> None:
        self._undo = undo
        self._tell = tell
        self._is_on = False
        self._doors: list[Callable[[], None]] = []

    def look_at(self, found: ReadFunction) -> None:
        """Note that a function of the user's begins."""
        if not self._is_on and _leads_outside(found):
            self._begin()

    def look_at_call(self, call: Any, modules: Sequence[nn.Module]) -> None:
        """The call begins. What modules hold may lead outside, and functions that are made by
        `exec` are not looked at when they begin."""
        self._undo.add(partial(_listeners.__delitem__, slice(len(_listeners), None)))
        _listeners.append(self._tell)
        for function, what in _WATCHED_FUNCTIONS.items():
            plain: CodeType = function.__code__
            self._doors.append(partial(setattr, function, "__code__", plain))
            self._undo.add(self._doors[-1])
            function.__code__ = add_call(plain, partial(_enter, what))
        values = [*chain.from_iterable([vars(each).values() for each in modules])]
        kinds = {cls for cls in {*map(type, values)} if cls not in _DULL}
        held = [each for each in values if type(each) in kinds]
        classes: set[Any] = {*map(type, modules)}
        forwards = [forward_of(call), *[each.forward for each in classes]]
        if any(map(_is_outside, held)) or any(map(_has_no_file, forwards)):
            self._begin()

    def end(self) -> None:
        """Stop watching: the call is over."""
        for close in self._doors:
            close()
        if self._is_on:
            _end()

    def _begin(self) -> None:
        current: Any = sys.getprofile()
        while isinstance(current, PassingOn) and isinstance(current.other, PassingOn):
            current = current.other
        is_chained = isinstance(current, PassingOn) and current.other is None
        if not is_chained and current is not None:
            raise StrictError.here(
                "a profiler watches this thread",
                why="strict=True has to see what the module calls, and Python has room for one",
                instead="export without the profiler",
            )
        _install()
        self._undo.add(_end)
        self._is_on = True
        _watched.add(get_ident())
        if is_chained:
            current.other = _watch
        else:
            sys.setprofile(_watch)


def _end() -> None:
    _watched.discard(get_ident())
    current: Any = sys.getprofile()
    if isinstance(current, PassingOn):
        current.drop(_watch)
    else:
        sys.setprofile(None)


_watched: set[int] = set()
"""The threads that are watched."""
_listeners: list[Listener] = []
"""Who is told, of the calls that are watched, the innermost last. (One thread captures at a
time.)"""


_is_installed = Event()


def _install() -> None:
    if not _is_installed.is_set():
        _is_installed.set()
        sys.addaudithook(_on_audit_event)


# -------------------------------------------------------------------------- what may lead outside


def _leads_outside(found: ReadFunction) -> bool:
    if found.code.may_reach_unnamed() or not _WORDS.isdisjoint(found.code.names):
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
    if top not in sys.stdlib_module_names:
        return name.startswith("numpy.random")
    return top.strip("_") not in _PURE_MODULES


_LEADS_OUTSIDE = PerClass(
    __name__,
    "classes that lead outside",
    lambda cls: any(_is_outside_module(str(each.__module__)) for each in cls.__mro__),
)
"""Is it a class of something that leads outside, as open files are?"""
_DULL = frozenset((int, float, bool, str, type(None), tuple, list, dict, set, OrderedDict))
_PURE_MODULES = frozenset(
    (
        "abc", "array", "ast", "bisect", "builtins", "cmath", "collections", "contextlib",
        "contextvars", "copy", "copyreg", "dataclasses", "decimal", "dis", "enum", "fractions",
        "functools", "future", "heapq", "inspect", "itertools", "json", "keyword", "logging",
        "math", "numbers", "operator", "pprint", "re", "statistics", "string", "struct", "sys",
        "textwrap", "traceback", "types", "typing", "unicodedata", "warnings", "weakref",
    )
)  # fmt: skip
"""Modules of Python's library that read nothing outside, or nothing that they tell. What another
version adds is watched."""


# ------------------------------------------------------------------------------------ audit events


def _on_audit_event(event: str, given: tuple[Any, ...]) -> None:
    if not _watched or event in _FREQUENT_EVENTS or get_ident() not in _watched:
        return
    if _is_outside_event(event):
        asking = _find_asking(sys._getframe(1))
        if asking is not None:
            _report(_describe_event(event, given), asking)


def _is_outside_event(event: str) -> bool:
    """Does the audit event speak of something outside: not of Python's own objects and code?"""
    if event in _OUTSIDE_EVENTS:
        return True
    top = event.partition(".")[0]
    return top in sys.stdlib_module_names and top not in _INNER_EVENTS


def _describe_event(event: str, given: tuple[Any, ...]) -> str:
    if event.startswith("_thread."):
        return _THREAD
    named = f"{given[0]!r}" if given and isinstance(given[0], str) else ""
    return f"{event.removeprefix('builtins.')}({named})"


_THREAD = "a new thread"
_FREQUENT_EVENTS = frozenset(
    ("builtins.id", "object.__getattr__", "object.__setattr__", "sys._getframe")
)
_OUTSIDE_EVENTS = frozenset(("open", "builtins.input", "ctypes.dlopen"))
_INNER_EVENTS = frozenset(
    ("array", "builtins", "code", "ctypes", "gc", "marshal", "pickle", "sys")
)  # fmt: skip


# ---------------------------------------------------------------------------- functions of Python


def _enter(what: str) -> None:
    """One of them begins."""
    if threads.is_capturing():
        entered = sys._getframe(1)
        asking = _find_asking(entered)
        if asking is not None:
            _report(what, asking, entered)


ENVIRONMENT = "os.environ ({})"
"""What is told of a method of it."""
_WATCHED_FUNCTIONS: dict[Any, str] = {
    **{
        function: ENVIRONMENT.format(name)
        for name, function in vars(type(os.environ)).items()
        if isinstance(function, FunctionType) and name != "__init__"
    },
    torch.load: "torch.load()",
    torch.save: "torch.save()",
    torch.hub.load: "torch.hub.load()",
    torch.jit.load: "torch.jit.load()",
}
"""Functions that lead outside by themselves, or in the user's name. While a call is watched, they
tell when they begin."""


# ------------------------------------------------------------------------------------- the profiler


def _watch(frame: FrameType, event: str, arg: Any) -> None:
    if event == "c_call":
        what = _describe_builtin(arg)
        if what and (asking := _find_asking(frame)) is not None:
            _report(what, asking)
    elif frame.f_code is _SEED and event == "call":
        is_shared, is_seeded = frame.f_locals["self"] is _SHARED, frame.f_locals["a"] is not None
        what = "random.seed()" if is_shared else "a random generator without a seed"
        if (is_shared or not is_seeded) and (asking := _find_asking(frame.f_back)) is not None:
            _report(what, asking)


def _describe_builtin(function: Any) -> str:
    owner, name = function.__self__, function.__name__
    if function is start_new_thread:  # before Python 3.12 there is no event
        return _THREAD
    if isinstance(owner, ModuleType):
        module = owner.__name__.lstrip("_")
        is_api = not name.startswith("_") and function not in _PURE_FUNCTIONS
        return f"{_NAMES.get(module, module)}.{name}()" if module in _SYSTEM and is_api else ""
    if isinstance(owner, type):
        if issubclass(owner, datetime.date) and name in ("now", "utcnow", "today"):
            return f"{owner.__module__}.{owner.__qualname__}.{name}()"
    elif isinstance(owner, random.Random):
        is_shared = owner is _SHARED or owner in random_numbers.list_copies()
        if is_shared and name not in ("getstate", "setstate"):  # it draws nothing
            return f"random.{name}()"
    elif _IS_OPEN[type(owner)] and not _is_harmless_stream(owner):
        return f"{type(owner).__name__}.{name}()"
    return ""


_IS_OPEN = PerClass(
    __name__,
    "classes of what is open",
    lambda cls: (
        issubclass(cls, io.IOBase)
        or (
            any(str(each.__module__).lstrip("_") in _SYSTEM for each in cls.__mro__)
            and not issubclass(cls, tuple)
        )
    ),
)
"""Is it a class of files, sockets and their like, which are asked without an event?"""


def _is_harmless_stream(stream: Any) -> bool:
    """Is it in memory alone, or where everybody prints?"""
    printed = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(stream, (io.StringIO, io.BytesIO)) or any(stream is each for each in printed)


def _find_asking(frame: FrameType | None) -> FrameType | None:
    """The user's frame that asks; None if it is torch that asks, an import, or a log."""
    asking, at = None, frame
    while at is not None:
        file = at.f_code.co_filename
        if file.startswith("<frozen importlib") or file in _NOTING:
            return None
        if asking is None and is_of_torch(file) and file not in PASSING_ON:
            return None
        is_users = is_user_file(file) or _is_made(file)
        if asking is None and is_users and not file.startswith(_NUMPY):
            asking = at
        at = at.f_back
    return asking


def _report(what: str, asking: FrameType, entered: FrameType | None = None) -> None:
    _listeners[-1](what, asking, entered)


def refuse(what: str, asking: FrameType, entered: FrameType | None) -> NoReturn:
    """Raise an error at the line that asks."""
    code = asking.f_code
    raise StrictError(
        f"the module reads or changes what is outside of it: {what}.\n"
        f"  at {Location(code.co_filename, asking.f_lineno, code.co_name)}\n"
        "  why: the program would have what was read at capture, in every run\n"
        "  instead: read it before, and pass it as an argument; for random numbers, torch.rand is "
        "drawn again in each run"
    )


_SYSTEM: frozenset[str] = frozenset(
    (
        "fcntl", "grp", "mmap", "nt", "posix", "pwd", "resource", "select", "signal", "socket",
        "sqlite3", "ssl", "syslog", "termios", "time", "uuid",
    )
)  # fmt: skip
"""Modules of C whose functions and objects lead outside, many of them without an event. What is not
public there splits texts of paths."""
_NAMES = {"posix": "os", "nt": "os"}
_PURE_FUNCTIONS = frozenset((os.fspath, os.strerror, os.get_terminal_size))
_SHARED: Any = random._inst
_SEED: CodeType = random.Random.seed.__code__
_NOTING = frozenset(
    filter(None, [getattr(find_spec(n), "origin", None) for n in
                  ("logging", "warnings", "linecache", "traceback", "tokenize")])
)  # fmt: skip
"""Files whose functions only inform the user: logging, warnings."""
_NUMPY = str(getattr(find_spec("numpy"), "origin", "")).removesuffix("__init__.py")


def _list_methods(*owners: Any) -> set[str]:
    names = [(name, getattr(each, name)) for each in owners for name in dir(each)]
    return {name for name, value in names if callable(value) and not name.startswith("_")}


_COMMON_METHOD_NAMES = _list_methods(torch, torch.Tensor, nn.Module, str, list, dict, set)
_WORDS = frozenset(
    {
        *_list_methods(time, sys.modules[os.stat.__module__], select) - _COMMON_METHOD_NAMES,
        *_list_methods(io.TextIOWrapper, io.FileIO, mmap, socket) - _COMMON_METHOD_NAMES,
        *[each for each in np.random.__all__ if each[0].isupper() and each != "Generator"],
        *("default_rng", "input", "now", "utcnow", "today", "load", "save", "dump"),
        *("fromfile", "tofile", "savez", "savez_compressed", "savetxt"),
    }
)
"""Names that may lead outside where no value shows it: what the watch would refuse, as a
method of what an attribute holds; functions of Python's and numpy's."""
