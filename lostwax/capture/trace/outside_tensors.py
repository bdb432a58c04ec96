"""Real tensors that meet an operator: each is state, a view of state, or a constant.

Must not take an input of the example for a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import is_grad_enabled

from lostwax.capture.aliasing.state_views import (
    check_gradient,
    find_shown_state,
    is_derived,
    refuse_inside,
    views_of_state,
)
from lostwax.capture.trace.record import detach_fake
from lostwax.errors import CaptureError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.trace.views import Root, make_root
from lostwax.ops.registry import aten, operator

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


def carry_constant(tracer: Tracer, tensor: torch.Tensor, fake: FakeTensor) -> None:
    """A tensor from outside that is no input and no state: the program carries it."""
    if isinstance(tensor, FakeTensor):
        tracer.value_of(tensor)  # which refuses it
    shown = _find_shown_state(tracer, tensor, fake)
    if shown is not None:
        _view_state(tracer, tensor, fake, *shown)
        return
    if not tensor.is_leaf:
        _check_gradless(tensor)
        with torch._C._DisableTorchDispatch():
            tensor = tensor.detach()
    if tracer.sees_gradients and tensor.requires_grad:
        tracer.differentiable = True
    root = make_root(fake, None, None, "the constant", f"of size {tuple(tensor.shape)}")
    tracer.constants.append((tensor, root.value))


def find_state(tracer: Tracer, tensor: torch.Tensor) -> Root | None:
    """What of the program's state, or of its inputs, a real tensor is, or shows."""
    known = tracer.fake_tensor_converter.find_fake(tensor)
    if known is not None and known.tracked is not None:
        return known.tracked.root  # type: ignore[no-any-return]
    shown = _find_shown_state(tracer, tensor, FakeTensorMode.adopt(tracer, tensor))
    return None if shown is None else shown[0]


def _find_shown_state(
    tracer: Tracer, tensor: torch.Tensor, fake: FakeTensor
) -> tuple[Root, torch.Tensor] | None:
    state = tracer.state_in(fake.fake_storage)
    return find_shown_state(tensor, fake.fake_type, state) if state else None


def _view_state(
    tracer: Tracer, tensor: torch.Tensor, fake: FakeTensor, root: Root, state: torch.Tensor
) -> None:
    """A tensor from outside that shows state: a view of that."""
    # A view that was made while the state wanted no gradient, or without gradients, has none.
    wants = tensor.requires_grad or not state.requires_grad
    has_gradient = is_derived(tensor, state) and wants
    check_gradient(tensor, state, root, has_gradient, tracer.tracked)
    if tracer.inner is not None:
        refuse_inside(root, tensor)
    out = new_fake(tracer, root.type, fake.fake_storage)
    out.tracked = root
    with torch.enable_grad():  # it was made before, whatever holds now
        if not has_gradient:
            out = detach(tracer, out)
        for view in views_of_state(fake.fake_type, root):
            out = tracer.evaluate(view.func, (out, *view.args), view.kwargs)
    fake.tracked = out.tracked
    _outlive_scope(tracer, out)
    tracer.state_views.append((tensor, root))


def detach(tracer: Tracer, tensor: torch.Tensor) -> FakeTensor:
    """Record that a tensor is detached."""
    args = (tracer.adopt(tensor),)
    found: FakeTensor = detach_fake(tracer, operator(aten.detach.default), args, {})
    _outlive_scope(tracer, found)
    return found


def _outlive_scope(tracer: Tracer, fake: FakeTensor) -> None:
    """A tensor from before the capture is not that region's which comes by it first."""
    if tracer.scope is not None:
        tracer.scope.keep_views(fake.tracked)


def check_no_input(root: Root) -> None:
    """Is it a real tensor that the module has for itself, and an input of the example at once?"""
    if root.kind == "the input":
        raise CaptureError.here(
            f"{root.kind} {root.name} of the example is also a tensor that the module reads "
            "without being given it: a global, one in a closure or in an attribute",
            why="in other calls they are two tensors, and the program would not know which is "
            "meant",
            instead=f"pass a copy in the example, {root.name}.clone()",
        )


def _check_gradless(tensor: torch.Tensor) -> None:
    if is_grad_enabled():
        raise CaptureError.here(
            f"a tensor of size {tuple(tensor.shape)}, which is neither an input nor state, was "
            "computed with gradients before the capture",
            why="they would have to reach what it was computed from; for the program it is a "
            "constant",
            instead="compute it under torch.no_grad(), or in forward (empty the cache, if it is "
            "in one); or export under torch.no_grad()",
        )
