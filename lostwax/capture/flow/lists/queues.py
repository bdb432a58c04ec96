"""A `deque` that a loop makes longer or shorter, where only the program knows how long it is.

Until a loop does that, it is in all that a program asks like Python's. Must not know how a loop is
recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.spans import refuse
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)


class QueueOfUnknownLength(ListOfUnknownLength):
    """Python's methods beside those of a list."""

    __slots__ = ()
    maxlen = None

    def _lw_class(self) -> type:
        return deque

    def popleft(self) -> Any:
        return self.pop(0)

    def appendleft(self, value: Any, /) -> None:
        self.insert(0, value)

    def extendleft(self, values: Iterable[Any], /) -> None:
        for each in values:
            self.insert(0, each)

    def rotate(self, by: int = 1, /) -> None:
        raise refuse("a deque is rotated of which data may decide how long it is")

    def copy(self) -> QueueOfUnknownLength:
        return QueueOfUnknownLength(self.list_parts())
