"""The layouts that a program relies on: it asserts those of its inputs, and asks about those of its
state. We refuse a call that leaves a tensor of another layout in the place of such state, since the
next call would find that.

Must not decide which layouts matter: `aliasing/input_layouts.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lostwax.capture.aliasing.input_layouts import LayoutNote
from lostwax.capture.inputs import CaptureInputs, ReplacedState
from lostwax.capture.steps.to_graph import Builder
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.ir.data import Assumption
from lostwax.ir.run.conditions.answers import LAYOUT_ASKED, OFFSET, STRIDES, VISIBLE_STRIDES, answer
from lostwax.ir.trace.log import Value
from lostwax.types import TensorType


def assert_layouts(
    tracer: Tracer, inputs: CaptureInputs, builder: Builder, outputs: Sequence[Any]
) -> None:
    """Add assertions for the inputs of which the program needs the example's strides."""
    names = inputs.named_tensors()
    for value, notes, offset, exact in layouts_relied_on(tracer, names, outputs):
        assert value.type is not None
        name, t = names[value], value.type
        note = next(n for n in notes if n.needs_offset or not offset)
        place = f" and storage offset {t.offset}" if offset else ""
        copy = "clone()" if offset else "contiguous()"
        if exact and any(size == 1 or not isinstance(size, int) for size in t.size):
            copy = "clone(memory_format=torch.contiguous_format)"
        fix = f"pass {name}.{copy}, or " if t.is_contiguous else ""
        text = (
            f"the input {name} must have strides {tuple(t.stride)}{place}, {LAYOUT_ASKED}\n"
            f"  because of {note.what} at {note.where}\n"
            f"  fix: {fix}capture it again with such an input"
        )
        empty = any(n.includes_empty for n in notes)
        builder.assert_layout(value, offset, empty, exact, text)


def list_layouts(tracer: Tracer, inputs: CaptureInputs, outputs: Sequence[Any]) -> list[Assumption]:
    """What to ask about the layouts of state: a graph does not assert what its module holds."""
    found: list[Assumption] = []
    if not tracer.layout_assumptions.notes:
        return found
    slots = inputs.state_values()
    names = {value: slot.name for value, slot in slots.items()}
    for value, notes, offset, exact in layouts_relied_on(tracer, names, outputs):
        tensor, of = slots[value].tensor, (names[value],)
        asked = [STRIDES if exact else VISIBLE_STRIDES, *([OFFSET] if offset else ())]
        found += [Assumption(q, of, answer(q, tensor), str(notes[0].where)) for q in asked]
    return found


def layouts_relied_on(
    tracer: Tracer, inputs: Mapping[Value, str], outputs: Sequence[Any]
) -> list[tuple[Value, list[LayoutNote], bool, bool]]:
    """The inputs whose strides matter, and why; whether their offset matters, too, and whether the
    strides of dimensions of size 1 do."""
    found = tracer.layout_assumptions.inputs(inputs, tracer.region.steps, outputs)
    return [
        (v, notes, any(n.is_place_of(inputs[v]) for n in notes), any(n.exact for n in notes))
        for v, notes in found.items()
    ]


def check_replaced_layouts(
    tracer: Tracer, inputs: CaptureInputs, replaced: Sequence[ReplacedState], outputs: Sequence[Any]
) -> None:
    """Refuse a tensor in the place of state that does not lie as the first one did. If its layout
    follows that of an input, the program relies on that input's layout from now on."""
    left = {inputs.initial[id(each.fake)]: each for each in replaced}
    layout_assumptions = tracer.layout_assumptions
    while left and layout_assumptions.notes:
        found = layout_assumptions.inputs(left, tracer.region.steps, outputs)
        if not found:
            return
        for value, notes in found.items():
            root, _, held = left.pop(value)
            exact = any(note.exact for note in notes)
            place = next((note for note in notes if note.is_place_of(root.name)), None)
            before, now = root.type, held.fake_type
            if _strides(before, exact) != _strides(now, exact):
                strides = tuple(before.stride), tuple(now.stride)
                raise _layout_error(root, notes[0], "strides", *strides)
            if place is not None and before.offset != now.offset:
                raise _layout_error(root, place, "storage offset", before.offset, now.offset)
            what = f"what is put in the place of {root.name}"
            layout_assumptions.note(held.tracked.root, what, exact=exact, where=notes[0].where)


def _strides(t: TensorType, exact: bool) -> list[Any]:
    return [st for s, st in zip(t.size, t.stride, strict=True) if exact or s != 1]


def _layout_error(root: Any, note: LayoutNote, what: str, before: Any, now: Any) -> CaptureError:
    return CaptureError(
        f"{root.kind} {root.name} is replaced by a tensor of {what} {now}; it was of {what} "
        f"{before}, which the program relies on.\n"
        f"  because of {note.what} at {note.where}\n"
        "  why: the next call would find the other one, and may do something else\n"
        f"  instead: write into it, self.{root.name}.copy_(...); or register it as it will lie"
    )
