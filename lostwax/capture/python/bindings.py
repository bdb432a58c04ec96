"""What the names in code were bound to when it was read, so that what was found there can be kept
as long as they still are. Users define functions and methods again between two captures.

Must not keep what the names are bound to alive, except functions, modules and classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter, call, is_
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

from lostwax.cache import PerClass
from lostwax.identity import ByIdentity

_Space = Mapping[str, Any]


class Bindings:
    """Some names, and what they were bound to: functions, modules and classes are told apart by
    identity, other values by their class."""

    def __init__(self) -> None:
        self._names = ByIdentity[_Space, dict[str, None]]()
        self._functions: list[FunctionType] = []
        self._cells: list[CellType] = []
        self._sizes: list[int] = []
        self._seen: list[_Values] = []

    def watch(self, space: _Space, names: Iterable[str]) -> None:
        """What these names are bound to in a module or class. Others may come to be there."""
        known = self._names.get(space)
        if known is None:
            self._names[space] = dict.fromkeys(names)
        else:
            known.update(dict.fromkeys(names))

    def watch_function(self, function: FunctionType) -> None:
        """Its code, its defaults and the variables of functions around it."""
        self._functions.append(function)
        self._cells += function.__closure__ or ()

    def remember(self) -> Bindings:
        """Keep what all of it is bound to now."""
        self._sizes = [*map(len, self._names)]
        gets = [space.get for space in self._names for _ in self._names[space]]
        names = [name for space in self._names for name in self._names[space]]
        self._seen = [
            _Values(partial(map, call, gets, names)),
            _Values(partial(map, _content, self._cells)),
        ]
        for part in _PARTS:
            having = [each for each in self._functions if part(each) is not None]
            self._seen.append(_Values(partial(map, part, having), by_identity=True))
        return self

    def hold(self) -> bool:
        """Is everything still bound to what it was?"""
        if [*map(len, self._names)] != self._sizes:
            return False
        return all(each.are_same() for each in self._seen)


class _Values:
    """What was found in some places."""

    def __init__(self, look: Callable[[], Iterable[Any]], by_identity: bool = False) -> None:
        values = [*look()]
        self._look = look
        self._classes = [*map(type, values)]
        is_held = [by_identity or _IS_HELD[cls] for cls in self._classes]
        self._places = [place for place, held in enumerate(is_held) if held]
        self._held = [values[place] for place in self._places]

    def are_same(self) -> bool:
        values = [*self._look()]
        if [*map(type, values)] != self._classes:
            return False
        return all(map(is_, [values[place] for place in self._places], self._held))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return None


_PARTS = [attrgetter(name) for name in ("__code__", "__defaults__", "__kwdefaults__")]
_HELD = (FunctionType, BuiltinFunctionType, ModuleType, type)
_IS_HELD = PerClass(__name__, "held", lambda cls: issubclass(cls, _HELD))
