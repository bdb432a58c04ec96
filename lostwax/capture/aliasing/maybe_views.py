"""Views that eager takes at some sizes only.

`x.mT.reshape(-1)` copies; but where a size is 1 it may be a view of `x`. A program whose sizes vary
copies at all of them. That is the same until one of the two is written to and the other one read
afterwards. Then the sizes at which eager would share memory are excluded by guards, asked for here;
if the example is one of them, the program is refused. Must not record steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.ir.trace.log import Step, Value
from lostwax.ir.trace.views import Root
from lostwax.location import Location
from lostwax.ops.registry import operator
from lostwax.ops.shapes import show
from lostwax.ops.tensors.views import find_strides
from lostwax.sym import ShapeEnv, Size, decide, eq
from lostwax.types import Sizes, TensorType


class Doubt(NamedTuple):
    """A copy that may be a view."""

    source: Root
    seen: Value
    """The source's value then."""
    copy: Root
    made: Value
    at: int
    """After so many steps."""
    what: str
    type: TensorType
    size: Sizes
    where: Location

    def location(self) -> Location:
        return self.where

    @property
    def may_be_itself(self) -> bool:
        """Is it the source itself where it is no copy?"""
        return self.what.startswith(("contiguous", "to("))

    def is_view(self) -> bool:
        """What eager does at the example's sizes; guards keep it so."""
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


class Doubts:
    """Those of one capture, and what is written while they last."""

    def __init__(self) -> None:
        self._doubts: list[Doubt] = []
        self._writes: dict[Root, list[int]] = {}
        self._changes: dict[Root, list[int]] = {}
        """Of sizes and strides (`x.t_()`)."""

    def __bool__(self) -> bool:
        return bool(self._doubts)

    def add(self, source: Any, out: Any, at: int, what: str, where: Location) -> None:
        """`source` and `out` are fakes of the trace."""
        a, b = source.tracked, out.tracked
        t, size = source.fake_type, out.fake_type.size
        if a.root is not b.root:
            self._doubts.append(Doubt(a.root, a.value, b.root, b.value, at, what, t, size, where))

    def written(self, root: Root, at: int) -> None:
        self._writes.setdefault(root, []).append(at)

    def changed(self, root: Root, at: int) -> None:
        self._changes.setdefault(root, []).append(at)

    def settle(self, env: ShapeEnv, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        """When the trace is over: ask where it matters, in the name of the user's line."""
        if not (self._writes or self._changes):
            return
        before = env.where
        try:
            for doubt in self._doubts:
                env.where = doubt.location
                if self._matters(doubt, steps, outputs) and doubt.is_view():
                    raise _refused(doubt)
        finally:
            env.where = before

    def _matters(self, doubt: Doubt, steps: Sequence[Step], outputs: Sequence[Any]) -> bool:
        """Is one side written to, and the other one seen afterwards?"""
        writes = self._writes
        if doubt.may_be_itself and self._changes:
            roots = {*writes, *self._changes}
            writes = {r: writes.get(r, []) + self._changes.get(r, []) for r in roots}
        sides = [self._beyond(doubt, root) for root in (doubt.source, doubt.copy)]
        for written, other in (sides, sides[::-1]):
            at = [w for root in written for w in writes.get(root, ()) if w >= doubt.at]
            if not at:
                continue
            if any(root.kind or root in writes for root in other):
                return True
            if any(_is_read(v, steps[min(at) :], outputs) for vs in other.values() for v in vs):
                return True
        return False

    def _beyond(self, doubt: Doubt, root: Root) -> dict[Root, list[Value]]:
        """What may share memory with a root, were this doubt not: each with its values."""
        found: dict[Root, list[Value]] = {root: []}
        left = [root]
        while left:
            at = left.pop()
            for each in self._doubts:
                if each is doubt or at not in (each.source, each.copy):
                    continue
                for other in (each.source, each.copy):
                    if other not in found:
                        found[other] = []
                        left.append(other)
        for each in self._doubts:
            if each.source in found:
                found[each.source].append(each.seen)
            if each.copy in found:
                found[each.copy].append(each.made)
        return found


def _refused(doubt: Doubt) -> CaptureError:
    return CaptureError(
        f"{doubt.what} of a tensor of size {show(doubt.type.size)} shares memory with it at the "
        "example's sizes, but not at all sizes, and one of the two is written to.\n"
        f"  at {doubt.where}\n"
        "  why: at some sizes the write would show in the other one, at others it would not\n"
        "  instead: say which one is meant: .clone() for a copy, .view(...) for a view; or give an "
        "example in which no dynamic size is 1"
    )


def _is_read(value: Value, steps: Iterable[Step], outputs: Sequence[Any]) -> bool:
    """Do these steps, or the results, read memory that a value shows?"""
    wanted = _owner(value)
    trees = [outputs, *([s.args, list(s.kwargs.values())] for s in steps)]
    return any(_owner(v) is wanted for v in _values(trees))


def _owner(value: Value) -> Value:
    """What a value is a view of, in the end."""
    while True:
        step = value.step
        if step is None or not isinstance(step.target, OpOverload):
            return value
        if operator(step.target).kind != "view" or not isinstance(step.args[0], Value):
            return value
        value = step.args[0]


def _values(tree: Any) -> Iterable[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _values(each)
