"""What a gradient of a recorded value reaches, by the steps that made it.

Must not ask autograd: it has not seen most captures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lostwax.fake.asked_tensor import is_marked
from lostwax.ir.trace.log import Value, values_of
from lostwax.ops.gradients import has_gradient
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


def can_have_gradient(value: Any) -> bool:
    """Is it a tensor of real or complex numbers?"""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (value.is_floating_point() or value.is_complex())


def is_differentiable(value: Value, or_marked: bool = False) -> bool:
    """Does a gradient of this value reach something that the program is given? Or something that
    it has itself marked as a leaf."""
    return any(
        (each.step is None or (or_marked and each.fake is not None)) and is_marked(each.fake)
        for each in _history(value, _derived_from)
    )


def gradient_sources(value: Value, grad: bool) -> list[Value]:
    """What the program is given, or holds, that a gradient of this value reaches if that wants one;
    without `grad`, that it would reach if gradients were switched on."""
    reads = _derived_from if grad else _derivable_from
    return [each for each in _history(value, reads) if each.step is None]


def keeps_gradient(old: Value, new: Value) -> bool:
    """Does a gradient of the new value reach all that one of the old would? Not where a tensor is
    overwritten whole: eager's is a zero then."""
    if any(each is old for each in _kept_by(new)):  # most writes
        return True
    if not is_differentiable(old):
        return True
    reached = set(_history(new, _kept_by))
    return old in reached or all(
        each in reached
        for each in _history(old, _derived_from)
        if each.step is None and is_marked(each.fake)
    )


def _history(value: Value, reads: Callable[[Value], list[Value]]) -> Iterator[Value]:
    """The value and all that its gradient reaches, by what is read for each value."""
    left, seen = [value], set[Value]()
    while left:
        each = left.pop()
        if each in seen or each.type is None or not _is_real(each.type):
            continue
        seen.add(each)
        left.extend(reads(each))
        yield each


def _derivable_from(value: Value) -> list[Value]:
    step = value.step
    if step is None or not has_gradient(step.target, value.index):
        return []
    return values_of([step.args, *step.kwargs.values()])


def _derived_from(value: Value) -> list[Value]:
    return _derivable_from(value) if value.step is not None and value.step.grad else []


def _kept_by(value: Value) -> list[Value]:
    """What a gradient still reaches if the operator overwrites its first argument."""
    found = _derived_from(value)
    is_filled = value.step is not None and has_trait(value.step.target, Trait.OVERWRITES)
    return found[1:] if is_filled else found


def _is_real(t: TensorType) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex
