"""Python's iterator over something whose length is known, as an index into it: so the sides of an
`if` on data, and the turns of a loop, may leave it at different places.

`iter(values)` gives one where functions have hooks (`flow/callees.py`). To all others it is an
iterator like Python's own; while data decide where it is, nobody can go over it without asking.
`itertools.cycle` is one, too. Of an `Ending` data may say where it ends: `takewhile(f, xs)`,
`islice(xs, n)`, `layers[:n]`; loops of functions with hooks ask for that
(`flow/written_out/endings.py`). Must not record.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any

from lostwax.classes import HasState
from lostwax.errors import CaptureError

_EMPTY: Sequence[Any] = ()


class Cursor(HasState):
    """Where one is in a sequence."""

    __slots__ = ()

    def __init__(self, values: Sequence[Any], at: Any = 0) -> None:
        self.state = [at, values, len(values)]
        """The index, the sequence, and how long it was at first."""

    @property
    def at(self) -> Any:
        return self.state[0]

    @property
    def is_open(self) -> bool:
        """Do data decide where it is?"""
        return type(self.state[0]) is not int

    def _lw_class(self) -> type:
        return type(iter(self.state[1]))

    def __repr__(self) -> str:
        return (
            f"<{self._lw_class().__name__} object at {object.__repr__(self).rpartition(' at ')[2]}"
        )

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        if self.is_open:
            raise self.refuse()
        if not self.has_more():
            raise StopIteration
        return self.state[1][self.advance()]

    def __length_hint__(self) -> int:
        if self.is_open:
            raise self.refuse()
        left: int = len(self.state[1]) - self.at
        return max(0, left)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What Python's own says; `copy` makes another one like this of it."""
        if sys._getframe(1).f_code.co_filename == copy.__file__:
            return Cursor, (self.state[1], self.at)
        return self._to_plain().__reduce_ex__(protocol)

    def __setstate__(self, at: Any) -> None:
        iterator = self._to_plain()
        iterator.__setstate__(at)
        left = iterator.__length_hint__()
        self.state[:] = [len(self.state[1]) - left, self.state[1], len(self.state[1])]

    def _to_plain(self) -> Any:
        """Python's own iterator, at this place."""
        if self.is_open:
            raise self.refuse()
        iterator: Any = iter(self.state[1])
        iterator.__setstate__(self.at)
        return iterator

    def has_more(self) -> Any:
        """Is there one more? A truth that may be symbolic."""
        at, values, length = self.state
        if self.is_open:
            if len(values) != length:
                raise CaptureError.here(
                    "a list gets longer or shorter, and data decide where an iterator over it is",
                    instead="go over a copy of it, iter(list(values))",
                )
            return at < length
        if at < len(values):
            return True
        self.state[1] = _EMPTY  # it has ended, whatever comes into the list
        return False

    def advance(self) -> Any:
        """Where it is; it goes on by one."""
        at = self.state[0]
        self.state[0] = at + 1
        return at

    def refuse(self) -> CaptureError:
        """… of who does not know of it: with hooks it may be taken."""
        error = CaptureError.here(
            "data decide where an iterator is, and something goes over the rest of it",
            why="how many are left is known only when the program runs",
            instead="take them by next(iterator, default) or in a `for` loop; or keep the index, "
            "i += 1 and values[i]",
        )
        error.is_question = True  # type: ignore[attr-defined]
        return error


class CycleCursor(HasState):
    """`itertools.cycle`: where one is in a sequence that has no end."""

    __slots__ = ("_given",)

    def __init__(self, given: Any, values: Sequence[Any]) -> None:
        self._given = given
        self.state: list[Any] = [0, values]
        """The index, and the values as they are now: Python reads them in the first round."""

    def _lw_class(self) -> type:
        return itertools.cycle

    @property
    def is_open(self) -> bool:
        """Do data decide where it is?"""
        return type(self.state[0]) is not int

    def __iter__(self) -> CycleCursor:
        return self

    def __next__(self) -> Any:
        if self.is_open:
            error = CaptureError.here(
                "data decide where an iterator is, and something asks for the next value",
                why="it is known only when the program runs",
                instead="take it by next(iterator), or keep the index, values[i % len(values)]",
            )
            error.is_question = True  # type: ignore[attr-defined]
            raise error
        values: Sequence[Any] = self.state[1]
        return values[self.advance()]

    def has_more(self) -> bool:
        return True

    def advance(self) -> Any:
        """Where it is; it goes on by one."""
        at, values = self.state
        if isinstance(self._given, list) and not _are_same(self._given, values):
            raise CaptureError.here(
                "a list is changed while a cycle goes over it",
                instead="go over a copy of it, cycle(list(values))",
            )
        self.state[0] = (at + 1) % len(values)
        return at


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


class Ending(HasState):
    """Values up to an end."""

    __slots__ = ("_is_part", "_kind", "ends", "first", "values")

    def __init__(
        self, kind: Any, values: Any, ends: Callable[[Any, Any], Any], first: Any = 0
    ) -> None:
        """`kind`: what Python has in its place; `ends`: is it over, given the place of a value, and
        the value? `first`: the place of the first value."""
        self._kind, self.values, self.ends, self.first = kind, values, ends, first
        self._is_part = hasattr(kind, "__len__")
        """Is it a part of a list, of a tuple or of modules, and not an iterator?"""
        self.state: list[Any] = [None]
        """What is left, once somebody has taken something of it."""

    def _lw_class(self) -> type:
        return self._kind  # type: ignore[no-any-return]

    def _lw_held(self) -> Sequence[Any]:
        return (self.values,)

    def take_all(self) -> bool:
        """Somebody takes all of it. Returns whether it is all there; a part of a list always is."""
        is_whole = self.state[0] is None
        if not self._is_part:
            self.state[0] = iter(())
        return is_whole

    def __iter__(self) -> Iterator[Any]:
        if self._is_part:
            return Ending(type(iter(self.values)), self.values, self.ends, self.first)
        return self

    def __next__(self) -> Any:
        if self.state[0] is None:
            self.state[0] = self._list_pairs()
        at, value = next(self.state[0])
        while at < self.first:
            at, value = next(self.state[0])
        if self.ends(at, value):
            self.state[0] = iter(())
            raise StopIteration
        return value

    def _refuse_list(self, *_: Any) -> Any:
        if not self._is_part:
            raise TypeError(f"{self._kind.__name__!r} has no elements but in their order")
        raise CaptureError.here(
            f"data decide how long a part of a {self._kind.__name__} is, of which more is asked "
            "than its elements in their order",
            instead="go over it, for x in values[:n]",
        )

    __len__ = __getitem__ = __add__ = __radd__ = __reversed__ = __call__ = _refuse_list

    def __eq__(self, other: object) -> bool:
        return self is other or (self._is_part and self._refuse_list())

    def __getattr__(self, name: str) -> Any:
        if not self._is_part or name[:2] == "__":
            raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")
        return self._refuse_list()

    __hash__ = object.__hash__

    def _list_pairs(self) -> Iterator[Any]:
        if hasattr(type(self.values), "__iter__"):
            return enumerate(self.values)
        return ((at, self.values.pick(at)) for at in itertools.count())
