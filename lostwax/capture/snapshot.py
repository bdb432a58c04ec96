"""What modules hold, so that it can be told whether they still do, and put back.

One container deep, by identity. There are hundreds of modules with dozens of attributes each, and
nearly always nothing changes: the walks are left to C (`map`, `itemgetter`). Must not know of
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress, filterfalse
from operator import call, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn


class Snapshot:
    """All that some modules hold."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._held = [module.__dict__ for module in modules]
        self.attributes = [held.copy() for held in self._held]
        """Of each module."""
        taken = [_taken(module.__class__, module.__dict__) for module in modules]
        self._getters = [getter for getter, _ in taken]
        self._values = list(chain.from_iterable([values for _, values in taken]))
        kinds = map(_IS_CONTAINER.__getitem__, map(type, self._values))
        self._hooks = list(map(_HOOKS, self._held))
        containers = list(chain(compress(self._values, kinds), chain.from_iterable(self._hooks)))
        self._empty = list(filterfalse(None, containers))
        self._filled: list[tuple[Any, Any]] = [(v, _copied(v)) for v in filter(None, containers)]
        self._expected = self._filled
        """What they hold when the call begins."""
        self._state = [v for held in self._held for v in (held["_parameters"], held["_buffers"])]
        self._untouched = False

    def replace(self, fakes: Mapping[int, torch.Tensor]) -> None:
        """Put fakes (by the tensor's id) in the places of parameters and buffers."""
        state = set(map(id, filter(None, self._state)))
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
        self._untouched = all(_is_kept(v, content) for v, content in self._expected)
        return self._untouched

    def added(self, value: Any, before: Any) -> list[Any]:
        """What an attribute holds and did not before: itself, or what is in a container."""
        if not isinstance(value, _CONTAINERS):
            return [] if value is before else [value]
        known = next((content for held, content in self._expected if held is value), None)
        if known is None:
            if not any(held is value for held in self._empty):
                return []
            known = ()
        old, new = (list(c.values()) if isinstance(c, dict) else list(c) for c in (known, value))
        return [each for each in new if not any(each is o for o in old)]

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
            else:
                container.clear()
                container.update(content)


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.copy()


def _is_kept(container: Any, content: Any) -> bool:
    """The same objects (under the same names) in the same order?"""
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        same = all(map(is_, container.values(), content.values()))
        return same and list(container) == list(content)
    return all(map(is_, container, content))


# ------------------------------------------------------------------------------------ attributes


class _Layout(NamedTuple):
    """The attributes that modules of a class have, and how to take all of them at once, but for the
    hooks."""

    names: int
    getter: Callable[[dict[str, Any]], tuple[Any, ...]]


def _taken(cls: type, held: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """How to take all that a module holds, and what it is; most have the attributes that the last
    one of their class had."""
    layout = _LAYOUTS.get(cls)
    if layout is not None and layout.names == len(held):
        try:
            return layout.getter, layout.getter(held)
        except KeyError:
            pass
    if len(_LAYOUTS) >= 1000:
        _LAYOUTS.clear()
    own = [name for name in held if name not in _HOOK_NAMES]
    layout = _LAYOUTS[cls] = _Layout(len(held), itemgetter(*own))
    return layout.getter, layout.getter(held)


class _Kinds(dict[type, bool]):
    """Is it a class of containers?"""

    def __missing__(self, cls: type) -> bool:
        found = self[cls] = issubclass(cls, _CONTAINERS)
        return found


_LAYOUTS: dict[type, _Layout] = {}
_IS_CONTAINER = _Kinds()
_CONTAINERS = (list, dict, set)
_HOOK_NAMES = [
    name
    for name, value in nn.Module().__dict__.items()
    if isinstance(value, (dict, set)) and name not in ("_parameters", "_buffers", "_modules")
]
_HOOKS = itemgetter(*_HOOK_NAMES)
REGISTRIES = frozenset(nn.Module().__dict__)
"""The attributes that every module has."""
