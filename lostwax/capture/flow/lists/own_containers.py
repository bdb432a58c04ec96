"""Containers and small objects that a variable of a function has for itself: nobody else could see
what is in them.

Where the sides of an `if` on data have changed one of them, each otherwise, and the variable is not
read any more, they need not become one. That nobody else has it is not read off the code: Python
counts who holds an object, and the count tells of aliases, closures, views, iterators and bound
methods alike. Must not know what is done with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
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
        self._counts = list[tuple[int, bool]]()
        """Who holds each, and whether its variable does: on the second side it does not yet."""

    def begin(self, given: Iterable[Any] = ()) -> None:
        """The part begins. `given`: what is held until variables get it."""
        ids = [*map(id, given)]
        pairs = zip(self._found, self._count(), strict=True)
        self._counts = [(n - ids.count(id(each.held)), there) for each, (n, there) in pairs]

    def list_kept(self) -> list[_Own]:
        """Those that nobody else has got since, and that are where they were."""
        return self._list_alone(lambda each: self._is_in_variable(each))

    def list_alone(self, name: str) -> set[int]:
        """By identity, those of a variable that nobody else has got since, also if it has another
        now."""
        alone = self._list_alone(lambda _: True)
        return {id(each.held) for each in alone if each.name == name}

    def _list_alone(self, may_be: Callable[[_Own], bool]) -> list[_Own]:
        found = list[_Own]()
        sides = zip(self._found, self._counts, self._count(), strict=True)
        for each, (before, was_there), (now, is_there) in sides:
            if each.holder is None:
                is_known = may_be(each)
            else:
                is_held = any(each.held is v for v in _list_inside(each.holder.held))
                is_known = is_held and any(each.holder is other for other in found)
            if is_known and before - now == (was_there - is_there) * _OF_ONE:
                found.append(each)
        return found

    def _is_in_variable(self, each: _Own) -> bool:
        return each.holder is None and self._frame.f_locals.get(each.name) is each.held

    def list_unread(self, live: Set[str]) -> set[int]:
        """The kept ones, by identity, that no variable leads to which is read."""
        return {id(each.held) for each in self.list_kept() if each.name not in live}

    def _count(self) -> list[tuple[int, bool]]:
        ours = _list_hidden(self._frame, self._is_hidden)
        counts = [sys.getrefcount(each.held) - ours.count(id(each.held)) for each in self._found]
        return [*zip(counts, map(self._is_in_variable, self._found), strict=True)]


def _list_hidden(frame: FrameType, is_hidden: Callable[[str], bool]) -> list[int]:
    """What variables that the function does not read hold, as often as they do."""
    return [id(v) for name, v in frame.f_locals.items() if is_hidden(name)] * _OF_ONE


def _find_own(frame: FrameType, is_hidden: Callable[[str], bool]) -> Iterator[_Own]:
    variables, ours = frame.f_locals, _list_hidden(frame, is_hidden)
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
    """Is it its attributes, and nothing more (an exception has arguments, too), and does nothing
    see its end?"""
    if not is_object(value) or isinstance(value, (nn.Module, BaseException, *CONTAINERS)):
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


def _count_of_variable() -> int:
    """How often a variable holds an object. (Before Python 3.13 who has asked for the variables has
    a copy.)"""
    own: Any = [0]
    held = {"own": own}
    counts = [_count_beside(sys._getframe().f_locals, held)]
    own = None
    counts.append(_count_beside(sys._getframe().f_locals, held))
    return counts[0] - counts[1]


def _count_beside(_: Mapping[str, Any], held: Mapping[str, Any]) -> int:
    return _count_holders(held, "own")


_OF_VARIABLE, _OF_CONTAINER = _count_one()
_OF_ONE = _count_of_variable()
