"""What modules hold, so that it can be told whether they still do, and put back.

By identity, containers in containers too, and the attributes of plain objects. There are hundreds
of modules with dozens of attributes each, and nearly always nothing changes: the walks are left to
C (`map`, `itemgetter`). Must not know of programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import chain, compress, filterfalse
from operator import call, is_, itemgetter
from typing import Any

import torch
from torch import nn


class Snapshot:
    """All that some modules hold."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._held: list[dict[str, Any]] = list(map(vars, modules))
        self.attributes = list(map(dict.copy, self._held))
        """Of each module."""
        try:
            self._getters = list(map(_known_getter, map(type, modules), self._held))
            self._values = list(chain.from_iterable(map(call, self._getters, self._held)))
        except KeyError:  # two modules of one class have attributes of other names
            self._getters = list(map(_new_getter, self._held))
            self._values = list(chain.from_iterable(map(call, self._getters, self._held)))
        kinds = map(_IS_CONTAINER.__getitem__, map(type, self._values))
        self._hooks = list(map(_HOOKS, self._held))
        containers = list(compress(self._values, kinds))
        if not _OBJECTS.isdisjoint(map(type, containers)):
            containers = [vars(v) if is_object(v) else v for v in containers]
        containers += chain.from_iterable(self._hooks)
        _add_inner(containers)
        self._empty = list(filterfalse(None, containers))
        self._filled: list[tuple[Any, Any]] = [(v, _copied(v)) for v in filter(None, containers)]
        self._expected = self._filled
        """What they hold when the call begins."""
        self._untouched = False

    def replace(self, fakes: Mapping[int, torch.Tensor]) -> None:
        """Put fakes (by the tensor's id) in the places of parameters and buffers."""
        state = set(map(id, chain.from_iterable(map(_STATE, self._held))))
        self._expected = [
            (v, {n: None if t is None else fakes[id(t)] for n, t in content.items()})
            if id(v) in state
            else (v, content)
            for v, content in self._filled
        ]
        for (container, content), (_, before) in zip(self._expected, self._filled, strict=True):
            if content is not before:
                container.update(content)

    def is_untouched(self) -> bool:
        """Do the modules still hold exactly what they were given?"""
        held, before = self._held, self.attributes
        if any(self._empty) or list(map(len, held)) != list(map(len, before)):
            return False
        try:
            values = chain.from_iterable(map(call, self._getters, held))
            if not all(map(is_, values, self._values)) or list(map(_HOOKS, held)) != self._hooks:
                return False
        except KeyError:
            return False
        self._untouched = _are_kept(self._expected)
        return self._untouched

    def added(self, value: Any, before: Any) -> list[Any]:
        """What an attribute holds and did not before: itself, or what is in containers."""
        found: list[Any] = []
        seen: set[int] = set()
        left = [(value, value is before)]
        while left:
            each, was_there = left.pop()
            if not _IS_NESTED[type(each)]:
                if not was_there:
                    found.append(each)
            elif id(each) not in seen:
                seen.add(id(each))
                if isinstance(each, tuple):
                    left += [(member, was_there) for member in each]
                else:
                    old = self.known(each)
                    left += [(member, id(member) in old) for member in _members(each)]
        return found

    def known(self, container: Any) -> set[int]:
        """What a container held before the call, by identity."""
        return set(map(id, _members(self.content(container))))

    def content(self, container: Any) -> Any:
        """What a container held before the call."""
        return next((content for known, content in self._expected if known is container), {})

    def restore(self) -> None:
        """Put everything back."""
        if self._untouched:
            for (container, content), (_, given) in zip(self._filled, self._expected, strict=True):
                if given is not content:
                    container.update(content)
            return
        for held, attributes in zip(self._held, self.attributes, strict=True):
            held.clear()
            held.update(attributes)
        for container in self._empty:
            container.clear()
        for container, content in self._filled:
            if isinstance(container, list):
                container[:] = content
            elif isinstance(container, deque):
                container.clear()
                container.extend(content)
            else:
                container.clear()
                container.update(content)


def _add_inner(containers: list[Any]) -> None:
    """To the containers those that are in them; nearly always there are none."""
    members = list(chain.from_iterable(map(_members, filter(None, containers))))
    left = list(compress(members, map(_IS_NESTED.__getitem__, map(type, members))))
    seen = set(map(id, containers)) if left else set()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            left += [m for m in _members(each) if _IS_NESTED[type(m)]]
            if not isinstance(each, tuple):
                containers.append(each)


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.copy()


def _are_kept(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Do the containers hold the same objects (under the same names) in the same order?"""
    containers, contents = [c for c, _ in pairs], [c for _, c in pairs]
    if list(map(len, containers)) != list(map(len, contents)):
        return False
    now, before = (chain.from_iterable(map(_members, c)) for c in (containers, contents))
    if not all(map(is_, now, before)):
        return False
    names, named = (chain.from_iterable(filter(_is_dict, c)) for c in (containers, contents))
    return list(names) == list(named)


def _members(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _is_dict(container: Any) -> bool:
    return isinstance(container, dict)


# ------------------------------------------------------------------------------------ attributes


Getter = Callable[[dict[str, Any]], tuple[Any, ...]]


def _new_getter(held: dict[str, Any]) -> Getter:
    """Takes all that a module holds, but for its hooks, at once."""
    return itemgetter(*[name for name in held if name not in _HOOK_NAMES])


def _known_getter(cls: type, held: dict[str, Any]) -> Getter:
    """The same, if it has the attributes that the last one of its class had, which most have. It
    has as many: if one of them is another, the getter fails."""
    known = _GETTERS.get(cls)
    if known is None or known[0] != len(held):
        if len(_GETTERS) >= 1000:
            _GETTERS.clear()
        known = _GETTERS[cls] = (len(held), _new_getter(held))
    return known[1]


class _Kinds(dict[type, bool]):
    """Is it one of these classes?"""

    def __init__(self, *classes: type) -> None:
        self.classes = classes

    def __missing__(self, cls: type) -> bool:
        found = self[cls] = issubclass(cls, self.classes)
        return found


class _KindsOrObjects(_Kinds):
    """Or is it one of plain objects, whose attributes are a container as well?"""

    def __missing__(self, cls: type) -> bool:
        if _is_of_objects(cls):
            _OBJECTS.add(cls)
            self[cls] = True
        return super().__missing__(cls) if cls not in self else True


def is_object(value: Any) -> bool:
    """Is it an object of the user's whose attributes a module may keep something in?"""
    return type(value) in _OBJECTS


def _is_of_objects(cls: Any) -> bool:
    """Classes written in Python, but for those that are looked after otherwise."""
    has_attributes = cls.__flags__ & _HEAP and cls.__dictoffset__ != 0
    if not has_attributes or issubclass(cls, _OTHERS):
        return False
    return cls.__module__.partition(".")[0] not in _NOT_THE_USERS


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_NOT_THE_USERS = frozenset(("torch", "lostwax", "functools", "logging", "threading", "weakref"))
_GETTERS: dict[type, tuple[int, Getter]] = {}
_CONTAINERS = (list, dict, set, deque)
_OTHERS = (*_CONTAINERS, tuple, type, Enum, nn.Module, torch.Tensor)
_OBJECTS: set[type] = set()
_IS_CONTAINER, _IS_NESTED = _KindsOrObjects(*_CONTAINERS), _Kinds(*_CONTAINERS, tuple)
_HOOK_NAMES = [
    name
    for name, value in nn.Module().__dict__.items()
    if isinstance(value, (dict, set)) and name not in ("_parameters", "_buffers", "_modules")
]
_HOOKS = itemgetter(*_HOOK_NAMES)
_STATE = itemgetter("_parameters", "_buffers")
REGISTRIES = frozenset(nn.Module().__dict__)
"""The attributes that every module has."""
