"""Python's iterator over something whose length is known, as an index into it: so the sides of an
`if` on data, and the turns of a loop, may leave it at different places.

`iter(values)` gives one where functions have hooks (`flow/callees.py`). To all others it is an
iterator like Python's own; while data decide where it is, nobody can go over it without asking.
Must not record.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

from lostwax.classes import StandsFor
from lostwax.errors import CaptureError

_EMPTY: Sequence[Any] = ()


class Cursor(StandsFor):
    """Where one is in a sequence."""

    __slots__ = ("state",)

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
