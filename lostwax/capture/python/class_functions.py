"""The functions in a class, which every capture looks for. Most classes are what they were at the
last one, and that is seen at a glance.

Must not keep alive what is in a class, except functions and what wraps them.
"""

from __future__ import annotations

from operator import attrgetter, is_
from types import FunctionType
from typing import Any

from lostwax.cache import Cache
from lostwax.capture.python.function_holders import CONTAINERS, KINDS, open_holder
from lostwax.location import is_user_code, may_be_users


def read_class(cls: type) -> tuple[list[FunctionType], list[Any]]:
    """The user's functions among the attributes of the class itself, and what else of these may
    hold functions."""
    content = _CONTENTS.table.get(cls)
    if content is None or not content.is_of(cls):
        content = _CONTENTS.keep(cls, _Content(cls))
    return content.functions, [vars(cls)[name] for name in content.others]


class _Content:
    """What was in a class when it was read."""

    def __init__(self, cls: type) -> None:
        values = [*vars(cls).values()]
        self._names = [*vars(cls)]
        self._classes = [*map(type, values)]
        self._places: list[int] = []
        self._held: list[Any] = []
        self.functions: list[FunctionType] = []
        self.others: list[str] = []
        """By name. Each may be another one at the next look."""
        for place, (name, value) in enumerate(vars(cls).items()):
            if not KINDS[type(value)] or (name[:2] == "__" and type(value) in CONTAINERS):
                continue  # notes on the class: `__annotations__`
            functions = _find_functions(value)
            if functions is None:
                self.others.append(name)
            else:
                self._places.append(place)
                self._held.append(value)
                self.functions += [each for each in functions if may_be_users(each.__code__)]

    def is_of(self, cls: type) -> bool:
        values = [*vars(cls).values()]
        if [*vars(cls)] != self._names or [*map(type, values)] != self._classes:
            return False
        if not all(map(is_, [values[place] for place in self._places], self._held)):
            return False
        return not any(map(_ATTRIBUTES, self.functions))


def _find_functions(value: Any) -> list[FunctionType] | None:
    """What a method or property consists of, unless there is more to it."""
    if type(value) not in _METHODS:
        return None
    held = [value] if type(value) is FunctionType else open_holder(value)
    is_all = all(type(each) is FunctionType and not vars(each) for each in held)
    return held if is_all and not any(map(_is_made_elsewhere, held)) else None


def _is_made_elsewhere(function: FunctionType) -> bool:
    """Is it, like a library's decorator, closed over something that may be the user's?"""
    return bool(function.__closure__) and not is_user_code(function.__code__)


_ATTRIBUTES = attrgetter("__dict__")
_METHODS = frozenset((FunctionType, staticmethod, classmethod, property))
_CONTENTS = Cache[type, _Content](__name__, "contents", 2000)
