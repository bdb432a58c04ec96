"""Objects that can hold others: containers, tuples, the user's objects with attributes or slots,
tensors (they hold a gradient), iterators, random generators and arrays (`iterators.py`).

Each class is sorted into these kinds once. Must not know of modules' registries.
"""

from __future__ import annotations

import io
import random
import sys
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import PurePath
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from lostwax.cache import PerClass
from lostwax.fake.tensor import FakeTensor

GONE: Any = type("_Gone", (), {"__repr__": lambda self: "not there"})()
"""Stands for the value of a slot, attribute or key that is not set."""


class SlotAttributes:
    """An object's `__slots__` attributes, with the methods of a dict."""

    def __init__(self, owner: Any, places: dict[str, Any]) -> None:
        self.owner = owner
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def values(self) -> Iterable[Any]:
        return self.copy().values()

    def copy(self) -> dict[str, Any]:
        return {name: self[name] for name in self._places}

    def __getitem__(self, name: str) -> Any:
        """What is in the slot, though a class may show something else by its name."""
        try:
            return self._places[name].__get__(self.owner)
        except AttributeError:
            return GONE

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets it even if the class forbids that, as a frozen dataclass does."""
        if value is not GONE:
            self._places[name].__set__(self.owner, value)
        elif self[name] is not GONE:
            self._places[name].__delete__(self.owner)

    def clear(self) -> None:
        self.update(dict.fromkeys(self._places, GONE))

    def update(self, content: dict[str, Any]) -> None:
        for name, value in content.items():
            self[name] = value


class ClassAttributes:
    """The attributes of a class, with the methods of a dict."""

    def __init__(self, owner: type) -> None:
        self.owner = owner

    def __len__(self) -> int:
        return len(vars(self.owner))

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self.owner))

    def values(self) -> Iterable[Any]:
        return vars(self.owner).values()

    def copy(self) -> dict[str, Any]:
        return dict(vars(self.owner))

    def clear(self) -> None:
        """Does nothing: `update` deletes what the new content lacks."""

    def update(self, content: dict[str, Any]) -> None:
        now = self.copy()
        for name in now.keys() - content.keys():
            type.__delattr__(self.owner, name)
        for name, value in content.items():
            if now.get(name, GONE) is not value:
                type.__setattr__(self.owner, name, value)


NAMED = (dict, SlotAttributes, ClassAttributes)


def parts(value: Any) -> list[Any]:
    """The containers that a value consists of: itself, its attributes, its slots."""
    made_of = [get(value) for get in _GETTERS[type(value)]]
    return [value, *made_of] if isinstance(value, tuple) else made_of


def members(container: Any) -> Any:
    """The values in a container or tuple."""
    if isinstance(container, dict) and type(container) is not dict:
        return [value for _, value in own_items(container)]
    if isinstance(container, NAMED):
        return container.values()
    is_odd = isinstance(container, list) and type(container) is not list
    return [*list.__iter__(container)] if is_odd else container


def items(container: Any) -> list[tuple[Any, Any]]:
    """The keys and values in a container or tuple."""
    if isinstance(container, NAMED):
        return own_items(container if isinstance(container, dict) else container.copy())
    base = next((each for each in _ITERATED if isinstance(container, each)), type(container))
    values = base.__iter__(container)  # a subclass's method is the user's
    return [(each, each) for each in values] if base is set else list(enumerate(values))


def own_items(container: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict, without calling a subclass's methods: they may load or count."""
    if type(container) is dict:
        return list(container.items())
    keys = (
        OrderedDict.keys(container) if isinstance(container, OrderedDict) else dict.keys(container)
    )
    return [(key, dict.get(container, key)) for key in list(keys)]


def key_of(container: Any) -> int:
    """A number that identifies the container: those of slots and classes are made anew for each
    look."""
    is_made = isinstance(container, (SlotAttributes, ClassAttributes))
    return -id(container.owner) if is_made else id(container)


def is_object(value: Any) -> bool:
    """Is it an object of the user's, which may keep something in its attributes?"""
    return OBJECTS[type(value)]


def _is_object_class(cls: type) -> bool:
    return ODD[cls] and bool(_GETTERS[cls]) and not issubclass(cls, _NO_OBJECTS)


def _is_holder(cls: type) -> bool:
    is_any = bool(_GETTERS[cls]) or issubclass(cls, (tuple, torch.Tensor)) or MOVING[cls]
    return is_any and not issubclass(cls, FakeTensor)


def _is_stream(cls: type) -> bool:
    """Is it a random generator, or an iterator that we cannot look into? Files do not count."""
    is_iterator = hasattr(cls, "__next__") and not issubclass(cls, io.IOBase)
    return GENERATORS[cls] or (is_iterator and not _GETTERS[cls])


def _is_generator(cls: type) -> bool:
    """numpy loads its generators when somebody asks for them; before, no class is one."""
    known: tuple[type, ...] = (random.Random,)
    if "numpy.random" in sys.modules:
        known += (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return issubclass(cls, known)


def _is_odd(cls: type) -> bool:
    return HOLDERS[cls] and cls not in _PLAIN and cls is not tuple


def _getters(cls: type) -> Sequence[Callable[[Any], Any]]:
    if issubclass(cls, nn.Module) or cls is SimpleNamespace:
        return [vars]
    found: list[Callable[[Any], Any]] = [_itself] if issubclass(cls, _CONTAINERS) else []
    if cls not in _PLAIN and _is_the_users(cls):
        if shown := find_attributes(cls):
            found.append(shown.__get__)
        if places := find_slots(cls):
            found.append(lambda value: SlotAttributes(value, places))
    return found


def _itself(value: Any) -> Any:
    return value


def _is_the_users(cls: type) -> bool:
    """Is the class written in Python, and not handled elsewhere?"""
    if not cls.__flags__ & _HEAP or issubclass(cls, _NOT_CHANGED):
        return False
    package, _, rest = str(cls.__module__).partition(".")
    return package not in _NOT_THE_USERS or (package == "torch" and rest in _KEEPING)


def find_attributes(cls: type) -> Any:
    """What reads the dictionary of an object of the class, whatever the class shows as `__dict__`.

    There is none for slots alone, and where a class hides the dictionary: a proxy whose `__dict__`
    is that of what it stands for, a `TypeVar` of Python 3.12.
    """
    named = (vars(each).get("__dict__") for each in cls.__mro__)
    own = (each for each in named if type(each) in (GetSetDescriptorType, MemberDescriptorType))
    return next(own, None) if cls.__dictoffset__ else None


def find_slots(cls: type) -> dict[str, Any]:
    return {name: place for each in cls.__mro__ for name, place in find_own_slots(each).items()}


def find_own_slots(cls: type) -> dict[str, Any]:
    """Those that the class itself has; classes of C have members, too."""
    named = vars(cls).items() if "__slots__" in vars(cls) else ()
    return {name: place for name, place in named if type(place) is MemberDescriptorType}


_NOT_CHANGED = (type, Enum, torch.Tensor, PurePath)  # a path keeps its parts once it is asked
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_NOT_THE_USERS = frozenset(("torch", "lostwax", "functools", "logging", "threading", "weakref"))
_KEEPING = frozenset(f"distributions.{name}" for name in dir(torch.distributions))
"""Modules of torch whose objects cache in their attributes what they compute."""
_NO_OBJECTS = (tuple, torch.Tensor)
_CONTAINERS = (list, dict, set, deque)
_ITERATED = (tuple, list, set, deque)
_PLAIN = frozenset((*_CONTAINERS, OrderedDict, defaultdict))
_GETTERS = PerClass(__name__, "getters", _getters)
"""For each class: the functions that return the containers an object of it consists of."""
GENERATORS = PerClass(__name__, "generators", _is_generator)
"""Is it a random generator?"""
STREAMS = PerClass(__name__, "streams", _is_stream)
"""Is it an iterator or a random generator, which gives another value each time?"""
ARRAYS = (np.ndarray, bytearray, array)
MOVING = PerClass(__name__, "moving", lambda cls: STREAMS[cls] or issubclass(cls, ARRAYS))
"""Is it one of these, or an array, in which a call may leave other numbers?"""
HOLDERS = PerClass(__name__, "holders", _is_holder)
"""Can it hold something?"""
HOLDERS_BUT_TUPLES = PerClass(
    __name__, "holders but tuples", lambda cls: HOLDERS[cls] and cls is not tuple
)
"""The same without tuples: modules have many of these, nearly always of numbers."""
ODD = PerClass(__name__, "odd", _is_odd)
"""Can it hold something, but is neither a tuple nor one of Python's own containers?"""
OBJECTS = PerClass(__name__, "objects", _is_object_class)
"""Is it a class of the user's, whose objects may keep something in their attributes?"""
CLASSES = PerClass(__name__, "classes", lambda cls: tuple(filter(_is_the_users, cls.__mro__)))
"""The user's classes among a class and its bases."""
