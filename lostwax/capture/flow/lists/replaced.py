"""Lists that loops change otherwise than by appending: `queue.pop(0)`, `counts[-1] += 1`.

All that is in such a list is laid into tensors that are handed on from turn to turn. Must not know
how the loop is recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lostwax.capture.flow.lists.growth import Growth, Store
from lostwax.capture.flow.lists.spans import UnknownElements
from lostwax.capture.flow.merging import Outcome
from lostwax.capture.heap.holders import Content
from lostwax.capture.heap.moment import ChangedPlace
from lostwax.capture.trace.tracer import Tracer
from lostwax.location import Location


class ReplacedList(Growth):
    """One list of which turns leave something else."""

    def __init__(
        self, tracer: Tracer, place: ChangedPlace, where: Location, is_changed: bool
    ) -> None:
        """`place`: what was in the list before the loop, and what its first turn leaves."""
        elements = [*_list_values(place.before), *_list_values(place.after)]
        self._begin(tracer, place, where, elements[0])
        self.is_changed = is_changed
        if self._kept.find_misfit(elements) is not None or not self._kept.note(elements):
            raise self.refuse(
                f"elements of several kinds are put into {self.name}",
                "what is in the list becomes rows of a tensor",
                "keep elements of one kind in it, tensors, numbers, or tuples of these",
            )

    def read(
        self,
        place: ChangedPlace | None,
        outcome: Outcome,
        stores: Mapping[Store, torch.Tensor],
        new: Sequence[Any],
    ) -> None:
        """See what a turn leaves, while the body is recorded."""
        self._after, self.is_changed = dict(stores), False
        elements = [] if place is None else _list_values(place.after)
        for each in elements:
            self._check_element(each)
        before = [column.dims for column in self._columns]
        for column, leaves in self._kept.take_leaves(elements):
            column.note(leaves, self._tracer)
            self._check_size(column, leaves, new)
        self._log(elements, outcome)
        self.is_changed = before != [column.dims for column in self._columns]
        if not (self.is_changed or place is None):
            self._after = _by_store(self._kept.lay_out(elements))
            outcome.log(self._after.values())

    def list_starts(self) -> dict[Store, torch.Tensor]:
        """What is in the list before the loop."""
        elements = _list_values(self._place.before)
        return _by_store(self._kept.lay_out(elements, f"a loop that changes {self.name}"))

    def _write(self, last: Any) -> None:
        self._place.write([(0, last)])


def is_replaced(place: ChangedPlace) -> bool:
    """Is it a list that was changed as a whole: shorter, or in what stands for its elements?"""
    is_list = isinstance(place.holder, (list, deque))
    contents = [_list_values(content) for content in (place.before, place.after)]
    is_open = any(isinstance(each, UnknownElements) for content in contents for each in content)
    return is_list and (is_open or len(contents[0]) != len(contents[1])) and any(contents)


def _by_store(found: Sequence[Mapping[str, torch.Tensor]]) -> dict[Store, torch.Tensor]:
    return {(i, part): each for i, own in enumerate(found) for part, each in own.items()}


def _list_values(content: Content) -> list[Any]:
    return [value for _, value in content]
