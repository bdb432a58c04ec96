"""On the layout of which inputs a program relies.

Operators give the same values whatever the strides of their arguments. But a program captured from
`x.as_strided(...)`, from Python that asks for strides, or from a write to `x.contiguous()` holds
for inputs with the example's strides only. Here such places are noted; at the end they tell which
inputs must be checked when the program runs. Must not build nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from lostwax.fake.asked_tensor import UNSURE_STRIDE
from lostwax.ir.trace.log import Step, Value
from lostwax.ir.trace.views import Root, Tracked
from lostwax.location import Location, user_location
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait


class Note(NamedTuple):
    """Something was decided by the layout of a tensor."""

    root: Root
    value: Value
    what: str
    where: Location
    other: Root | None = None
    """Decided was whether this one shares memory with `root`: it matters if a write shows it."""
    at: int = 0
    """After so many steps."""
    exact: bool = False
    """Has the user's Python seen the strides, also those of dimensions of size 1?"""

    @property
    def offset(self) -> bool:
        """Does its place in the storage matter, too?"""
        return self.what in ("as_strided", "storage_offset()")

    def is_place_of(self, name: str) -> bool:
        """Is it the place in the storage of what the program is given by this name, or of a view
        of it?"""
        return self.offset and self.root.kind in _GIVEN and self.root.name == name

    @property
    def empty(self) -> bool:
        """Does the layout matter of what has no elements, too?"""
        return self.what is UNSURE_STRIDE

    def matters(self, steps: Sequence[Step], outputs: Sequence[Any]) -> bool:
        if self.other is None or self.root.version:
            return True
        if not self.other.version:
            return False
        read = [outputs, *([s.args, *s.kwargs.values()] for s in steps[self.at :])]
        return bool(self.root.kind) or any(self._shows(v) for v in _values(read))

    def _shows(self, value: Value) -> bool:
        """Is it the noted tensor, or a view of it?"""
        while value is not self.value:
            step = value.step
            if step is None or not isinstance(step.target, OpOverload):
                return False
            if operator(step.target).kind != "view" or not isinstance(step.args[0], Value):
                return False
            value = step.args[0]
        return True


_GIVEN = ("the input", "the parameter", "the buffer")


class Reliance:
    """The notes of one capture."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._overwritten: dict[Value, tuple[Root, Value]] = {}
        """Values that replaced others whole: what they replaced, which alone had its layout."""

    def note(
        self,
        root: Root,
        what: str,
        other: Root | None = None,
        at: int = 0,
        exact: bool = False,
        where: Location | None = None,
    ) -> Note:
        note = Note(root, root.value, what, where or user_location(), other, at, exact)
        self.notes.append(note)
        return note

    def written(self, root: Root, before: Value) -> None:
        """The root has another value. One that is computed from the old one lies as that does, and
        a `view` of it fails where a view of the old one would; any other has the example's layout,
        and its views tell nothing."""
        if not _follows(root.value, before):
            self._overwritten[root.value] = root, before

    def viewed(self, value: Value) -> None:
        """A write shows that a `view` of this value shares its memory."""
        for each in _first_sources(value) if self._overwritten else ():
            if each in self._overwritten:
                self._shared(*self._overwritten[each])

    def scattered(self, base: Tracked, value: Value) -> None:
        """This was written through a `view` of the base."""
        self.viewed(base.value)
        if not _follows(value, base.value):
            self._shared(base.root, base.value)

    def _shared(self, root: Root, value: Value) -> None:
        """It was overwritten, and a `view` of it shows that."""
        what = "a write over all of a tensor that is also seen through a view"
        self.notes.append(Note(root, value, what, user_location()))

    def inputs(
        self, inputs: Collection[Value], steps: Sequence[Step], outputs: Sequence[Any]
    ) -> dict[Value, list[Note]]:
        """Those of the inputs whose layout matters, each with the places that say so."""
        found: dict[Value, list[Note]] = {}
        for note in self.notes:
            if note.matters(steps, outputs):
                for value in self._laid_out_by(note.value):
                    if value in inputs:
                        found.setdefault(value, []).append(note)
        return found

    def _laid_out_by(self, value: Value) -> Iterator[Value]:
        """The inputs of the program that a value's strides may follow."""
        seen: set[Value] = set()
        left = [value]
        while left:
            each = left.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._overwritten:
                left.append(self._overwritten[each][1])
            step = each.step
            if step is None:
                yield each
            elif not _has_own_layout(step.target, step.kwargs):
                first = has_trait(step.target, Trait.AS_FIRST)
                left.extend(_values(step.args[:1] if first else [step.args, *step.kwargs.values()]))


def _follows(value: Value, other: Value) -> bool:
    """Does the layout of the value follow that of the other one?"""
    return any(each is other for each in _first_sources(value))


def _first_sources(value: Value) -> Iterator[Value]:
    """The value, and those that give it its layout: operators lay their results out as their first
    tensor lies."""
    current: Value | None = value
    while current is not None:
        yield current
        step = current.step
        if step is None or _has_own_layout(step.target, step.kwargs):
            return
        current = next(_values([step.args, *step.kwargs.values()]), None)


def _values(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _values(each)


def _has_own_layout(target: Any, kwargs: dict[str, Any]) -> bool:
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return True
    return has_trait(target, Trait.ROW_MAJOR)
