"""On the layout of which inputs a program relies.

Operators give the same values whatever the strides of their arguments. But a program captured from
`x.as_strided(...)`, from Python that asks for strides, or from a write to `x.contiguous()` holds
for inputs with the example's strides only. Here such places are noted; at the end they tell which
inputs must be checked when the program runs. What lies otherwise in eager where data say so (what
a branch or loop returns) is refused there. Must not build nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import UNSURE_STRIDE
from lostwax.ir.trace.log import Step, Value, values_of
from lostwax.ir.trace.views import Root, Tracked, walk_views
from lostwax.location import Location, user_location
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait


class LayoutNote(NamedTuple):
    """A decision that the layout of a tensor has made."""

    root: Root
    value: Value
    what: str
    where: Location
    other: Root | None = None
    """If the layout decided whether this one shares memory with `root`, which matters only if a
    write shows it."""
    at: int = 0
    """How many steps were recorded before."""
    exact: bool = False
    """Has the user's Python seen the strides, also those of dimensions of size 1?"""

    @property
    def needs_offset(self) -> bool:
        """Does its place in the storage matter, too?"""
        return self.what in ("as_strided", "storage_offset()")

    def is_place_of(self, name: str) -> bool:
        """Does the place in the storage of this input or state, or of a view of it, matter?"""
        return self.needs_offset and self.root.kind in _GIVEN and self.root.name == name

    @property
    def includes_empty(self) -> bool:
        """Does the layout of a tensor without elements matter, too?"""
        return self.what is UNSURE_STRIDE

    def matters(self, steps: Sequence[Step], outputs: Sequence[Any]) -> bool:
        if self.other is None or self.root.version:
            return True
        if not self.other.version:
            return False
        read = [outputs, *([s.args, *s.kwargs.values()] for s in steps[self.at :])]
        return bool(self.root.kind) or any(self._shows(v) for v in values_of(read))

    def _shows(self, value: Value) -> bool:
        """Is it the noted tensor, or a view of it?"""
        return any(each is self.value for each in walk_views(value))


_GIVEN = ("the input", "the parameter", "the buffer")


class LayoutAssumptions:
    """The notes of one capture."""

    def __init__(self) -> None:
        self.notes: list[LayoutNote] = []
        self.relies_on_view = False
        """Was something written through a `view`, or behind one that was read later?"""
        self._overwritten: dict[Value, tuple[Root, Value]] = {}
        """For a value that replaced all of another, and has a layout of its own: the other."""
        self._decided_by_data: dict[Value, tuple[str, bool]] = {}
        """What lies in eager as data decide: by which branch or loop, and whether that is more than
        its place in the storage."""

    def note(
        self,
        root: Root,
        what: str,
        other: Root | None = None,
        at: int = 0,
        exact: bool = False,
        where: Location | None = None,
    ) -> LayoutNote:
        note = LayoutNote(root, root.value, what, where or user_location(), other, at, exact)
        self.notes.append(note)
        return note

    def note_write(self, root: Root, before: Value) -> None:
        """The root has a new value. One that is computed from the old one lies as that does, and a
        `view` of it fails where a view of the old one would; any other has the example's layout,
        and a view of it never fails."""
        if not _follows_layout(root.value, before):
            self._overwritten[root.value] = root, before

    def note_passed_on(self, root: Root, other: Root) -> None:
        """`other`, the result of a branch or loop, is in eager the same tensor as `root`."""
        self.notes += [n._replace(other=other) for n in self.notes if n.other is root]

    def note_decided_by_data(self, value: Value, what: str, has_strides: bool) -> None:
        """A branch or loop returns this, or hands it on, in one layout; eager has several."""
        self._decided_by_data[value] = what, has_strides

    def note_view(self, value: Value) -> None:
        """A write shows that a `view` of this value shares its memory."""
        self.relies_on_view = True
        for each in _first_sources(value) if self._overwritten else ():
            if each in self._overwritten:
                self._note_overwrite(*self._overwritten[each])

    def note_scatter(self, base: Tracked, value: Value) -> None:
        """The value was written through a `view` of the base."""
        self.note_view(base.value)
        if not _follows_layout(value, base.value):
            self._note_overwrite(base.root, base.value)

    def _note_overwrite(self, root: Root, value: Value) -> None:
        """The value was overwritten, and a `view` of it shows that."""
        what = "a write over all of a tensor that is also seen through a view"
        self.notes.append(LayoutNote(root, value, what, user_location()))

    def inputs(
        self, inputs: Collection[Value], steps: Sequence[Step], outputs: Sequence[Any]
    ) -> dict[Value, list[LayoutNote]]:
        """The inputs whose layout matters, each with the notes that say so."""
        found: dict[Value, list[LayoutNote]] = {}
        for note in self.notes:
            if note.matters(steps, outputs):
                for value in self._layout_sources(note.value):
                    if value in inputs:
                        found.setdefault(value, []).append(note)
                    what, has_strides = self._decided_by_data.get(value, ("", False))
                    if has_strides or (what and note.needs_offset):
                        raise _refuse_asked(note, what)
        return found

    def _layout_sources(self, value: Value) -> Iterator[Value]:
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
            if step is None or each in self._decided_by_data:
                yield each
            elif not _has_own_layout(step.target, step.kwargs):
                first = has_trait(step.target, Trait.AS_FIRST)
                left.extend(
                    values_of(step.args[:1] if first else [step.args, *step.kwargs.values()])
                )


def _refuse_asked(note: LayoutNote, what: str) -> CaptureError:
    return CaptureError(
        f"{note.what} asks how a tensor lies in memory, and data decide that in {what}.\n"
        f"  at {note.where}\n"
        "  why: the program has one layout there, and eager another one for each way\n"
        "  instead: let what goes in, or both sides, lie alike in memory, x.contiguous()"
    )


def _follows_layout(value: Value, other: Value) -> bool:
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
        current = next(iter(values_of([step.args, *step.kwargs.values()])), None)


def _has_own_layout(target: Any, kwargs: dict[str, Any]) -> bool:
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return True
    return has_trait(target, Trait.ROW_MAJOR)
