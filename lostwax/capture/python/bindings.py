"""What the names in code were bound to when it was read, so that what was found there can be kept
as long as they still are. Users define functions and methods again between two captures.

Must not keep what the names are bound to alive, except functions, modules and classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, call, is_, methodcaller
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from lostwax.cache import PerClass
from lostwax.capture.python.function_holders import CACHED, HOLDERS, open_holder
from lostwax.identity import ByIdentity

_Space = Mapping[str, Any]


class Bindings:
    """Some places, and what was in them: functions, modules and classes are told apart by identity,
    what holds functions by these, other values by their class."""

    def __init__(self) -> None:
        self._names = ByIdentity[_Space, dict[str, None]]()
        self._gets: list[Any] = []
        self._got: list[str] = []
        self._missing: list[tuple[Callable[[list[str]], bool], list[str]]] = []
        self._classes: list[type] = []
        self._functions: list[FunctionType] = []
        self._cells: list[CellType] = []

    def watch(self, space: _Space, names: Iterable[str]) -> None:
        """What these names are bound to in a module. They need not be there yet."""
        known = self._names.get(space)
        if known is None:
            self._names[space] = dict.fromkeys(names)
        else:
            known.update(dict.fromkeys(names))

    def watch_class(self, cls: type) -> None:
        """Its bases and its attributes."""
        self._classes.append(cls)

    def watch_function(self, function: FunctionType) -> None:
        """Its code, its defaults, its attributes and the variables of functions around it."""
        self._functions.append(function)
        self._cells += function.__closure__ or ()

    def remember(self) -> Bindings:
        """Keep what all of it is bound to now."""
        for space in self._names:
            names = self._names[space]
            there = [name for name in names if name in space]
            self._gets += [space.get] * len(there)
            self._got += there
            if len(there) < len(names):
                missing = [name for name in names if name not in space]
                self._missing.append((space.keys().isdisjoint, missing))
        self._seen = _Values([*self._look()])
        return self

    def hold(self) -> bool:
        """Is everything still bound to what it was?"""
        if not all(are_missing(names) for are_missing, names in self._missing):
            return False
        return self._seen.are_same([*self._look()])

    def _look(self) -> Iterator[Any]:
        classes, functions = self._classes, self._functions
        return chain(
            map(call, self._gets, self._got),
            map(_content, self._cells),
            chain.from_iterable(map(_MRO, classes)),
            chain.from_iterable(map(_VALUES, map(vars, classes))),
            map(_CODE, functions),
            chain.from_iterable(map(_VALUES, filter(None, map(vars, functions)))),
            chain.from_iterable(filter(None, map(_DEFAULTS, functions))),
            chain.from_iterable(map(_VALUES, filter(None, map(_KWDEFAULTS, functions)))),
        )


class _Values:
    """What was found in some places."""

    def __init__(self, values: list[Any]) -> None:
        self._classes = [*map(type, values)]
        self._places = [place for place, cls in enumerate(self._classes) if _IS_HELD[cls]]
        self._held = [values[place] for place in self._places]
        self._holders = [place for place, cls in enumerate(self._classes) if HOLDERS[cls]]
        self._inside = _Values(self._open(values)) if self._holders else None

    def are_same(self, values: list[Any]) -> bool:
        if [*map(type, values)] != self._classes:
            return False
        if not all(map(is_, [values[place] for place in self._places], self._held)):
            return False
        return self._inside is None or self._inside.are_same(self._open(values))

    def _open(self, values: list[Any]) -> list[Any]:
        return [inner for place in self._holders for inner in open_holder(values[place])]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return None


_VALUES = methodcaller("values")
_MRO = attrgetter("__mro__")
_CODE, _DEFAULTS, _KWDEFAULTS = map(attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))
_HELD = (FunctionType, BuiltinFunctionType, CACHED, CodeType, ModuleType, type)
_IS_HELD = PerClass(__name__, "held", lambda cls: issubclass(cls, _HELD))
