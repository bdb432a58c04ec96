"""Where an object leads: for each class, what its objects hold, and how that is found.

This is the one table. All walks over objects (`places.py`, `paths.py`, `snapshot.py`, the look at
the surroundings) open them by it, and add only what is their own business: which functions and
modules to follow, and how far. Each class is sorted once. Must not call anything of the user's, nor
know what is looked for.
"""

from __future__ import annotations

import functools
import io
import random
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import partial
from gc import get_referents
from io import BytesIO, StringIO
from pathlib import PurePath
from threading import local
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from lostwax.cache import PerClass
from lostwax.capture.heap.cached import CACHED, ResultCache
from lostwax.capture.heap.hidden import CLASS, OPAQUE_BASE, PARTIAL, Fixed, OpaqueState, is_value
from lostwax.capture.heap.holders import (
    CONTAINERS,
    ClassAttributes,
    SlotAttributes,
    find_attributes,
    find_slots,
    members,
)
from lostwax.capture.python.one_of import OneOf
from lostwax.capture.steps.provenance import CaughtCall
from lostwax.classes import SYMBOLIC, HasState
from lostwax.fake.tensor import FakeTensor


def parts(value: Any) -> list[Any]:
    """The containers that a value consists of: itself, its attributes, its slots."""
    made_of = [get(value) for get in _GETTERS[type(value)]]
    return [value, *made_of] if isinstance(value, tuple) else made_of


def extra_parts(module: nn.Module) -> list[Any]:
    """What a module consists of beside its attributes: slots, or a container that it is, too."""
    if not HAS_EXTRA_PARTS[type(module)]:
        return []  # nearly always
    return [each for each in parts(module) if each is not vars(module)]


def is_object(value: Any) -> bool:
    """Is it an object of the user's, which may keep something in its attributes?"""
    return OBJECTS[type(value)]


def _is_object_class(cls: type) -> bool:
    return IS_CUSTOM_HOLDER[cls] and bool(_GETTERS[cls]) and not issubclass(cls, _NO_OBJECTS)


def _is_holder(cls: type) -> bool:
    is_any = (
        bool(_GETTERS[cls]) or issubclass(cls, (tuple, torch.Tensor)) or IS_STREAM_OR_ARRAY[cls]
    )
    return is_any and not issubclass(cls, FakeTensor)


def _is_stream(cls: type) -> bool:
    """Is it a random generator, or an iterator that we cannot look into? Files do not count."""
    is_iterator = hasattr(cls, "__next__") and not issubclass(cls, io.IOBase)
    return GENERATORS[cls] or (is_iterator and not _GETTERS[cls])


def _is_generator(cls: type) -> bool:
    """numpy loads its generators when they are first used; before, no class is one."""
    known: tuple[type, ...] = (random.Random,)
    if "numpy.random" in sys.modules:
        known += (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return issubclass(cls, known)


def _is_odd(cls: type) -> bool:
    return HOLDERS[cls] and cls not in CONTAINERS and cls is not tuple


def _getters(cls: type) -> Sequence[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = [_itself] if issubclass(cls, _CONTAINERS) else []
    is_known = issubclass(cls, nn.Module) or cls is SimpleNamespace
    if cls not in CONTAINERS and (is_known or _is_user_class(cls)):
        if shown := find_attributes(cls):
            found.append(shown.__get__)
        if places := find_slots(cls):
            found.append(lambda value: SlotAttributes(value, places))
    return found


def _itself(value: Any) -> Any:
    return value


def _is_user_class(cls: type) -> bool:
    """Is the class written in Python, and not handled elsewhere?"""
    if not cls.__flags__ & _HEAP or issubclass(cls, _NOT_CHANGED):
        return False
    package, _, rest = str(cls.__module__).partition(".")
    return package not in _INTERNAL_PACKAGES or (
        package == "torch" and rest.startswith(_KEEPING_TORCH_PACKAGES)
    )


_NOT_CHANGED = (type, Enum, torch.Tensor, PurePath)  # a path keeps its parts once it is asked
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_INTERNAL_PACKAGES = frozenset(("torch", "lostwax", "functools", "logging", "threading", "weakref"))
_KEEPING_TORCH_PACKAGES = ("distributions.", "optim.")
"""Packages of torch whose objects keep in their attributes what they compute."""
_NO_OBJECTS = (tuple, torch.Tensor)
_CONTAINERS = (list, dict, set, deque)
_GETTERS = PerClass(__name__, "getters", _getters)
"""For each class: the functions that return the containers an object of it consists of."""
HAS_EXTRA_PARTS = PerClass(__name__, "has_extra_parts", lambda cls: len(_GETTERS[cls]) > 1)
"""Does a module of this class consist of more than its attributes?"""
GENERATORS = PerClass(__name__, "generators", _is_generator)
"""Is it a random generator?"""
STREAMS = PerClass(__name__, "streams", _is_stream)
"""Is it an iterator or a random generator, which gives another value each time?"""
MUTABLE_ARRAYS = (np.ndarray, bytearray, array)
IS_STREAM_OR_ARRAY = PerClass(
    __name__, "moving", lambda cls: STREAMS[cls] or issubclass(cls, MUTABLE_ARRAYS)
)
"""Is it one of these, or an array, in which a call may leave other numbers?"""
HOLDERS = PerClass(__name__, "holders", _is_holder)
"""Can it hold something?"""
IS_CUSTOM_HOLDER = PerClass(__name__, "odd", _is_odd)
"""Can it hold something, but is neither a tuple nor one of Python's own containers?"""
OBJECTS = PerClass(__name__, "objects", _is_object_class)
"""Is it a class of the user's, whose objects may keep something in their attributes?"""
CLASSES = PerClass(__name__, "classes", lambda cls: tuple(filter(_is_user_class, cls.__mro__)))
"""The user's classes among a class and its bases."""


# -------------------------------------------------------------------------- what an object leads to


class ObjectContents(NamedTuple):
    """What is in an object."""

    holders: Sequence[Any] = ()
    """What it consists of, and code can exchange the content of (`holders.py`)."""
    leads: Iterable[tuple[str, Any]] = ()
    """What it leads to otherwise, with the step of a path: `.func` of a partial."""
    acts: bool = False
    """Has it methods, which may get at more than is seen here?"""


def open_value(value: Any) -> ObjectContents:
    """What is in an object; empty for one that leads nowhere."""
    opener = OPENERS[type(value)]
    if opener is None:
        return _NOTHING
    found = opener(value)
    if not CLASSES[type(value)]:
        return found
    return found._replace(leads=[*found.leads, (".__class__", type(value))])


def _open_container(value: Any) -> ObjectContents:
    if not isinstance(value, dict):
        return ObjectContents([value])
    keys = [(_OF_KEY, key) for key in value if type(key) is not str and OPENERS[type(key)]]
    return ObjectContents([value], [*keys, (_OF_KEY, getattr(value, "default_factory", None))])


def _open_tuple(value: Any) -> ObjectContents:
    return ObjectContents((), [(f"[{i}]", each) for i, each in enumerate(value)])


def _open_object(value: Any) -> ObjectContents:
    """An object of the user's, or a container of a class of its own."""
    hidden = _open_hidden(value) if OPAQUE_BASE[type(value)] else _NOTHING
    made_of = [each for each in parts(value) if not isinstance(each, tuple)]
    holders = [*hidden.holders, Fixed(value, CLASS), *made_of]
    inside = enumerate(members(value)) if isinstance(value, tuple) else ()
    return ObjectContents(holders, [*hidden.leads, *((f"[{i}]", each) for i, each in inside)], True)


def _open_hidden(value: Any) -> ObjectContents:
    """An object of C."""
    if is_value(value):
        return _ACTING
    place = OpaqueState(value)
    return ObjectContents(
        [place], [(f"({i})", each) for i, each in enumerate(place.leads_to())], True
    )


def _open_stream(value: Any) -> ObjectContents:
    is_pythons = hasattr(value, "gi_frame") or GENERATORS[type(value)]
    inside = () if is_pythons else get_referents(value)
    return ObjectContents(
        [value],
        [(f"({i})", each) for i, each in enumerate(inside)],
        True,
    )


def _open_wrapper(value: Any) -> ObjectContents:
    names = WRAPPERS[type(value)]
    leads = [(f".{name}", getattr(value, name, None)) for name in names]
    fixed = [Fixed(value, PARTIAL)] if isinstance(value, partial) else []
    return ObjectContents([*fixed, *_find_own_attributes(value)], leads)


def _open_builtin(value: Any) -> ObjectContents:
    """A function of C, or a method that is bound to an object."""
    is_free = isinstance(value.__self__, (ModuleType, type))
    return _NOTHING if is_free else ObjectContents((), [(".__self__", value.__self__)])


def _open_cached(value: Any) -> ObjectContents:
    place = ResultCache(value)
    results = [(_OF_CACHE, result) for _, result in place.read() or ()]
    return ObjectContents([place, *_find_own_attributes(value)], results, True)


def _open_reference(value: Any) -> ObjectContents:
    inside = [("()", value())] if type(value) is weakref.ref else ()
    return ObjectContents((), inside, True)


def _open_finalizer(value: Any) -> ObjectContents:
    """A finalizer: its class keeps all that it has."""
    kept = vars(weakref.finalize)["_registry"].get(value)
    places = [] if kept is None else [SlotAttributes(kept, find_slots(type(kept)))]
    return ObjectContents(places, (), True)


def _open_content(value: Any) -> ObjectContents:
    """An array, a file in memory, or a variable of a context."""
    leads = list[tuple[str, Any]]()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        leads = [(f"[{i}]", each) for i, each in enumerate(value.flat)]
    elif isinstance(value, ContextVar):
        leads = [(".get()", value.get(None))]
    return ObjectContents([value], leads)


def _find_own_attributes(value: Any) -> list[Any]:
    """The dictionary of an object that is more than its attributes, if it has one."""
    shown = find_attributes(type(value))
    return [] if shown is None else [shown.__get__(value)]


def _open_exception(value: BaseException) -> ObjectContents:
    made_of = [Fixed(value, ("args", *CLASS)), find_attributes(type(value)).__get__(value)]
    return ObjectContents(made_of, [(".args", value.args)], True)


def _open_with_attributes(opener: Callable[[Any], ObjectContents], value: Any) -> ObjectContents:
    """An object of a user's class, which may have attributes and slots of its own."""
    opened = opener(value)
    return opened._replace(holders=[*opened.holders, *parts(value)], acts=True)


def _open_class(cls: type) -> ObjectContents:
    found = dict.fromkeys((*CLASSES[cls], *_find_metaclasses(cls)))
    return ObjectContents([*map(ClassAttributes, found)], (), bool(found))


def _find_metaclasses(cls: type) -> list[type]:
    """The user's classes of a class, itself among them if it is one."""
    meta: type = type(cls)
    found: list[Any] = [*dict.fromkeys([*cls.__mro__, *meta.__mro__])]
    known = [each for each in found if issubclass(each, type) and each.__flags__ & _HEAP]
    return [each for each in known if each.__module__ not in _OF_CLASSES]


def _find_opener(cls: type) -> Callable[[Any], ObjectContents] | None:
    if cls in _INERT or issubclass(cls, np.generic):
        return None
    if cls in CONTAINERS:
        return _open_container
    if cls in (tuple, frozenset, torch.Size):
        return _open_tuple
    for known, opener in _OPENERS.items():
        if issubclass(cls, known):
            has_own = _GETTERS[cls] and not issubclass(cls, (nn.Module, BaseException))
            return partial(_open_with_attributes, opener) if has_own else opener
    if WRAPPERS[cls]:
        return _open_wrapper
    if STREAMS[cls]:
        return partial(_open_with_attributes, _open_stream) if _GETTERS[cls] else _open_stream
    if HOLDERS[cls]:
        return _open_object
    return _open_hidden if OPAQUE_BASE[cls] else lambda _: _ACTING


_NOTHING, _ACTING = ObjectContents(), ObjectContents(acts=True)
_OF_KEY, _OF_CACHE = ", a key of it,", ", in its cache,"
_OF_CLASSES = frozenset(("abc", "enum", "typing"))
_INERT = frozenset(
    (
        NoneType, bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType, range,
        slice, torch.dtype, torch.device, torch.layout, torch.memory_format,
        *SYMBOLIC, OpOverload, OpOverloadPacket,
        MethodDescriptorType, WrapperDescriptorType, MemberDescriptorType, GetSetDescriptorType,
        FrameType, CaughtCall,
    )
)  # fmt: skip
"""Classes of what holds nothing that can change."""
_WRAPPERS: dict[type, tuple[str, ...]] = {
    CaughtCall: (),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    MethodType: ("__func__", "__self__"),
    partial: PARTIAL,
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    functools.singledispatchmethod: ("dispatcher", "__get__"),
    property: ("fget", "fset", "fdel"),
}
WRAPPERS = PerClass(
    __name__,
    "wrappers",
    lambda cls: next((names for each, names in _WRAPPERS.items() if issubclass(cls, each)), ()),
)
"""For each class of what wraps functions: the attributes where these are."""
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
METHODS = (FunctionType, staticmethod, classmethod, property)
FILES = (StringIO, BytesIO)
ARRAYS = (*MUTABLE_ARRAYS, memoryview)
MOST_OBJECTS = 200_000
"""How many objects a walk opens at most: an object may hold all the world."""
_OPENERS: dict[type, Callable[[Any], ObjectContents]] = {
    torch.Tensor: lambda value: _NOTHING,
    nn.Module: lambda value: ObjectContents(parts(value), (), True),
    FunctionType: lambda value: _NOTHING,
    ModuleType: lambda value: _NOTHING,
    CACHED: _open_cached,
    BuiltinFunctionType: _open_builtin,
    MethodWrapperType: _open_builtin,
    type: _open_class,
    weakref.ref: _open_reference,
    weakref.finalize: _open_finalizer,
    **dict.fromkeys((*ARRAYS, *FILES, ContextVar), _open_content),
    **dict.fromkeys(WEAK, lambda value: ObjectContents((), [("", vars(value)["data"])])),
    local: lambda value: ObjectContents(
        [value], [(f".{k}", v) for k, v in vars(value).items()], True
    ),
    MappingProxyType: lambda value: ObjectContents((), [("", get_referents(value)[0])]),
    Enum: lambda value: ObjectContents([vars(value)], (), True),
    HasState: lambda value: ObjectContents(
        [value.state], [("", each) for each in (*members(value.state), *value._lw_held())]
    ),
    OneOf: lambda value: ObjectContents((), [("", each) for each in value._lw_options]),
    BaseException: _open_exception,
}
OPENERS: PerClass[Callable[[Any], ObjectContents] | None] = PerClass(
    __name__, "openers", _find_opener
)
"""For each class: what opens an object of it; None: there is nothing to open. Each walk follows
functions, Python modules and tensors by itself."""


def _is_unsnapshotted(cls: type) -> bool:
    opener = OPENERS[cls]
    if opener is None or issubclass(cls, (nn.Module, ModuleType)):
        return False
    is_plain = opener in (_open_container, _open_tuple, _open_object) and OPAQUE_BASE[cls] is None
    return not (is_plain and HOLDERS[cls])


HAS_UNSNAPSHOTTED_STATE = PerClass(__name__, "more", _is_unsnapshotted)
"""Has it something in it, or attributes, that snapshots of modules do not know of?"""
