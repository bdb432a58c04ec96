"""Where the user's functions have `type`, `max` and `min` from, and functions of C that answer by a
mode (`from torch import is_grad_enabled`) or take symbolic numbers (`from math import sqrt`), and
methods of numbers (`EQUALS_TWO = (2).__eq__`): their globals, the variables of functions around
them, their defaults, and the containers, objects, classes and partials that they reach. While a
capture runs, stand-ins are there.

Must not know what a stand-in does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from lostwax import bytecode as code_names
from lostwax.capture.heap.edges import parts
from lostwax.capture.heap.functions import ASKED, ReadFunction
from lostwax.capture.heap.holders import MISSING, SlotAttributes, find_base, items
from lostwax.capture.heap.reach import Reach
from lostwax.capture.python.identities import is_of_c, make_asking
from lostwax.undo.undo import Undo


class _Item(NamedTuple):
    """A place in a dict or list, or a slot; no method of a subclass is called."""

    container: Any
    key: Any

    def get(self) -> Any:
        try:
            return find_base(self.container).__getitem__(self.container, self.key)
        except LookupError:
            return MISSING

    def put(self, value: Any) -> None:
        base = find_base(self.container)
        if value is not MISSING:
            base.__setitem__(self.container, self.key, value)
        elif self.get() is not MISSING:
            base.__delitem__(self.container, self.key)


class _Attribute(NamedTuple):
    """A place in a function, or a variable of the function around."""

    owner: Any
    name: str

    def get(self) -> Any:
        try:
            return getattr(self.owner, self.name)
        except (AttributeError, ValueError):  # it is not set
            return MISSING

    def put(self, value: Any) -> None:
        setattr(self.owner, self.name, value)


class _OfClass(_Attribute):
    """A function of C is no method in a class, and so must what stands for it be none."""

    def put(self, value: Any) -> None:
        is_function = type(value) is FunctionType
        setattr(self.owner, self.name, staticmethod(value) if is_function else value)


class _Inside(NamedTuple):
    """A place in an object that Python shows by no dict."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


_Place = _Item | _Attribute | _Inside


class StandIns:
    """What stands for what, and where it was put."""

    def __init__(self, stand_ins: Mapping[Any, Any], reach: Reach, undo: Undo) -> None:
        self._stand_ins = stand_ins
        self._builtins = {
            each.__name__: now for each, now in stand_ins.items() if each.__module__ == "builtins"
        }
        """By the names that all functions know without importing them."""
        self._methods = dict[Any, Any]()
        """What stands for methods of numbers and lists."""
        self._changed: list[tuple[_Place, Any, Any]] = []
        undo.add(self._put_back)
        reach.add_look(self._look_at_function)
        reach.add_look_at_holder(self._look_at_holder, stand_ins.keys())

    def _put_back(self) -> None:
        for place, before, now in self._changed:
            if place.get() is now:  # else it is something else by now
                place.put(before)

    def _look_at_function(self, found: ReadFunction) -> None:
        function, code, named, classes, _ = found
        asked = self._builtins.keys() & code.names
        if asked and (asked := asked - named.keys()):
            for name in asked & _find_read(found):
                self._change(_Item(function.__globals__, name), MISSING, self._builtins[name])
        if not ASKED.isdisjoint(classes):
            for place in _find_places(found):
                self._look_at(place, place.get())

    def _look_at_holder(self, holder: Any) -> None:
        if isinstance(holder, FunctionType):
            self._look_at(_Attribute(holder, "__defaults__"), holder.__defaults__)
            for name, value in (holder.__kwdefaults__ or {}).items():
                self._look_at(_Item(holder.__kwdefaults__, name), value)
        if isinstance(holder, type):
            for name, value in [*vars(holder).items()]:
                if name[:2] != "__":  # `__hash__ = int.__hash__` is called by Python itself
                    self._look_at(_OfClass(holder, name), value)
        for place in _find_inside(holder):
            self._look_at(place, place.get())
        for part in parts(holder):
            if isinstance(part, (dict, list, SlotAttributes)):
                for key, value in items(part):
                    self._look_at(_Item(part, key), value)

    def _look_at(self, place: _Place, value: Any) -> None:
        now = self._exchange(value)
        if now is not value:
            self._change(place, value, now)

    def _change(self, place: _Place, before: Any, now: Any) -> None:
        self._changed.append((place, before, now))
        place.put(now)

    def _exchange(self, value: Any) -> Any:
        """The stand-in for a value; of a tuple, another one with stand-ins in it."""
        if value is type or type(value) is BuiltinFunctionType:
            return self._stand_ins.get(value, value)
        if is_of_c(value):
            if value not in self._methods:
                self._methods[value] = make_asking(value)
            return self._methods[value]
        if type(value) is not tuple:
            return value
        found = [*map(self._exchange, value)]
        return value if all(a is b for a, b in zip(value, found, strict=True)) else tuple(found)


def _find_places(found: ReadFunction) -> Iterator[_Place]:
    """Where a function has what it names and closes over. (Defaults are bound when it begins.)"""
    function, known = found.function, found.function.__globals__
    held = [name for name, value in found.named.items() if type(value) in ASKED]
    if held:
        read = _find_read(found)
        yield from [_Item(known, name) for name in held if name in read]
    for cell in function.__closure__ or ():
        yield _Attribute(cell, "cell_contents")


def _find_inside(holder: Any) -> Iterator[_Place]:
    if isinstance(holder, staticmethod):
        yield _Inside(lambda: holder.__func__, partial(staticmethod.__init__, holder))
    elif isinstance(holder, partial):
        yield _Inside(lambda: holder.func, lambda new: _set_partial(holder, new, holder.args))
        yield _Inside(lambda: holder.args, lambda new: _set_partial(holder, holder.func, new))


def _set_partial(holder: Any, function: Any, args: Any) -> None:
    partial.__setstate__(holder, (function, args, holder.keywords, vars(holder)))  # type: ignore[attr-defined]


def _find_read(found: ReadFunction) -> set[str]:
    """The globals that the code reads, by instructions: others of its names are of attributes."""
    return set[str]().union(*map(code_names.globals_read, found.code.codes))
