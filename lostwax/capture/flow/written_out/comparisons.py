"""`functools.cmp_to_key`: values that a function compares. Must not know how they are sorted."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture import threads
from lostwax.capture.flow.truths import is_open_number, make_tensor
from lostwax.capture.heap.moment import Moment
from lostwax.classes import StandsFor
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)


class Compared(StandsFor):
    """A value that a function compares with others, `cmp_to_key(function)(value)`."""

    __slots__ = ("_function", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: Any, obj: Any) -> None:
        self._function, self.obj = function, obj

    def _lw_class(self) -> type:
        return _KEY

    def __lt__(self, other: Any) -> Any:
        return self._function(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self._function(self.obj, other.obj) > 0

    def __le__(self, other: Any) -> Any:
        return self._function(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self._function(self.obj, other.obj) >= 0

    def __eq__(self, other: object) -> Any:
        return self._function(self.obj, other.obj) == 0  # type: ignore[attr-defined]

    def is_of_data(self) -> bool:
        return any(map(is_open_number, pytree.tree_leaves(self.obj)))


_KEY = type(functools.cmp_to_key(lambda one, other: 0)(0))
_MOST_COMPARED = 8


def rank(values: Sequence[Compared]) -> list[Any]:
    """How many are smaller, of each."""
    if len(values) > _MOST_COMPARED:
        raise CaptureError.here(
            f"{len(values)} values, of which a function of data says the order, are sorted",
            why="each comparison of two becomes a part of the program",
            instead="compute a number for each by which they are sorted, sorted(values, key=…)",
        )
    held = [("what compares", each) for each in (values[0]._function, *(v.obj for v in values))]
    moment = Moment(threads.running[-1].python.reachable, held)
    rows = [[make_tensor(one < other) for other in values] for one in values]
    if moment.find_change() is not None:
        raise CaptureError.here(
            "a function that compares values of data changes something",
            why="how often it is called depends on how they are sorted",
            instead="let it compare, and do no more",
        )
    less = torch.stack([torch.stack([each.reshape(()) for each in row]) for row in rows])
    is_order: Any = _is_order(less).item()
    torch._check(is_order, lambda: "a function that compares values gives no order")
    return [each.item() for each in less.sum(0)]


def _is_order(less: torch.Tensor) -> torch.Tensor:
    """Is it one, by which all ways to sort come to the same?"""
    found = ~(less & less.T).any()
    for relation in (less, ~(less | less.T)):
        steps = (relation.float() @ relation.float()) > 0
        found = found & ~(steps & ~relation).any()
    return found
