"""Things that hold functions, and run them when they are called or read: methods, properties,
partials, containers, objects of the user's, and modules of torch's kind.

Must not know what becomes of the functions, nor run any.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain, compress
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from torch import nn

from lostwax.cache import PerClass
from lostwax.capture.python.containers import CLASSES, find_attributes, find_slots

CACHED: Any = type(functools.cache(len))
"""The class of functions with `functools.lru_cache`."""
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    functools.singledispatchmethod: ("dispatcher", "__get__"),
    property: ("fget", "fset", "fdel"),
}
"""Classes of what wraps functions, and the attributes where these are."""
CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: lambda value: chain(dict.__iter__(value), dict.values(value)),
    **{cls: cls.__iter__ for cls in (list, tuple, deque)},
    set: lambda value: [each for each in set.__iter__(value) if not isinstance(each, type)],
    frozenset: lambda value: [
        each for each in frozenset.__iter__(value) if not isinstance(each, type)
    ],
    MappingProxyType: lambda value: value.values(),
}
"""Classes of containers, and what is in one; no method of a subclass is called. (Classes are in a
set to be found there, not to be called.)"""
_PLAIN = frozenset((*CONTAINERS, OrderedDict))
_TELLING = ("_abc", "dataclasses", "typing")
"""Modules whose objects say something about classes."""
_MANY = 1000
"""In a container of more, those that it holds are data."""


def unwrap(value: Any) -> Any:
    """The function under a method, a property or a partial."""
    while attributes := _ATTRIBUTES[type(value)]:
        value = getattr(value, attributes[0])
    return value


def wraps(value: Any) -> bool:
    """Is it a function, or a wrapper of one?"""
    return KINDS[type(value)] == FUNCTION or bool(_ATTRIBUTES[type(value)])


def is_object(value: Any) -> bool:
    """Is it an object of the user's, or a module of torch's kind?"""
    return _has_attributes(type(value))


def open_holder(value: Any) -> list[Any]:
    """What a wrapper, a container or an object holds, as far as it may hold functions or is one. An
    object's class is part of that."""
    found = select([each for get in _OPENERS[type(value)] for each in get(value)])
    if len(found) > _MANY:
        return [each for each in found if type(each) not in _PLAIN]
    return found


def select(values: Sequence[Any]) -> list[Any]:
    """Those among the values that are functions, or may hold some."""
    classes = {cls for cls in {*map(type, values)} if KINDS[cls]}
    return [each for each in values if type(each) in classes] if classes else []


def find_held(modules: Iterable[nn.Module]) -> list[Any]:
    """What is in attributes of the modules themselves, not of their classes. Most of these are
    empty containers, or registries of tensors."""
    values = [*chain.from_iterable([each.__dict__.values() for each in modules])]
    classes = [*map(type, values)]
    plain = [*filter(None, compress(values, map(_PLAIN.__contains__, classes)))]
    large = [each for each in plain if len(each) > _MANY]
    small = [_OPENERS[type(each)][0](each) for each in plain if len(each) <= _MANY]
    odd = {cls for cls in {*classes} if KINDS[cls]} - _PLAIN
    others = [each for each in values if type(each) in odd] if odd else []
    return others + large + select([*chain.from_iterable(small)])


def find_containers(value: Any) -> list[Any]:
    """The dicts and lists that a value is or has: itself, and its attributes."""
    cls = type(value)
    found = [value] if issubclass(cls, (dict, list)) else []
    if _has_attributes(cls) and (shown := find_attributes(cls)):
        found.append(shown.__get__(value))
    return found


def has_any(values: Iterable[Any], asked: Set[Any]) -> bool:
    """Is one of these among the values, or in a tuple among them? They are `type` or functions of
    C."""
    values = [*values]
    if _ASKED.isdisjoint(map(type, values)):
        return False  # nearly always
    tuples = [each for each in values if type(each) is tuple]
    of_c = [each for each in values if type(each) is BuiltinFunctionType]
    if any(each in asked for each in of_c) or (type in asked and any(v is type for v in values)):
        return True
    return any(has_any(each, asked) for each in tuples)


_ASKED = frozenset((type, BuiltinFunctionType, tuple))


def _has_attributes(cls: type) -> bool:
    is_users = CLASSES[cls] and cls.__module__ not in _TELLING
    return bool(is_users) or issubclass(cls, (nn.Module, SimpleNamespace))


def _find_openers(cls: type) -> list[Callable[[Any], Iterable[Any]]]:
    if attributes := _ATTRIBUTES[cls]:
        return [lambda value: [getattr(value, name) for name in attributes]]
    found = [get for each, get in CONTAINERS.items() if issubclass(cls, each)]
    if _has_attributes(cls):
        found.append(lambda value: (type(value),))
        if shown := find_attributes(cls):
            found.append(lambda value: shown.__get__(value).values())
        if places := [*find_slots(cls).values()]:
            found.append(lambda value: [read_slot(value, each) for each in places])
    return found


def read_slot(value: Any, place: Any) -> Any:
    try:
        return place.__get__(value)
    except AttributeError:  # it is not set
        return None


_ATTRIBUTES = PerClass(
    __name__,
    "attributes",
    lambda cls: next((names for each, names in _WRAPPERS.items() if issubclass(cls, each)), ()),
)
_OPENERS = PerClass(__name__, "openers", _find_openers)
"""For each class: the functions that get at what an object of it holds."""

OTHER, FUNCTION, CLASS, MODULE, HOLDER, OF_C = range(6)


def _find_kind(cls: type) -> int:
    if issubclass(cls, (FunctionType, CACHED)):
        return FUNCTION
    if issubclass(cls, type):
        return CLASS
    if issubclass(cls, ModuleType):
        return MODULE
    if issubclass(cls, BuiltinFunctionType):
        return OF_C
    return HOLDER if _OPENERS[cls] else OTHER


KINDS = PerClass(__name__, "kinds", _find_kind)
"""What objects of a class are, as far as functions are concerned."""
