"""What no attribute shows of an object, and a call may change: what C keeps in it (a lock, a queue,
an open file, a value of `ctypes`), its class, the defaults of a function, torch's own settings.

An object of C is compared by the bytes of which it consists, by the objects that it tells the
garbage collector of, and by the memory that it shows. Where more lies behind a pointer (a hash, a
socket), it counts how often a method of it was called (`Calls`): that may have changed it. What C
keeps cannot be put back. Must not call a method of the user's.
"""

from __future__ import annotations

import ctypes
import gc
import io
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import is_
from queue import SimpleQueue
from threading import Lock, RLock
from types import FrameType, FunctionType, NoneType
from typing import Any, NamedTuple

import torch

from lostwax.cache import PerClass
from lostwax.capture.heap.holders import find_own_slots
from lostwax.capture.python.functions_run import PassingOn
from lostwax.identity import ByIdentity
from lostwax.undo.undo import Undo

_HEAD, _POINTER = object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)


class OpaqueState(NamedTuple):
    """A place: what C keeps in an object."""

    owner: Any

    def read(self) -> Look:
        owner = self.owner
        shown = _read_memory(owner), _read_state(owner), CALLS.counts.get(owner)
        return Look(_read_bytes(owner), shown, *_find_held(owner))

    def leads_to(self) -> list[Any]:
        """The objects in it; of an event not the threads that wait for it."""
        held = _find_held(self.owner)
        return (
            [each for each in held if OPAQUE_BASE[type(each)]]
            if _is_threading_object(self.owner)
            else held
        )


def _read_bytes(owner: Any) -> bytes:
    cls = OPAQUE_BASE[type(owner)]
    content = bytearray(ctypes.string_at(id(owner) + _HEAD, cls.__basicsize__ - _HEAD))
    for offset in (cls.__weakrefoffset__, cls.__dictoffset__):
        if offset > 0:  # weak references and attributes, which are read as such
            content[offset - _HEAD : offset - _HEAD + _POINTER] = bytes(_POINTER)
    return bytes(content)


class Calls(PassingOn):
    """How often methods of objects that hide something behind a pointer were called."""

    def __init__(self) -> None:
        self.counts: ByIdentity[Any, int] = ByIdentity()
        self._owners: ByIdentity[Any, list[Any]] = ByIdentity()
        """For functions of C++ that are methods: the objects of their class. It is not told of
        which of them one is called."""
        self._captures = list[Undo]()
        """Those that run, one inside the other."""
        self._before: Any = None
        """The profile function that was set before."""

    def watch(self, owner: Any) -> bool:
        """Count calls of its methods from here on, until the capture is over; if there is need to.
        Outside of a capture nothing is counted."""
        if owner in self.counts or not self._captures or not _has_more(owner):
            return owner in self.counts
        current: Any = sys.getprofile()
        if current is not None and not callable(current):  # one of C, before Python 3.12
            return False
        self.counts[owner] = 0
        for each in _list_methods(type(owner)):
            self._owners.setdefault(each, []).append(owner)
        if current is not self:
            self._before = self.other = current
            sys.setprofile(self)
        return True

    def drop(self, other: Callable[..., Any]) -> None:
        """Stop reporting calls to it."""
        super().drop(other)
        self._before = None if self._before is other else self._before

    def __call__(self, frame: FrameType, event: str, given: Any) -> None:
        if event in _AFTER:
            owner = getattr(given, "__self__", None)
            if owner in self.counts:
                self.counts[owner] += 1
            for each in self._owners.get(given) or ():
                self.counts[each] += 1
        if self.other is not None:
            self.other(frame, event, given)

    def begin(self, undo: Undo) -> None:
        """A capture begins. To be called before all that looks at objects when the capture ends."""
        undo.add(partial(self._end, len(self._captures)))
        self._captures.append(undo)

    def _end(self, outer: int) -> None:
        del self._captures[outer:]  # an interrupt may have come before it was there
        if self.counts and not self._captures:
            if sys.getprofile() is self:
                sys.setprofile(self._before)
            self.counts.clear()
            self._owners.clear()


_AFTER = ("c_return", "c_exception")
"""Python 3.12 does not tell of calls of bound methods of C++, but of their returns."""
CALLS = Calls()


def _has_more(owner: Any) -> bool:
    """Is there something in it that cannot be copied, and is no Python object?"""
    cls: Any = OPAQUE_BASE[type(owner)]
    is_copied = any(getattr(cls, name) is not own for name, own in _COPYING)
    if is_copied or cls in _PLAIN_BYTES or _is_threading_object(owner):
        return False
    if isinstance(owner, _GROUPS) or _read_state(owner) is not None:
        return False
    is_shown = type(owner) is cls and any(each is not cls for each in _find_held(owner))
    return any(_read_bytes(owner)) and not is_shown


class Fixed(NamedTuple):
    """A place: what an object is, and no dictionary holds."""

    owner: Any
    names: tuple[str, ...]
    """Its class, the defaults of a function (and which code it has), …"""

    def read(self) -> Look:
        code = self.owner.__code__ if self.names is DEFAULTS else None
        # A capture puts copies of its own in the place of a function's code.
        shown = None if code is None else (code.co_filename, code.co_firstlineno, code.co_qualname)
        return Look(b"", shown, *[_find(self.owner, name) for name in self.names])

    def write(self, content: Look) -> None:
        """Put back what was read."""
        if isinstance(self.owner, partial):
            partial.__setstate__(self.owner, (*content.held, vars(self.owner)))  # type: ignore[attr-defined]
            return
        for name, value in zip(self.names, content.held, strict=True):
            if _find(self.owner, name) is not value:
                object.__setattr__(self.owner, name, value)

    def describe(self, owner: str) -> str:
        """The name of this place, given the name of its owner."""
        what = {CLASS: "class", DEFAULTS: "defaults or the code"}.get(self.names, "content")
        return f"the {what} of {owner}"


CLASS = ("__class__",)
DEFAULTS = ("__defaults__", "__kwdefaults__")
PARTIAL = ("func", "args", "keywords")


class TorchSettings(NamedTuple):
    """A place: the settings that torch computes by."""

    def read(self) -> Look:
        is_cast = torch._C._is_any_autocast_enabled()
        return Look(b"", None, torch.is_grad_enabled(), torch.get_default_dtype(), is_cast)


class Look:
    """What was in one of these places."""

    __slots__ = ("_content", "_shown", "held")

    def __init__(self, content: bytes, shown: Any, *held: Any) -> None:
        self._content, self._shown = content, shown
        self.held = held
        """The objects in it."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Look) or len(self.held) != len(other.held):
            return False
        return self.shows_as(other) and all(map(is_, self.held, other.held))

    __hash__ = None  # type: ignore[assignment]

    def shows_as(self, other: Look) -> bool:
        """Is what is in it the same, beside the objects?"""
        return (self._content, self._shown) == (other._content, other._shown)


def _is_threading_object(owner: Any) -> bool:
    """Is it an event, a semaphore or their like? They are written in Python, and read like C's."""
    return OPAQUE_BASE[type(owner)].__module__ == "threading"  # type: ignore[no-any-return]


def _find_held(owner: Any) -> list[Any]:
    return [*vars(owner).values()] if _is_threading_object(owner) else gc.get_referents(owner)


def _find(owner: Any, name: str) -> Any:
    return type(owner) if name == "__class__" else getattr(owner, name)


def _read_memory(value: Any) -> Any:
    """What an object shows of its memory (`ctypes`, `mmap`); where a file or generator stands."""
    try:
        if isinstance(value, io.IOBase):
            return io.FileIO.tell(value) if isinstance(value, io.FileIO) else None
        if isinstance(value, torch.Generator):
            with torch._C._DisableTorchDispatch():
                return value.get_state().numpy().tobytes()
        return memoryview(value).tobytes()
    except (TypeError, ValueError, OSError, BufferError, NotImplementedError):
        return None


def _read_state(owner: Any) -> str | None:
    """What an object of C++ writes into a copy of it, if that is plain; None, if it is not."""
    write = _STATES[type(owner)]
    if write is None:
        return None
    try:
        state = write(owner)
    except Exception:  # of C++: it says so where it has nothing to write
        return None
    inside = [*state, *state.values()] if type(state) is dict else [state]
    inside = [each for some in inside for each in (some if type(some) is tuple else [some])]
    return repr(state) if all(type(each) in _PLAIN for each in inside) else None


def _find_state(cls: type) -> Any:
    """The method of C++ by which its class writes its objects into copies, or None. (Its objects
    have what is in them from a base of all such classes, which has none.)"""
    found = [vars(each).get("__getstate__") for each in _list_of_cpp(cls)]
    return next((each for each in found if not isinstance(each, FunctionType | NoneType)), None)


def _list_methods(cls: type) -> list[Any]:
    """The functions of C++ that are methods of its objects."""
    return [
        method.__func__
        for each in _list_of_cpp(cls)
        for method in vars(each).values()
        if type(method).__name__ == "instancemethod"
    ]


def _list_of_cpp(cls: type) -> tuple[type, ...]:
    """The class and those among its bases that C++ may have made."""
    base = OPAQUE_BASE[cls]
    is_of_cpp = base is not None and base.__module__ == "pybind11_builtins"
    return cls.__mro__[: cls.__mro__.index(base)] if is_of_cpp else ()


def is_value(owner: Any) -> bool:
    """Is it an immutable value that is compared by content, as a date or a pattern?"""
    cls = OPAQUE_BASE[type(owner)]
    try:
        return cls.__hash__ is not object.__hash__ and cls.__hash__(owner) is not None
    except TypeError:
        return False


def _find_opaque_base(cls: type) -> Any:
    """The class of C whose objects have more in them than attributes and slots."""
    for each in cls.__mro__[:-1]:
        if each.__module__ == "threading" or each is torch.Generator:
            return each
        base: Any = each.__base__
        own = each.__basicsize__ - base.__basicsize__
        for offset in ("__weakrefoffset__", "__dictoffset__"):
            own -= _POINTER * (getattr(each, offset) > 0 and getattr(base, offset) == 0)
        own -= _POINTER * len(find_own_slots(each))
        if own > 0 or each.__itemsize__:
            package = str(each.__module__).partition(".")[0]
            return None if package in _HARMLESS or issubclass(each, _SHOWN) else each
    return None


_PLAIN_BYTES = (type(Lock()), type(RLock()), SimpleQueue)
"""Classes whose bytes say all. (From Python 3.13 on, a queue counts there what was put in it.)"""
_GROUPS = (torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()
"""Groups of processes: what is asked of one (its size) stays, and what it does is a collective."""
_PLAIN = (int, float, complex, str, bytes, bool, NoneType)
_COPYING = [
    (name, getattr(object, name)) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
]
"""The methods by which a class says how its objects are copied."""
_HARMLESS = frozenset(
    (
        *("torch", "lostwax", "typing", "_typing", "_abc", "functools", "logging", "weakref"),
        "numpy",
    )
)
"""Packages whose classes of C only cache in their objects, or are handled elsewhere."""
_SHOWN = (
    *(type, BaseException, int, float, complex, str, bytes),
    *(tuple, list, dict, set, frozenset, deque),
)
"""Classes whose objects show all that is in them."""
OPAQUE_BASE = PerClass(__name__, "hides", _find_opaque_base)
"""For each class: the class of C among its bases whose objects have hidden contents, or None."""
_STATES = PerClass(__name__, "writes", _find_state)
