"""Containers and small objects that a variable of a function has for itself: nobody else could see
what is in them.

Where the sides of an `if` on data have changed one of them, each otherwise, and the variable is not
read any more, they need not become one. That nobody else has it is not read off the code: Python
counts who holds an object, and the count tells of aliases, closures, views, iterators and bound
methods alike. Must not know what is done with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Set
from types import FrameType
from typing import Any, NamedTuple
from weakref import getweakrefcount

from torch import nn

from lostwax.capture.heap.edges import is_object, parts
from lostwax.capture.heap.holders import CONTAINERS, members


class _Own(NamedTuple):
    """A container that is held once."""

    held: Any
    holder: _Own | None
    """What it is in; None: a variable."""
    name: str
    """The variable that leads to it."""


class OwnContainers:
    """Those of a function, while a part of it runs that may give them to others."""

    def __init__(
        self, frame: FrameType, around: OwnContainers | None, is_hidden: Callable[[str], bool]
    ) -> None:
        """`around`: those of a part in which this one stands, and which holds them meanwhile.
        `is_hidden`: is a variable none that the function reads?"""
        self._frame, self._is_hidden = frame, is_hidden
        known = [] if around is None else around.list_kept()
        names = {each.name for each in known}
        self._found = [
            *known,
            *(each for each in _find_own(frame, is_hidden) if each.name not in names),
        ]
        self._counts = list[int]()

    def begin(self) -> None:
        """The part begins."""
        self._counts = self._count()

    def list_kept(self) -> list[_Own]:
        """Those that nobody else has got since."""
        kept = list[_Own]()
        variables = self._frame.f_locals
        for each, before, now in zip(self._found, self._counts, self._count(), strict=True):
            if each.holder is None:
                is_there = variables.get(each.name) is each.held
            else:
                is_known = any(each.holder is other for other in kept)
                is_there = is_known and any(each.held is v for v in _list_inside(each.holder.held))
            if is_there and before == now:
                kept.append(each)
        return kept

    def list_unread(self, live: Set[str]) -> set[int]:
        """The kept ones, by identity, that no variable leads to which is read."""
        return {id(each.held) for each in self.list_kept() if each.name not in live}

    def _count(self) -> list[int]:
        ours = [id(v) for name, v in self._frame.f_locals.items() if self._is_hidden(name)]
        return [sys.getrefcount(each.held) - ours.count(id(each.held)) for each in self._found]


def _find_own(frame: FrameType, is_hidden: Callable[[str], bool]) -> Iterator[_Own]:
    variables = frame.f_locals
    ours = [id(value) for name, value in variables.items() if is_hidden(name)]
    shared = {*frame.f_code.co_freevars}  # what holds them is the function's around, too
    for name in [each for each in variables if each not in shared]:
        if _count_holders(variables, name) - ours.count(id(variables[name])) == _OF_VARIABLE:
            found = _Own(variables[name], None, name)
            if not is_hidden(name) and _can_be_own(found.held):
                yield found
                yield from _find_inside(found)


def _find_inside(holder: _Own) -> Iterator[_Own]:
    inside = _list_inside(holder.held)
    for i in range(len(inside)):
        if _can_be_own(inside[i]) and sys.getrefcount(inside[i]) == _OF_CONTAINER:
            found = _Own(inside[i], holder, holder.name)
            yield found
            yield from _find_inside(found)


def _can_be_own(value: Any) -> bool:
    """Is it a container of Python's or a small object, and does nothing see its end?"""
    if type(value) in CONTAINERS:
        return not getweakrefcount(value)
    return is_small_object(value)


def is_small_object(value: Any) -> bool:
    """Is it its attributes, and nothing more, and does nothing see its end?"""
    if not is_object(value) or isinstance(value, (nn.Module, *CONTAINERS)):
        return False
    has_end = hasattr(type(value), "__del__") or getweakrefcount(value) > 0
    return not has_end and [*map(type, parts(value))] == [dict]


def _list_inside(value: Any) -> list[Any]:
    return [*members(value)] if type(value) in CONTAINERS else parts(value)


def _count_holders(variables: Mapping[str, Any], name: str) -> int:
    return sys.getrefcount(variables[name])


def _count_one() -> tuple[int, int]:
    """How many hold what a variable alone has; and what a container alone has, in a list of it."""
    own = [[0]]
    inside = _list_inside(own)
    return _count_holders(sys._getframe().f_locals, "own"), sys.getrefcount(inside[0])


_OF_VARIABLE, _OF_CONTAINER = _count_one()
