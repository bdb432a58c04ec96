"""Real tensors that a capture meets: each is state, a view of state, or a constant.

Some are read as they are, `self.table.numpy()`: C++ detaches a tensor, and puts it on the CPU,
before it shows its memory to numpy, and says nothing else. So what is detached of a constant is a
real tensor, too; operators take it for the constant, detached. Must not take an input of the
example for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled

from lostwax.capture.aliasing.state_views import (
    State,
    check_gradient,
    check_history,
    find_shown_state,
    is_derived,
    refuse_inside,
    views_of_state,
)
from lostwax.capture.trace.record import detach_fake
from lostwax.errors import CaptureError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.storage import FakeStorage
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import ByIdentity
from lostwax.ir.trace.log import Value
from lostwax.ir.trace.views import Root, make_root
from lostwax.ops.registry import aten, operator

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


class OutsideTensors:
    """The real tensors of one capture."""

    __slots__ = (
        "_fakes", "_sources", "_tracer", "constants", "given_roots", "state_in", "state_views",
    )  # fmt: skip

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.constants: list[tuple[torch.Tensor, Value]] = []
        self.state_in: Callable[[FakeStorage], Sequence[State]] = lambda _: ()
        """The state tensors in a storage."""
        self.given_roots: Mapping[int, Root] = {}
        """What the program is given, as it was at the start, by the ids of the fakes."""
        self.state_views: list[tuple[torch.Tensor, Root]] = []
        """Tensors that are views of state; or state, read from elsewhere than its own place,
        `self.all[0]`."""
        self._sources = ByIdentity[torch.Tensor, torch.Tensor]()
        """What each real tensor was detached from that C++ has detached."""
        self._fakes = ByIdentity[torch.Tensor, FakeTensor]()

    def meet(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """An operator takes a real tensor, for which `fake` stands."""
        if fake.tracked is None:
            self._carry_constant(tensor, fake)
        elif fake is not tensor and id(fake) in self.given_roots:
            root = self.given_roots[id(fake)]
            _check_no_input(root)
            self.state_views.append((tensor, root))  # its own place holds the fake

    def check_written(self, root: Root) -> None:
        """Refuse a write to state where a tensor from outside shows it and has another gradient."""
        for tensor, _ in self.state_views:
            known = self._tracer.fake_tensor_converter.find_fake(tensor)
            if known is not None and known.tracked is not None and known.tracked.root is root:
                check_history(root, tensor, known.tracked)

    def _carry_constant(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """A tensor that is no input and no state: the program carries it."""
        tracer = self._tracer
        if isinstance(tensor, FakeTensor):
            tracer.value_of(tensor)  # which refuses it
        shown = self._find_shown_state(tensor, fake)
        if shown is not None:
            self._view_state(tensor, fake, *shown)
            return
        if not tensor.is_leaf:
            _check_gradless(tensor)
            with torch._C._DisableTorchDispatch():
                tensor = tensor.detach()
        if tracer.gradients.enabled and tensor.requires_grad:
            tracer.gradients.differentiable = True
        root = make_root(fake, None, None, "the constant", f"of size {tuple(tensor.shape)}")
        self.constants.append((tensor, root.value))

    def map_constants(self) -> dict[int, int]:
        """The ids of constants, by those of what the recorder knows of their fakes: it knows the
        same of what eager returns as it is, as `constant.to(x.device)`."""
        find = self._tracer.fake_tensor_converter.find_fake
        fakes = ((tensor, find(tensor)) for tensor, _ in self.constants)
        return {id(fake.tracked): id(tensor) for tensor, fake in fakes if fake is not None}

    def _find_shown_state(self, tensor: torch.Tensor, fake: FakeTensor) -> State | None:
        state = self.state_in(fake.fake_storage)
        return find_shown_state(tensor, fake.fake_type, state) if state else None

    def _view_state(
        self, tensor: torch.Tensor, fake: FakeTensor, root: Root, state: torch.Tensor
    ) -> None:
        """A tensor that shows state: a view of that."""
        tracer = self._tracer
        # A view that was made while the state wanted no gradient, or without gradients, has none.
        wants = tensor.requires_grad or not state.requires_grad
        has_gradient = is_derived(tensor, state) and wants
        check_gradient(tensor, state, root, has_gradient, tracer.tracked)
        if tracer.regions.inner is not None:
            refuse_inside(root, tensor)
        out = new_fake(tracer, root.type, fake.fake_storage)
        out.tracked = root
        with torch.enable_grad():  # it was made before, whatever holds now
            if not has_gradient:
                out = self._detach(out)
            for view in views_of_state(fake.fake_type, root):
                out = tracer.evaluate(view.func, (out, *view.args), view.kwargs)
        fake.tracked = out.tracked
        self._outlive_scope(out)
        self.state_views.append((tensor, root))

    def _detach(self, tensor: torch.Tensor) -> FakeTensor:
        """Record that a tensor is detached."""
        tracer = self._tracer
        args = (tracer.adopt(tensor),)
        found: FakeTensor = detach_fake(tracer, operator(aten.detach.default), args, {})
        self._outlive_scope(found)
        return found

    def _outlive_scope(self, fake: FakeTensor) -> None:
        """A tensor from before the capture does not belong to the region that meets it first."""
        if self._tracer.scope is not None:
            self._tracer.scope.keep_views(fake.tracked)

    # ----------------------------------------------------------------------------- read as they are

    def detach_unrecorded(self, tensor: Any) -> torch.Tensor:
        found: torch.Tensor = self.call_unrecorded(aten.detach.default, (tensor,), {})
        self._sources[found] = tensor
        return found

    def call_unrecorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on the real constant, unrecorded."""
        root = self._find_state(args[0])
        if root is not None and root.kind not in ("", "the constant"):
            raise CaptureError.here(
                f"{root.kind} {root.name} is reached past the module, and detached, or read as it "
                "is (numpy(), tolist())",
                why="the values that it has now would be baked in",
                instead="take it where the module has it (self.name), or pass it as an argument",
            )
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)

    def _find_state(self, tensor: torch.Tensor) -> Root | None:
        """What of the program's state, or of its inputs, a real tensor is, or shows."""
        tracer = self._tracer
        known = tracer.fake_tensor_converter.find_fake(tensor)
        if known is not None and known.tracked is not None:
            return known.tracked.root  # type: ignore[no-any-return]
        shown = self._find_shown_state(tensor, FakeTensorMode.adopt(tracer, tensor))
        return None if shown is None else shown[0]

    def is_unrecorded(self, tensor: Any) -> bool:
        """Was a constant detached, which gave this one?"""
        return tensor in self._sources

    def find_detached(self, tensor: torch.Tensor) -> FakeTensor | None:
        """What stands for a tensor that was detached; None for any other."""
        source = self._sources.get(tensor)
        if source is None:
            return None
        fake = self._fakes.get(tensor)
        if fake is None:
            fake = self._fakes[tensor] = self._detach(source)
        return fake

    def forget(self) -> None:
        self._sources.clear()
        self._fakes.clear()


def _check_no_input(root: Root) -> None:
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
