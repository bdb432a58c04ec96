"""Views that eager takes at some sizes only.

`x.mT.reshape(-1)` copies; but where a size is 1 it may be a view of `x`. A program whose sizes vary
copies at all of them. That is the same until one of the two is written to and the other one read
afterwards. Then the sizes at which eager would share memory are excluded by guards, asked for here;
if the example is one of them, the program is refused. Must not record steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lostwax.errors import CaptureError
from lostwax.ir.trace.log import Step, StepPosition, Value
from lostwax.ir.trace.views import Root, memory_of
from lostwax.location import Location
from lostwax.ops.shapes import show
from lostwax.ops.tensors.views import find_strides
from lostwax.sym import ShapeEnv, Size, decide, eq
from lostwax.types import Sizes, TensorType

if TYPE_CHECKING:
    from lostwax.capture.aliasing.timeline import Timeline


class MaybeView(NamedTuple):
    """A copy that may be a view."""

    source: Root
    source_value: Value
    """The source's value when the copy was made."""
    copy: Root
    copy_value: Value
    at: StepPosition
    what: str
    type: TensorType
    size: Sizes
    where: Location

    def location(self) -> Location:
        return self.where

    @property
    def may_be_itself(self) -> bool:
        """When eager does not copy, does it return the source itself?"""
        return self.what.startswith(("contiguous", "to("))

    def is_view(self) -> bool:
        """Does eager take a view at the example's sizes? Asking leaves guards that keep it so."""
        if self.may_be_itself:
            return _is_row_major(self.type)
        return find_strides(decide, self.type, self.size) is not None


def _is_row_major(t: TensorType) -> bool:
    step: Size = 1
    for size, stride in zip(reversed(t.size), reversed(t.stride), strict=True):
        if decide(eq(size, 1)):
            continue
        if not decide(eq(stride, step)):
            return False
        step = step * size
    return True


class MaybeViews:
    """The copies of one capture that may be views, and the writes that would show it."""

    def __init__(self) -> None:
        self._doubts: list[MaybeView] = []
        self._writes: dict[Root, list[StepPosition]] = {}
        self._changes: dict[Root, list[StepPosition]] = {}
        """Of sizes and strides: `x.t_()`."""
        self._handed: dict[Root, list[tuple[Root, Value]]] = {}
        """What is one tensor in eager, and two in a program, as it goes into a branch or loop or
        comes out of it: each with the other, and that one's value."""

    def __bool__(self) -> bool:
        return bool(self._doubts)

    def add(self, source: Any, out: Any, at: StepPosition, what: str, where: Location) -> None:
        """`source` and `out` are fakes of the trace."""
        a, b = source.tracked, out.tracked
        t, size = source.fake_type, out.fake_type.size
        if a.root is b.root:
            return
        doubt = MaybeView(a.root, a.value, b.root, b.value, at, what, t, size, where)
        if doubt not in self._doubts[-1:]:  # an operator may be asked more than once
            self._doubts.append(doubt)

    def note_write(self, root: Root, at: StepPosition) -> None:
        self._writes.setdefault(root, []).append(at)

    def note_change(self, root: Root, at: StepPosition) -> None:
        self._changes.setdefault(root, []).append(at)

    def note_passed_on(self, root: Root, other: Root, value: Value) -> None:
        """`other`, which has this value, is in eager the same tensor as `root`."""
        self._handed.setdefault(root, []).append((other, value))
        self._handed.setdefault(other, []).append((root, root.value))

    def settle(self, env: ShapeEnv, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        """When the trace is over, decide which of them are views, by guards at the user's lines."""
        if not (self._writes or self._changes):
            return
        from lostwax.capture.aliasing.timeline import Timeline

        before, timeline = env.where, Timeline(steps, outputs)
        try:
            for doubt in self._doubts:
                env.where = doubt.location
                if self._matters(doubt, timeline) and doubt.is_view():
                    raise _explain_refusal(doubt)
        finally:
            env.where = before

    def _matters(self, doubt: MaybeView, timeline: Timeline) -> bool:
        """Is one side written to, and the other one seen afterwards?"""
        writes = self._writes
        if doubt.may_be_itself and self._changes:
            roots = {*writes, *self._changes}
            writes = {r: writes.get(r, []) + self._changes.get(r, []) for r in roots}
        made = timeline.find(doubt.at)
        sides = [self._find_sharing(doubt, root) for root in (doubt.source, doubt.copy)]
        for written, other in (sides, sides[::-1]):
            spans = [timeline.find(at) for root in written for at in writes.get(root, ())]
            spans = [span for span in spans if made.can_precede(span)]
            if not spans:
                continue
            if any(root.kind or root in writes for root in other):
                return True
            memory = {memory_of(value) for values in other.values() for value in values}
            read = (value for span in spans for value in timeline.find_read(span))
            if any(memory_of(value) in memory for value in read):
                return True
        return False

    def _find_sharing(self, doubt: MaybeView, root: Root) -> dict[Root, list[Value]]:
        """What may share memory with a root because of the other copies, each with its values."""
        found: dict[Root, list[Value]] = {root: []}
        left = [root]
        while left:
            at = left.pop()
            maybe_views = [each for each in self._doubts if each is not doubt]
            pairs = [
                (each.source, each.copy) for each in maybe_views if at in (each.source, each.copy)
            ]
            pairs += [(at, other) for other, _ in self._handed.get(at, ())]
            for other in (each for pair in pairs for each in pair):
                if other not in found:
                    found[other] = []
                    left.append(other)
        for each in self._doubts:
            if each.source in found:
                found[each.source].append(each.source_value)
            if each.copy in found:
                found[each.copy].append(each.copy_value)
        for root in found:
            for other, value in self._handed.get(root, ()):
                found[other].append(value)
        return found


def _explain_refusal(doubt: MaybeView) -> CaptureError:
    return CaptureError(
        f"{doubt.what} of a tensor of size {show(doubt.type.size)} shares memory with it at the "
        "example's sizes, but not at all sizes, and one of the two is written to.\n"
        f"  at {doubt.where}\n"
        "  why: at some sizes the write would show in the other one, at others it would not\n"
        "  instead: say which one is meant: .clone() for a copy, .view(...) for a view; or give an "
        "example in which no dynamic size is 1"
    )
