"""Functions that are recorded into regions of their own, as the tracer knows them.

`control/` and `flow/` record the sides of a branch and the bodies of loops; a backward is recorded
by `patches/autograd_function.py`. Must not know how.
"""

from __future__ import annotations

from typing import Any, Protocol

from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.trace.log import Region, Value, values_of
from lostwax.ir.trace.views import Root, Tracked


class OpenScope(Protocol):
    """The innermost function that is recorded into a region of its own (`control/scope.py`)."""

    what: str
    position: int
    literals: set[Root]
    numbers: set[Any]

    def keep(self, tracked: Tracked) -> None: ...
    def keep_views(self, tracked: Tracked) -> None: ...
    def check_own(self, tracked: Tracked) -> None: ...
    def check_own_history(self, tracked: Tracked) -> None: ...
    def check_own_marks(self, fake: FakeTensor) -> None: ...
    def is_given(self, root: Root) -> bool: ...


class KeepsBothWays(Protocol):
    """Keeps both ways of branches on declared sizes, where the user asks for that
    (`flow/sizes.py`)."""

    def keeps(self, value: Any) -> bool: ...


class Regions:
    """The regions of one capture, beside the steps in them."""

    __slots__ = ("ended", "inner", "numbers_at_first", "raised")

    def __init__(self) -> None:
        self.inner: Region | None = None
        """The backward that is being recorded: what was made outside is only read."""
        self.ended: dict[Any, str] = {}
        """The steps, inputs and symbols of regions that are over: what they were part of."""
        self.raised: tuple[str, Exception] | None = None
        """The function of an operator that raised, and what: there is no program, even if the
        user's code catches it."""
        self.numbers_at_first: dict[Value, str] = {}
        """In bodies of loops: tensors that are numbers in the first turn, and their names."""

    def find_number_at_first(self, value: Value) -> str:
        """Its name, if the value is one of these or is computed from these alone; else ""."""
        left, name = [value], ""
        seen = {value}
        while left:
            value = left.pop()
            if value in self.numbers_at_first:
                name = self.numbers_at_first[value]
                continue
            step = value.step
            new = [] if step is None else values_of((*step.args, *step.kwargs.values()))
            if not new:
                return ""
            left += [each for each in new if each not in seen]
            seen.update(new)
        return name

    def check_written(self, root: Root, target: FakeTensor) -> None:
        """A backward writes only to what it has made, or was given for itself."""
        region = self.inner
        if region is None or root.value.step in region.steps or root.value in region.inputs:
            return
        raise CaptureError.here(
            f"a backward writes to {target!r}, which it has not made",
            why="the write would have to show in the program around it",
            instead="write to a copy (x.clone())",
        )
