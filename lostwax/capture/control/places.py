"""Where a function may keep something: what it can reach, and what is in there.

From a function we follow what it is closed over, its defaults, and the globals that its code names,
on through containers, objects and classes. What we meet is remembered with its content, and can be
compared later, by identity. Must not run anything, and must not look at tensors' values.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from gc import get_referents
from io import BytesIO, StringIO
from itertools import chain
from operator import is_
from threading import local
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from lostwax.bytecode import (
    argument_defaults,
    closure_variables,
    modules_imported,
    outline,
)
from lostwax.cache import PerClass, cached_by_identity
from lostwax.capture.python.containers import (
    CLASSES,
    GENERATORS,
    GONE,
    HOLDERS,
    STREAMS,
    ClassAttributes,
    items,
    key_of,
    members,
    parts,
)
from lostwax.capture.python.function_holders import CACHED
from lostwax.capture.python.hidden_state import (
    CALLS,
    HIDES,
    Fixed,
    Hidden,
    TorchSettings,
    is_value,
)
from lostwax.capture.python.iterators import Stream
from lostwax.capture.state.snapshot import fill
from lostwax.classes import SYMBOLIC
from lostwax.fake.asked_tensor import read_attributes, select_attributes
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import Seen
from lostwax.location import is_user_code, is_user_file

Named = tuple[str, Any]


class Place(NamedTuple):
    """Where something may be kept: a container, a variable, attributes."""

    name: str
    """What the user calls it, or what holds it."""
    value: Any
    content: Any
    """What was in it when it was found."""


class Change(NamedTuple):
    name: str
    key: Any = None
    """Under which key or name something else is in it."""


class _Habits(NamedTuple):
    """What a function's code may do."""

    sets_attributes: bool
    computes_names: bool
    """Of attributes that it sets."""
    leads_on: bool
    """It may get at what no name in it leads to."""


@cached_by_identity(5000)
def _judge(code: CodeType) -> _Habits:
    read = outline(code)
    computes = not _COMPUTING.isdisjoint(read.names)
    leads_on = read.has_imports() or not _ROUNDABOUT.isdisjoint(read.names)
    return _Habits(computes or read.sets_attributes(), computes, leads_on)


_ROUNDABOUT = frozenset(
    (
        "globals", "locals", "vars", "eval", "exec", "__import__", "import_module", "modules",
        "_getframe", "currentframe", "stack", "f_back", "get_objects", "get_referrers",
        "__globals__", "__closure__",
    )
)  # fmt: skip
"""Code with these names may get at what no name in it leads to."""
_COMPUTING = frozenset(("setattr", "delattr", "__dict__", "vars", "__setattr__"))
"""Code with these names may set attributes whose names are computed."""


class Places:
    """The places that some values lead to."""

    def __init__(self, watched: Seen, opens_watched: bool = True) -> None:
        """`watched` are the program's modules; are those opened whose classes are torch's own?"""
        self.functions: list[FunctionType] = []
        """The functions that we have come by."""
        self.buffers: list[dict[str, Any]] = []
        """The registries of buffers of modules."""
        self.leads_on = False
        """Have we met something that may lead further than we see, as the methods of an object do?
        Then what the program's modules hold is to be compared as a whole."""
        self.sets_attributes = False
        """Does one of the functions set attributes?"""
        self._watched = watched
        self._opens_watched = opens_watched
        self._found: dict[Any, Place] = {}
        self._empty: list[Any] = []
        """Empty containers, of which modules have many, ..."""
        self._empty_names: list[str] = []
        """... and their names."""
        self.fakes: list[tuple[str, FakeTensor]] = []
        """Fakes that are not opened yet: they have attributes only if code of the user's has set
        some (`open_fakes`)."""
        self._bare: list[dict[str, Any]] = []
        """The dictionaries of tensors without attributes of the user's."""
        self._count = 0
        """How much there was in these."""
        known = (sys.modules, sys.stdout, sys.stderr)  # what is printed is nobody's
        self._seen: dict[int, Any] = {id(each): each for each in known}

    # ---------------------------------------------------------------------------------- the walk

    def add(self, name: str, value: Any) -> None:
        """Find the places that a value leads to."""
        left, seen = [(name, value)], self._seen
        while left:
            name, value = left.pop()
            open_value = _OPENERS[type(value)]
            if open_value is None or id(value) in seen:
                continue
            seen[id(value)] = value
            if len(seen) > _MOST:
                self.leads_on = True
                return
            left += open_value(self, name, value)

    def note(self, name: str, value: Any, key: Any = None) -> None:
        """Remember what is in this place, and in no other that it leads to."""
        if type(value) in PLAIN and not value:
            self._empty.append(value)
            self._empty_names.append(name)
            return
        key = key_of(value) if key is None else key
        if key not in self._found:
            self._found[key] = Place(name, value, _READERS[type(value)](value))

    def note_class(self, name: str, value: Any) -> None:
        self.note(f"the class of {name}", Fixed(value, _CLASS), (_CLASS, id(value)))

    def open_function(self, _: str, function: FunctionType) -> Iterable[Named]:
        code = function.__code__
        if not is_user_code(code):  # it may be a decorator's
            return [] if "stands_for" in vars(function) else closure_variables(function)
        self.functions.append(function)
        self.note(function.__name__, vars(function))
        self.note(f"the defaults of {function.__name__}", Fixed(function, _DEFAULTS), -id(function))
        found: list[Named] = []
        if function.__kwdefaults__:
            self.note(function.__name__, function.__kwdefaults__)
        if function.__defaults__ or function.__kwdefaults__:
            found += argument_defaults(function)
        if function.__closure__:
            for name, cell in zip(code.co_freevars, function.__closure__, strict=True):
                if _read_cell(cell) is not GONE:  # else an inner function sets it later
                    self.note(name, cell)
            found += closure_variables(function)
        return found + self._open_names(function, found)

    def _open_names(self, function: FunctionType, held: Sequence[Named]) -> list[Named]:
        """The globals that a function's code names, and the attributes of Python's modules; `held`
        is what the function holds itself."""
        known, code = function.__globals__, outline(function.__code__)
        habits = _judge(function.__code__)
        self.sets_attributes |= habits.sets_attributes
        self.leads_on |= habits.leads_on
        named = [(name, known[name]) for name in code.names if name in known]
        modules = [v for _, v in (*named, *held) if isinstance(v, ModuleType)]
        if code.has_imports():
            names = [name for each in code.codes for name in modules_imported(each, known)]
            modules += [sys.modules[name] for name in names if name in sys.modules]
        if habits.leads_on and "globals" in code.names:
            self.note(function.__name__, known)
        found = [each for each in named if not isinstance(each[1], ModuleType)]
        return found + self._open_python_modules(modules, code.names, habits)

    def _open_python_modules(
        self, modules: list[ModuleType], names: tuple[str, ...], habits: _Habits
    ) -> list[Named]:
        """What these names are in modules, and in modules that are named in these."""
        found, opened = list[Named](), list[ModuleType]()
        while modules:
            module = modules.pop()
            if module in opened:
                continue
            opened.append(module)
            held = vars(module)
            is_users = is_user_file(held.get("__file__") or "")
            if habits.sets_attributes:
                named = _NamedAttributes(
                    held, None if habits.computes_names and is_users else names
                )
                self.note(module.__name__, named, (id(held), named.names))
            for name in names:
                value = held.get(name)
                if (open_value := _OPENERS[type(value)]) is Places.open_python_module:
                    modules.append(value)  # type: ignore[arg-type]
                elif open_value and (is_users or open_value is not Places.open_builtin):
                    found.append((name, value))
        return found

    def open_wrapper(self, name: str, value: Any) -> Iterable[Named]:
        return [(name, getattr(value, each, None)) for each in _WRAPPERS[type(value)]]

    def open_builtin(self, name: str, value: Any) -> Iterable[Named]:
        """A function of C, or a method that is bound to an object."""
        return [] if isinstance(value.__self__, (ModuleType, type)) else [(name, value.__self__)]

    def open_cached(self, name: str, value: Any) -> Iterable[Named]:
        self.leads_on = True
        return [(name, getattr(value, "__wrapped__", None))]

    def open_reference(self, name: str, value: Any) -> Iterable[Named]:
        self.leads_on = True
        return [(name, value())] if type(value) is weakref.ref else ()

    def open_class(self, name: str, cls: type) -> Iterable[Named]:
        found: list[Named] = []
        for each in (*CLASSES[cls], *_find_metaclasses(cls)):
            self.leads_on = True
            self.note(name, ClassAttributes(each))
            found += [
                (_name_of(key, name), value)
                for key, value in vars(each).items()
                if key[:2] != "__" and type(value) not in _METHODS
            ]
        return found

    def open_python_module(self, name: str, module: ModuleType) -> Iterable[Named]:
        """One that no name led to."""
        self.leads_on |= is_user_file(vars(module).get("__file__") or "")
        return ()

    def open_tensor(self, name: str, tensor: torch.Tensor) -> Iterable[Named]:
        if type(tensor) is FakeTensor:
            self.fakes.append((name, tensor))
            return ()
        return self._open_attributes(name, read_attributes(tensor))

    def _open_attributes(self, name: str, attributes: dict[str, Any]) -> Iterable[Named]:
        found = select_attributes(attributes)
        if found:
            self.note(name, TensorAttributes(attributes), id(attributes))
        else:
            self._bare.append(attributes)
            self._count += len(attributes)
        return found

    def open_fakes(self) -> None:
        """Find what is kept in attributes of fakes."""
        while self.fakes:
            name, fake = self.fakes.pop()
            for each in self._open_attributes(name, read_attributes(fake)):
                self.add(*each)

    def open_content(self, name: str, value: Any) -> Iterable[Named]:
        """An array, a file in memory, or a variable of a context."""
        self.note(name, value)
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return [(name, each) for each in value.flat]
        return [(name, value.get(None))] if isinstance(value, ContextVar) else ()

    def open_weak(self, name: str, value: Any) -> Iterable[Named]:
        """A container that holds weakly."""
        return [(name, vars(value)["data"])]

    def open_local(self, name: str, value: local) -> Iterable[Named]:
        self.leads_on = True
        return [(name, vars(value))]

    def open_stream(self, name: str, value: Any) -> Iterable[Named]:
        self.leads_on = True
        self.note(name, value)
        is_pythons = hasattr(value, "gi_frame") or GENERATORS[type(value)]
        return () if is_pythons else [(name, each) for each in get_referents(value)]

    def open_hidden(self, name: str, value: Any) -> Iterable[Named]:
        """An object of C."""
        self.leads_on = True
        if is_value(value):
            return ()
        place = Hidden(value)
        more = " (or calls a method of it, which may)" if CALLS.watch(value) else ""
        self.note(name + more, place, -id(value))
        return [(name, each) for each in place.leads_to()]

    def open_container(self, name: str, value: Any) -> Iterable[Named]:
        if not isinstance(value, (tuple, frozenset)):
            self.note(name, value)
        found = [(name, each) for each in members(value)]
        if isinstance(value, dict):
            found += [(name, key) for key in value if type(key) is not str]
            found += [(name, getattr(value, "default_factory", None))]
        return found

    def open_object(self, name: str, value: Any) -> Iterable[Named]:
        """An object of the user's, or a container of a class of its own."""
        self.leads_on = True
        found: list[Named] = []
        if HIDES[type(value)]:
            found += self.open_hidden(name, value)
        self.note_class(name, value)
        for part in parts(value):
            if not isinstance(part, tuple):
                self.note(name, part)
            if part is value:
                found += [(name, each) for each in members(part)]
            else:
                found += [(_name_of(key, name), each) for key, each in items(part)]
        return found

    def open_module(self, name: str, module: nn.Module) -> Iterable[Named]:
        is_torchs = _IS_TORCHS[type(module)]
        self.leads_on |= not is_torchs
        if module in self._watched and not (is_torchs and self._opens_watched):
            return ()
        held = vars(module)
        self.note(name, held)
        found: list[Named] = []
        for key, value in held.items():
            if type(value) in PLAIN and not value:
                self._empty.append(value)
                self._empty_names.append(key)
            elif _OPENERS[type(value)] and key != "_compiled_call_impl":  # it tells of calls
                found.append((_name_of(key, name), value))
        if module._buffers:
            self.buffers.append(module._buffers)
        return found

    def open_other(self, _: str, __: Any) -> Iterable[Named]:
        self.leads_on = True
        return ()

    # ------------------------------------------------------------------------------ the comparison

    def look(self) -> dict[Any, Any]:
        """What is in the places now, for `find_change`."""
        if any(self._empty):
            known = [*zip(self._empty_names, self._empty, strict=True)]
            self._empty_names, self._empty = [], []
            for name, each in known:
                self.note(name, each)
        if self._is_bare_no_more():
            bare, self._bare, self._count = self._bare, [], 0
            for held in bare:
                self._open_attributes("a tensor", held)
        return {key: _READERS[type(p.value)](p.value) for key, p in self._found.items()}

    def find_change(self, since: dict[Any, Any]) -> Change | None:
        """What has changed since a look; of places that were found later, since then."""
        for key, (name, value, first) in self._found.items():
            changed = _find_key(value, since.get(key, first))
            if changed is not None:
                return Change(_describe(name, value, *changed), *changed)
        if any(self._empty):
            return Change(next(n for n, v in zip(self._empty_names, self._empty, strict=True) if v))
        if self._is_bare_no_more():
            for held in self._bare:
                for key, _ in select_attributes(held):
                    return Change(_describe("", TensorAttributes(held), key), key)
        return None

    def has_seen(self, value: Any) -> bool:
        """Have we come by this object, or might we have?"""
        return id(value) in self._seen or len(self._seen) > _MOST

    def list_changes(self, since: dict[Any, Any]) -> Iterator[tuple[Any, Place]]:
        """Yield all places that have changed since a look, with what was in them then."""
        for key, place in self._found.items():
            before = since.get(key, place.content)
            if _find_key(place.value, before) is not None:
                yield key, place._replace(content=before)
        for name, value in zip(self._empty_names, self._empty, strict=True):
            if value:
                yield key_of(value), Place(name, value, [])
        if self._is_bare_no_more():
            for held in self._bare:
                if select_attributes(held):
                    yield id(held), Place("a tensor", TensorAttributes(held), [])

    def _is_bare_no_more(self) -> bool:
        return sum(map(len, self._bare)) != self._count


def _find_metaclasses(cls: type) -> list[type]:
    """The user's classes of a class, itself among them if it is one."""
    meta: type = type(cls)
    found: list[Any] = [*dict.fromkeys([*cls.__mro__, *meta.__mro__])]
    known = [each for each in found if issubclass(each, type) and each.__flags__ & _HEAP]
    return [each for each in known if each.__module__ not in _LIBRARY]


def _describe(name: str, value: Any, key: Any) -> str:
    """What has changed, if that is what a place has under a key."""
    if type(value) is TensorAttributes:
        return f"{key}, an attribute of a tensor"
    return f"{key} of {name}" if type(value) is _NamedAttributes else name


def _name_of(key: Any, holder: str) -> str:
    """How the user calls an attribute."""
    return key if isinstance(key, str) and key[:1] != "_" else holder


# ------------------------------------------------------------------------- attributes that count


class _NamedAttributes(NamedTuple):
    """Those attributes of a Python module that a function's code names, or all of them."""

    held: dict[str, Any]
    names: tuple[str, ...] | None


class TensorAttributes(NamedTuple):
    """The attributes that users have given to a tensor."""

    held: dict[str, Any]


# ------------------------------------------------------------------------------- what is in a place


def _find_reader(cls: type) -> Callable[[Any], Any]:
    if cls is dict:
        return dict.copy
    if issubclass(cls, np.ndarray):
        return _read_array
    for known, read in _KNOWN_READERS.items():
        if issubclass(cls, known):
            return read
    return Stream if STREAMS[cls] else items


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return GONE


def _read_array(value: Any) -> Any:
    if value.dtype.hasobject:
        return list(enumerate(value.flat))
    return value.shape, value.dtype, value.tobytes()


_FILES = (StringIO, BytesIO)
_Cell: Any = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]
_KNOWN_READERS: dict[type, Callable[[Any], Any]] = {
    _Cell: lambda cell: [("", _read_cell(cell))],
    _NamedAttributes: lambda its: [
        (name, its.held.get(name, GONE))
        for name in ([*its.held] if its.names is None else its.names)
    ],
    TensorAttributes: lambda its: select_attributes(its.held),
    ContextVar: lambda variable: [("", variable.get(GONE))],
    bytearray: bytes,
    array: lambda value: (value.typecode, value.tobytes()),
    memoryview: lambda value: value.tobytes(),
    **dict.fromkeys((Hidden, Fixed, TorchSettings), lambda place: place.read()),
    **dict.fromkeys(_FILES, lambda file: None if file.closed else (file.getvalue(), file.tell())),
}
_READERS = PerClass(__name__, "readers", _find_reader)
"""For each class of places: what reads what is in one."""


def read_place(value: Any) -> list[tuple[Any, Any]] | None:
    """The keys and values in a place now; None if it has none, as an array or an iterator."""
    return list_content(_READERS[type(value)](value))


def list_content(content: Any) -> list[tuple[Any, Any]] | None:
    """The keys and values in what was read from a place."""
    if isinstance(content, dict):
        return [*content.items()]
    is_list = isinstance(content, list) and not isinstance(content, Stream)
    return content if is_list else None


def write_place(value: Any, content: list[tuple[Any, Any]]) -> None:
    """Put these keys and values, and no others, into a place."""
    if type(value) is _Cell:
        ((_, held),) = content
        if held is GONE:
            if _read_cell(value) is not GONE:
                del value.cell_contents
        else:
            value.cell_contents = held
    elif isinstance(value, (_NamedAttributes, TensorAttributes)):
        known = dict(content)
        if isinstance(value, TensorAttributes):
            known = {**dict.fromkeys((k for k, _ in select_attributes(value.held)), GONE), **known}
        for name, held in known.items():
            if held is GONE:
                value.held.pop(name, None)
            else:
                value.held[name] = held
    elif isinstance(value, (list, deque, set)):
        fill(value, [held for _, held in content])
    elif isinstance(value, ContextVar):
        ((_, held),) = content
        if held is not GONE:  # nothing unsets it
            value.set(held)
    else:
        fill(value, dict(content))


def _flatten(content: dict[Any, Any]) -> Iterator[Any]:
    return chain(content, content.values())


def _find_key(value: Any, before: Any) -> tuple[Any] | None:
    """The key under which something else is in a place, or None."""
    if isinstance(before, Stream):
        return (None,) if before.is_moved() else None
    now = _READERS[type(value)](value)
    if type(before) is dict:
        if len(now) == len(before) and all(map(is_, _flatten(now), _flatten(before))):
            return None
        now, before = [*now.items()], [*before.items()]
    if not isinstance(before, list):
        return None if now == before else (None,)
    is_variable = type(value) is _Cell
    for (a, b), (c, d) in zip(now, before, strict=False):
        if a is not c or (b is not d and (is_variable or not stands_for(b, d))):
            return (a,)
    if len(now) != len(before):
        longer = now if len(now) > len(before) else before
        return (longer[min(len(now), len(before))][0],)
    return None


def stands_for(now: Any, before: Any) -> bool:
    """Has a capture put its own function or class in the place of another, or put that back?"""
    for one, other in ((now, before), (before, now)):
        function = one.__func__ if type(one) is staticmethod else one
        if callable(one) and getattr(function, "stands_for", GONE) is other is not GONE:
            return True
    if type(now) is not tuple or type(before) is not tuple or len(now) != len(before):
        return False
    return all(a is b or stands_for(a, b) for a, b in zip(now, before, strict=True))


# ------------------------------------------------------------------------------ what leads further


Opener = Callable[[Places, str, Any], Iterable[Named]]


def _find_opener(cls: type) -> Opener | None:
    if cls in _INERT or issubclass(cls, np.generic):
        return None
    if cls in PLAIN or cls in (tuple, frozenset):
        return Places.open_container
    for known, opener in _KNOWN.items():
        if issubclass(cls, known):
            return opener
    if cls in _WRAPPERS:
        return Places.open_wrapper
    if STREAMS[cls]:
        return Places.open_stream
    if HOLDERS[cls]:
        return Places.open_object
    return Places.open_hidden if HIDES[cls] else Places.open_other


_INERT = frozenset(
    (
        NoneType, bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType, range,
        slice, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
        *SYMBOLIC, OpOverload, OpOverloadPacket,
        MethodDescriptorType, WrapperDescriptorType, MemberDescriptorType, GetSetDescriptorType,
        FrameType,
    )
)  # fmt: skip
"""Classes of what holds nothing that can change."""
PLAIN = frozenset((list, dict, set, OrderedDict, defaultdict, deque))
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_ARRAYS = (np.ndarray, bytearray, array, memoryview)
HAS_MORE = PerClass(
    __name__,
    "more",
    lambda cls: (
        issubclass(cls, (torch.Tensor, *_ARRAYS, *_FILES, *_WEAK, ContextVar, local))
        or STREAMS[cls]
        or (HIDES[cls] is not None and _OPENERS[cls] in (Places.open_hidden, Places.open_object))
    ),
)
"""Has it something in it, or attributes, that snapshots of modules do not know of?"""
IS_CALLED = PerClass(
    __name__,
    "called",
    lambda cls: issubclass(
        cls, (FunctionType, MethodType, BuiltinFunctionType, partial, weakref.ref)
    ),
)
"""Does it lead to objects by being called?"""
_KNOWN: dict[type, Opener] = {
    torch.Tensor: Places.open_tensor,
    nn.Module: Places.open_module,
    FunctionType: Places.open_function,
    CACHED: Places.open_cached,
    BuiltinFunctionType: Places.open_builtin,
    MethodWrapperType: Places.open_builtin,
    type: Places.open_class,
    ModuleType: Places.open_python_module,
    weakref.ref: Places.open_reference,
    **dict.fromkeys((*_ARRAYS, *_FILES, ContextVar), Places.open_content),
    **dict.fromkeys(_WEAK, Places.open_weak),
    local: Places.open_local,
}
_WRAPPERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    partial: ("func", "args", "keywords"),
}
_OPENERS: PerClass[Opener | None] = PerClass(__name__, "openers", _find_opener)
"""For each class: the method that opens an object of it; None: there is nothing to open."""
_IS_TORCHS = PerClass(
    __name__, "modules of torch", lambda cls: str(cls.__module__).startswith("torch.nn.modules.")
)
"""Are the functions of a module torch's own?"""
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_LIBRARY = frozenset(("abc", "enum", "typing"))
_METHODS = (FunctionType, staticmethod, classmethod, property)
_DEFAULTS, _CLASS = ("__defaults__", "__kwdefaults__"), ("__class__",)
_MOST = 20_000
"""How many values we open at most."""
