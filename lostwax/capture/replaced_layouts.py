"""State whose layout a program relies on, and in whose place there is another tensor when the call
is over: the next call relies on the layout of that one.

Must not build nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lostwax.capture.aliasing.input_layouts import Note
from lostwax.capture.inputs import Given, Replaced
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.types import TensorType


def check_relaid(
    tracer: Tracer, given: Given, replaced: Sequence[Replaced], outputs: Sequence[Any]
) -> None:
    """It must lie as the first one did, and so must the inputs that it is laid out by."""
    left = {given.initial[id(each.fake)]: each for each in replaced}
    reliance = tracer.reliance
    while left and reliance.notes:
        found = reliance.inputs(left, tracer.region.steps, outputs)
        if not found:
            return
        for value, notes in found.items():
            root, _, held = left.pop(value)
            exact = any(note.exact for note in notes)
            place = next((note for note in notes if note.is_place_of(root.name)), None)
            before, now = root.type, held.fake_type
            if _strides(before, exact) != _strides(now, exact):
                raise _relaid(root, notes[0], "strides", tuple(before.stride), tuple(now.stride))
            if place is not None and before.offset != now.offset:
                raise _relaid(root, place, "storage offset", before.offset, now.offset)
            what = f"what is put in the place of {root.name}"
            reliance.note(held.tracked.root, what, exact=exact, where=notes[0].where)


def _strides(t: TensorType, exact: bool) -> list[Any]:
    return [st for s, st in zip(t.size, t.stride, strict=True) if exact or s != 1]


def _relaid(root: Any, note: Note, what: str, before: Any, now: Any) -> CaptureError:
    return CaptureError(
        f"{root.kind} {root.name} is replaced by a tensor of {what} {now}; it was of {what} "
        f"{before}, which the program relies on.\n"
        f"  because of {note.what} at {note.where}\n"
        "  why: the next call would find the other one, and may do something else\n"
        f"  instead: write into it, self.{root.name}.copy_(...); or register it as it will lie"
    )
