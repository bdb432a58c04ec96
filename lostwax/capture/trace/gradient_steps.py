"""What a write does to gradients, as steps of the program.

A value that is put in the place of another may keep the gradient of that, end it, or have its own:
as autograd would have it, which sees the write or not. Must not decide what is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled

from lostwax.capture.trace.gradient_reach import (
    gradient_sources,
    is_differentiable,
    is_handed_on,
    keeps_gradient,
    list_reached,
)
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.gradient import with_gradient
from lostwax.ir.trace.log import InnerGraph, Region, Value, new_value
from lostwax.ir.trace.views import Tracked, View
from lostwax.ops.registry import aten, has_trait
from lostwax.ops.traits import Trait
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer

DETACHED = View(aten.detach.default, (), {}, None)


def assign_with_history(tracer: Tracer, tracked: Tracked, new: Value) -> None:
    """Assign as autograd sees it: a detached tensor has a history of its own, and a write to it, or
    to a view of it, enters that history alone."""
    seen = tracer.has_grad
    if tracked.base is not None:
        tracer.read(tracked if _is_detached(tracked) else tracked.base)
    heads: list[tuple[Tracked, Value]] = []
    while tracked.base is not None and tracked.view is not None:
        if _is_detached(tracked):  # whether gradients were on then or not
            new = _put_in_place(tracer, tracked.value, new, seen)
            heads.append((tracked, new))
            seen = False
        seen = seen and tracked.view.grad
        new = tracer.scatter(tracked.base, new, tracked.view)
        tracked = tracked.base
    new = tracer.lay_out(tracked.value, new)
    tracked.root.write(_put_in_place(tracer, tracked.value, new, seen))
    for head, value in heads:
        _note_history(tracer, head, value)


def _note_history(tracer: Tracer, head: Tracked, new: Value) -> None:
    """Note the history that a new value gives to a detached tensor."""
    assert head.view is not None
    if tracer.scope is not None:
        tracer.scope.check_own_history(head)
    history = new if may_have_gradient(tracer, new) else None
    head.view = head.view._replace(history=history)
    # What the caller can see must be a view of what he handed in.
    if history is not None and not head.root.kind and head.type == new.type:
        head.value, head.seen = new, head.root.version


def _put_in_place(tracer: Tracer, old: Value, new: Value, seen: bool) -> Value:
    """The new value, with the gradient that autograd gives it in the place of the old."""
    if not seen:
        return _put_unseen(tracer, old, new)
    is_kept = not tracer.gradients.differentiable or keeps_gradient(old, new)
    return new if is_kept else _stop_gradient_of(tracer, old, new)


def wants_gradient(tracer: Tracer, *values: Value) -> bool:
    """Does a gradient of these reach something that the program is given? What is recorded
    depends on it: if none does, a call in which one does is refused."""
    if tracer.gradients.differentiable and any(map(is_differentiable, values)):
        return True
    sources = _find_changing(tracer, *values)
    if sources:
        tracer.observer.note_gradients(sources)
    return False


def may_have_gradient(tracer: Tracer, value: Value) -> bool:
    """Does it have a gradient, in this call or in another?"""
    return is_differentiable(value) or bool(_find_changing(tracer, value))


def _find_changing(tracer: Tracer, *values: Value) -> list[Value]:
    """What a gradient of these reaches that may require one in one call, and not in another:
    inputs, and parameters."""
    if not tracer.gradients.enabled:
        return []
    found = [s for value in values for s in gradient_sources(value, grad=True)]
    return [
        s for s in found if s in tracer.gradients.users or isinstance(s.fake, torch.nn.Parameter)
    ]


def pass_gradient_through(
    tracer: Tracer, values: Iterable[Any], inside: Sequence[Value] = ()
) -> AbstractContextManager[None]:
    """Record a step whose graphs return these values as Python has it: what they only hand through
    has the gradient that it came with, though autograd sees nothing of what is computed. `inside`
    are inputs of the graphs, for which `values` has what they stand for."""
    is_seen = is_grad_enabled() or any(
        _may_be_marked(tracer, each)
        for value in (values if tracer.gradients.enabled else ())
        if isinstance(value, Value)
        for each in list_reached(value)
        if each not in inside
    )
    return tracer.assume_grad(is_seen)


def _may_be_marked(tracer: Tracer, value: Value) -> bool:
    """Does this value itself require a gradient, in this call or in another?"""
    fake = value.fake
    if fake is None or is_marked(fake):
        return fake is not None
    is_given = value in tracer.gradients.users or isinstance(fake, torch.nn.Parameter)
    return (value.step is None and is_given) or is_handed_on(value)


def give_own_leaf(tracer: Tracer, value: Value) -> Value:
    """The value, made to require a gradient whatever the program is given."""
    assert value.type is not None
    with torch._C._DisableTorchDispatch():
        leaf = torch.zeros((), dtype=value.type.dtype, device=value.type.device)
        leaf.requires_grad_()
    return _stop_gradient_of(tracer, tracer.value_of(tracer.adopt(leaf)), value)


def _stop_gradient_of(tracer: Tracer, old: Value, new: Value) -> Value:
    """The new value, through which the old one gets a gradient of zeros."""
    assert old.type is not None
    options = {"dtype": torch.bool, "device": old.type.device}
    always = tracer.evaluate(aten.full.default, ([], True), options)
    both = tracer.temporary(new), tracer.temporary(old)
    out = tracer.evaluate(aten.where.self, (always, *both), {})
    return tracer.lay_out(new, tracer.value_of(out))


def _put_unseen(tracer: Tracer, old: Value, new: Value) -> Value:
    """The new value, with the gradient of the old one: autograd does not see the write."""
    if wants_gradient(tracer, old):
        return keep_gradient_of(tracer, old, tracer.lay_out(old, new))
    tracer.gradients.written_without_autograd.update(gradient_sources(old, grad=True))
    return tracer.take_view(new, DETACHED) if may_have_gradient(tracer, new) else new


def attach_gradient(
    tracer: Tracer, operands: tuple[Any, ...], types: Sequence[TensorType]
) -> list[FakeTensor]:
    """Record `with_gradient`; its results are of these types."""
    step = tracer.add_step(with_gradient, operands, {})
    step.grad = True
    return list(tracer.set_results(step, tuple([new_fake(tracer, t) for t in types])))


def keep_gradient_of(tracer: Tracer, old: Value, new: Value) -> Value:
    """The new value, with the gradient of the old one."""
    assert old.type is not None
    assert new.type is not None
    region = Region()
    grad = new_value(None, None, old.type, new_fake(tracer, old.type))
    body = InnerGraph("unchanged_gradient", region, [grad], [grad])
    (out,) = attach_gradient(tracer, (body, [new], [old], []), [new.type])
    return tracer.value_of(out)


def _is_detached(tracked: Tracked) -> bool:
    return tracked.view is not None and has_trait(tracked.view.func, Trait.STOPS_GRADIENT)
