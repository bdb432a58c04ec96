"""What a recorded function leaves behind in Python: in attributes, lists, variables of others.

A capture runs both branches of a condition, and the body of a loop once; eager runs one of them, or
runs it many times. So what stays in Python would be another thing than eager's, and is refused; but
a buffer that is replaced is a value like one that is written to, and the operator carries it out.
Must not look at tensors' values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import _has_any_global_hook

from lostwax.capture.heap.moment import Moment
from lostwax.capture.heap.places import PlaceChange
from lostwax.capture.heap.recomputed import EndedRegion
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.location import is_user_code, user_location


class ReplacedBuffer(NamedTuple):
    """A buffer of a module in whose place a function has put another tensor."""

    buffers: dict[str, Any]
    name: str
    tensor: torch.Tensor
    value: Any = None
    """The tensor's value when the function ended."""

    def is_same_place(self, other: ReplacedBuffer) -> bool:
        return self.buffers is other.buffers and self.name == other.name


class SideEffects:
    """What functions leave in Python that are recorded one after the other, and nothing between
    them: while none has changed anything, what was before the first of them is before all."""

    def __init__(self, tracer: Tracer, functions: Sequence[Callable[..., Any]]) -> None:
        self._before = Moment(tracer.python.reachable, is_whole=bool(_has_any_global_hook()))
        for each in functions:
            self._before.own.add("a value", each)
        self._before.extend_to_modules()
        self._buffers = [(buffers, buffers.copy()) for buffers in self._before.buffers]

    def take_arguments(self, args: Sequence[Any]) -> None:
        """What a function is given is not its own, either."""
        self._before.own.add("an argument", args)
        self._before.extend_to_modules()

    def take_buffers(self) -> list[ReplacedBuffer]:
        """The buffers that were replaced; they are put back."""
        found: list[ReplacedBuffer] = []
        for buffers, before in self._buffers:
            for name, was in before.items():
                now = buffers.get(name)
                if now is not was and isinstance(now, torch.Tensor):
                    found.append(ReplacedBuffer(buffers, name, now))
                    buffers[name] = was
        return found

    def check(self, region: EndedRegion) -> None:
        """Refuse what a function has changed that was recorded into this region."""
        what = region.what
        self._before.take_recomputed(region)
        changed = self._before.find_change()
        if changed is not None:
            self._refuse(what, changed)

    def _refuse(self, what: str, changed: PlaceChange) -> None:
        users = [f for f in self._before.own.functions if is_user_code(f.__code__)]
        names = [each for each in changed if isinstance(each, str)]
        lines = [
            line_that_sets(name, functions)
            for functions in (users, self._before.state.reach.functions)
            for name in names
        ]
        line = next(filter(None, lines), None) or user_location()
        raise CaptureError(
            f"{what} changes {changed.name}, which is not its own.\n  at {line}\n"
            "  why: a capture runs each function once, eager runs one of two branches, or a loop's "
            "body many times: what stays in Python would be another thing than eager's\n"
            "  instead: return the value, and use what the operator returns; tensors that are "
            "written to in place, and buffers, are carried"
        )
