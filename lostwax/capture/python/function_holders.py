"""Things that hold functions, and run them when they are called or read: methods, properties,
partials, objects of the user's, and modules of torch's kind.

Must not know what becomes of the functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from lostwax.cache import PerClass
from lostwax.capture.python.containers import CLASSES

CACHED: Any = type(functools.cache(len))
"""The class of functions with `functools.lru_cache`."""
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    MethodType: ("__func__",),
    functools.partial: ("func",),
    functools.partialmethod: ("func",),
    functools.cached_property: ("func",),
    functools.singledispatchmethod: ("dispatcher",),
    property: ("fget", "fset", "fdel"),
}
"""Classes of what wraps functions, and the attributes where these are."""


def unwrap(value: Any) -> Any:
    """The function under a method, a property or a partial."""
    while attributes := _ATTRIBUTES[type(value)]:
        value = getattr(value, attributes[0])
    return value


def open_holder(value: Any) -> list[Any]:
    """What a wrapper runs, which may be another one; of an object, its class and the functions in
    its attributes; of a module of torch's kind, that of all modules in it."""
    if attributes := _ATTRIBUTES[type(value)]:
        return [getattr(value, name) for name in attributes]
    objects = [*value.modules()] if isinstance(value, nn.Module) else [value]
    _, functions = find_held(objects)
    return [*dict.fromkeys(map(type, objects)), *functions]


def find_held(objects: Iterable[Any]) -> tuple[list[type], list[Any]]:
    """What is in attributes of the objects themselves, not of their classes: the classes of the
    user's objects, and functions."""
    attributes = [*map(_attributes, objects)]
    kinds = {*map(type, chain.from_iterable(map(dict.values, attributes)))}
    classes = [cls for cls in kinds if CLASSES[cls]]
    if _HELD.isdisjoint(kinds):
        return classes, []  # nearly always
    held = chain.from_iterable(map(dict.items, attributes))
    return classes, [value for name, value in held if type(value) in _HELD and name != _COMPILED]


def _attributes(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


_HELD = frozenset((FunctionType, CACHED, *_WRAPPERS))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's
_ATTRIBUTES = PerClass(
    __name__,
    "attributes",
    lambda cls: next((names for each, names in _WRAPPERS.items() if issubclass(cls, each)), ()),
)
HOLDERS = PerClass(
    __name__,
    "holders",
    lambda cls: bool(_ATTRIBUTES[cls] or CLASSES[cls]) or issubclass(cls, nn.Module),
)
"""Can `open_holder` open objects of this class?"""
