"""Things that hold functions, and run them when they are called or read: methods, properties,
partials, and modules of torch's kind.

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
    """What a wrapper runs, which may be another one; of a module of torch's kind, the classes of
    all modules in it, and the functions in their attributes."""
    if not isinstance(value, nn.Module):
        return [getattr(value, name) for name in _ATTRIBUTES[type(value)]]
    modules = [*value.modules()]
    return [*dict.fromkeys(map(type, modules)), *find_held_functions(modules)]


def find_held_functions(modules: Iterable[nn.Module]) -> list[Any]:
    """The functions in attributes of the modules themselves, not of their classes."""
    attributes = [*map(vars, modules)]
    if _HELD.isdisjoint(map(type, chain.from_iterable(map(dict.values, attributes)))):
        return []  # nearly always
    held = chain.from_iterable(map(dict.items, attributes))
    return [value for name, value in held if type(value) in _HELD and name != _COMPILED]


_HELD = frozenset((FunctionType, CACHED, *_WRAPPERS))
_COMPILED = "_compiled_call_impl"  # the capture's own, or torch.compile's
_ATTRIBUTES = PerClass(
    __name__,
    "attributes",
    lambda cls: next((names for each, names in _WRAPPERS.items() if issubclass(cls, each)), ()),
)
HOLDERS = PerClass(
    __name__, "holders", lambda cls: bool(_ATTRIBUTES[cls]) or issubclass(cls, nn.Module)
)
"""Can `open_holder` open objects of this class?"""
