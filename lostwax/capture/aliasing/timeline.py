"""When the steps of a program run, those of its branches and loops among them.

Each step has a time. The two sides of a `cond` are taken one after the other, though one of them
runs alone. The steps of a loop run at any time while it lasts, as each comes again. Must not record
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.identity import ByIdentity
from lostwax.ir.trace.log import InnerGraph, Operands, Step, StepPosition, Value, values_of


class TimeSpan(NamedTuple):
    """The times at which something may happen when the program runs."""

    first: int
    last: int
    sides: dict[int, int]
    """The branches that it is in: the time at which each `cond` begins, with the side of it."""

    def can_precede(self, other: TimeSpan) -> bool:
        """May it happen, and the other one then or later?"""
        sides = (
            (self.sides[each], other.sides[each]) for each in self.sides if each in other.sides
        )
        return self.first <= other.last and all(own == its for own, its in sides)


class Timeline:
    """The times of a program that is recorded."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        self._clock = 0
        self._begins = ByIdentity[Any, list[TimeSpan]]()
        """Of each region: when its steps begin, and when it ends."""
        self._reads: list[tuple[TimeSpan, list[Value]]] = []
        self._program = self._walk(steps, {})
        self._read([outputs], {})

    def find(self, moment: StepPosition) -> TimeSpan:
        """When something has happened. A region that is not in the program was given up, or its
        steps are elsewhere: all that follows may be."""
        begins = self._begins.get(moment.steps)
        if begins is None:
            return _take(self._program, moment.outside)._replace(last=self._clock)
        return _take(begins, moment.before)

    def find_read(self, since: TimeSpan) -> Iterator[Value]:
        """What the program reads at that time and later."""
        for span, values in self._reads:
            if since.can_precede(span):
                yield from values

    def _walk(self, steps: Sequence[Step], sides: dict[int, int]) -> list[TimeSpan]:
        begins: list[TimeSpan] = []
        self._begins[steps] = begins
        for step in steps:
            begin = self._clock
            begins.append(TimeSpan(begin, begin, sides))
            graphs = [each for each in step.args if each.__class__ is InnerGraph]
            is_loop = bool(graphs) and step.target is not torch.ops.higher_order.cond
            known = len(self._begins), len(self._reads)
            for i, graph in enumerate(graphs):
                inside = sides if is_loop else {**sides, begin: i}
                self._walk(graph.region.steps, inside)
                self._read(graph.outputs, inside)
            # Branches have the operands as they are: their steps tell which of them are read.
            left_out = InnerGraph if is_loop else (InnerGraph, Operands)
            args = (
                step.args if not graphs else [a for a in step.args if not isinstance(a, left_out)]
            )
            self._read([args, *step.kwargs.values()], sides)
            if is_loop:
                self._note_loop(*known, TimeSpan(begin, self._clock - 1, sides))
        begins.append(TimeSpan(self._clock, self._clock, sides))
        return begins

    def _read(self, parts: Sequence[Any], sides: dict[int, int]) -> None:
        self._reads.append((TimeSpan(self._clock, self._clock, sides), values_of([*parts])))
        self._clock += 1

    def _note_loop(self, regions: int, reads: int, loop: TimeSpan) -> None:
        """The regions and reads since then were those of a loop, in which all comes again."""
        for steps in [*self._begins][regions:]:
            self._begins[steps] = [loop] * (len(steps) + 1)
        self._reads[reads:] = [(loop, values) for _, values in self._reads[reads:]]


def _take(begins: Sequence[TimeSpan], count: int) -> TimeSpan:
    return begins[min(count, len(begins) - 1)]
