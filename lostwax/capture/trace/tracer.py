"""The tracer: a FakeTensorMode that also records what it evaluates.

One trip through Python per operator: evaluate it on fakes, append a step to the region. Views and
writes go through `functionalize.py`, so the recorded program is functional. Real tensors that meet
an operator become constants of the program. Must not build a graph (`to_graph.py`) and must not
know of modules or signatures (`export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, NoReturn

import torch
from torch import is_grad_enabled
from torch._ops import OpOverload

from lostwax.capture.aliasing import functionalize
from lostwax.capture.aliasing.functionalize import is_differentiable, keeps_gradient
from lostwax.capture.aliasing.input_layouts import Reliance
from lostwax.capture.aliasing.maybe_views import Doubts
from lostwax.capture.aliasing.state_views import (
    check_gradient,
    check_history,
    is_derived,
    refuse_inside,
    shown_state,
    ways,
)
from lostwax.capture.steps.provenance import OtherLine, Place, Provenance, operator_in_progress
from lostwax.capture.trace import refusals
from lostwax.capture.trace.dispatch import PLAN_CACHE, PLANS, TAKING_APART, kept, plan
from lostwax.capture.trace.grad_marks import Marks
from lostwax.capture.trace.observer import DETACHED, CaptureObserver
from lostwax.capture.trace.raw_constants import Bare
from lostwax.capture.trace.record import detached, known_view
from lostwax.capture.trace.saved_tensors import Joined
from lostwax.errors import CaptureError, LostwaxError
from lostwax.fake import autocast, data, fallback
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import Seen
from lostwax.ir.graph.gradient import with_gradient
from lostwax.ir.graph.numbers import Origin, sources
from lostwax.ir.trace.log import Body, Region, Step, Value, new_value
from lostwax.ir.trace.recorder import Recorder
from lostwax.ir.trace.strided_copy import copy_like
from lostwax.ir.trace.views import Root, Tracked, View, make_root
from lostwax.location import Location, user_location
from lostwax.ops.registry import aten, has_trait, operator
from lostwax.ops.traits import Trait
from lostwax.sym import Expr, ShapeEnv
from lostwax.sym.numbers import narrowing
from lostwax.types import TensorType

_function_modes: Any = torch._C._len_torch_function_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_autocast: Any = torch._C._is_any_autocast_enabled
_transform: Any = torch._C._functorch.peek_interpreter_stack
_VIEW = operator(aten.view.default)
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_PLAIN = frozenset((int, float, bool, type(None), str, torch.dtype, torch.device))


class Tracer(Recorder):
    """Records operators into a region. `keep`: composite operators that stay single steps.

    `tracked`: let autograd see the operators, for programs that differentiate inside; costs time.
    """

    takes_wrappers = False
    supports_higher_order_operators = True
    observer: CaptureObserver

    def __init__(
        self,
        provenance: Provenance,
        *,
        keep: frozenset[OpOverload] = frozenset(),
        tracked: bool = False,
    ) -> None:
        env = ShapeEnv()
        env.asking = operator_in_progress
        narrowing.install(env)
        super().__init__(env)
        self.provenance = provenance
        self.keep = keep
        self.tracked = tracked
        self.templates = None if tracked else {}
        self.joined = Joined(self) if tracked else None
        self.contexts: list[Any] = []
        """What `torch.library.get_ctx()` gives, the innermost last."""
        self.constants: list[tuple[torch.Tensor, Value]] = []
        self.origins: dict[Any, Origin] = {}
        """Where the program finds the value of a symbol, or of a float."""
        self.reliance = Reliance()
        self.relies_on_view = False
        """Was something written through a `view`, or behind one that was read later?"""
        self.doubts = Doubts()
        self.observer = CaptureObserver(self)
        self.differentiable = False
        """Whether anything that the program is given needs a gradient."""
        self.sees_gradients = False
        """Whether something might in another call: are gradients switched on?"""
        self.users = set[Value]()
        """What the user passes."""
        self.grad_marks = Marks()
        self.overwritten_unseen = set[Value]()
        """What came without a gradient, and was written to where autograd does not see it: one with
        a gradient would have kept that."""
        self.inner: Region | None = None
        """The graph of its own that is being recorded: what was made outside is only read."""
        self.state_in: Callable[[FakeStorage], Sequence[tuple[Root, torch.Tensor]]] = lambda _: ()
        """The state tensors in a storage."""
        self.state_views: list[tuple[torch.Tensor, Root]] = []
        """Tensors from outside that are views of state; or state, read from elsewhere than its own
        place, `self.all[0]`."""
        self.bare = Bare(self.state_of, self._detached)
        self.casting = bool(autocast.enabled())
        """Is autocast on, or has it been?"""
        self.autocasts = Seen()
        self.unsure_autocast: Location | None = None
        """Objects of `torch.autocast` that were made in this capture; and the line where another
        was entered that torch may have switched off."""
        self.gradless = False
        """The program is not differentiated: detaching changes nothing."""
        self.grad: bool | None = None
        """Inside an `autograd.Function`, which runs its forward without gradients: what was set
        around it, where the program differentiates through what the forward computes."""

    # --------------------------------------------------------------------------------- inputs

    def input(self, fake: FakeTensor, kind: str = "", name: str = "") -> Root:
        """A tensor that the program is given."""
        root = make_root(fake, None, None, kind, name)
        self.region.inputs.append(root.value)
        self.users.add(root.value)
        return root

    def inputs(
        self, fakes: Sequence[FakeTensor], kinds: Sequence[str], names: Sequence[str]
    ) -> list[Root]:
        """Many of them."""
        nothing = repeat(None)
        roots = list(map(make_root, fakes, nothing, nothing, kinds, names))
        self.region.inputs += [root.value for root in roots]
        return roots

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        if type(tensor) is FakeTensor and tensor.tracked and tensor.fake_mode is self:
            return tensor
        found = self.bare.fake(tensor)
        if found is not None:
            return found
        fake = super().adopt(tensor)
        if fake.tracked is None and self.is_recording:
            self._constant(tensor, fake)
        elif fake is not tensor and fake.tracked is not None and self.is_recording:
            root = fake.tracked.root
            _check_no_input(root)
            if root.kind in ("the parameter", "the buffer"):  # whose own places hold fakes
                self.state_views.append((tensor, root))
        return fake

    def _detached(self, tensor: torch.Tensor) -> FakeTensor:
        args = (self.adopt(tensor),)
        return detached(self, operator(aten.detach.default), args, {})  # type: ignore[no-any-return]

    def _constant(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """A tensor from outside that is no input and no state: the program carries it."""
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"{tensor!r} was made before the capture and is neither an input nor state.\n"
                f"  at {user_location()}\n  instead: pass it as an input, or register it as a "
                "buffer; so a gradient (x.grad), which is no part of a program, of an input or of "
                "state"
            )
        shown = self._shown_state(tensor, fake)
        if shown is not None:
            self._state_view(tensor, fake, *shown)
            return
        if not tensor.is_leaf:
            _check_gradless(tensor)
            with torch._C._DisableTorchDispatch():
                tensor = tensor.detach()
        root = make_root(fake, None, None, "the constant", f"of size {tuple(tensor.shape)}")
        self.constants.append((tensor, root.value))

    def state_of(self, tensor: torch.Tensor) -> Root | None:
        """What of the program's state, or of its inputs, a real tensor is, or shows."""
        known = self.fake_tensor_converter.known(tensor)
        if known is not None and known.tracked is not None:
            return known.tracked.root  # type: ignore[no-any-return]
        shown = self._shown_state(tensor, super().adopt(tensor))
        return None if shown is None else shown[0]

    def _shown_state(
        self, tensor: torch.Tensor, fake: FakeTensor
    ) -> tuple[Root, torch.Tensor] | None:
        state = self.state_in(fake.fake_storage)
        return shown_state(tensor, fake.fake_type, state) if state else None

    def _state_view(
        self, tensor: torch.Tensor, fake: FakeTensor, root: Root, state: torch.Tensor
    ) -> None:
        """A tensor from outside that shows state: a view of that."""
        # A view that was made while the state wanted no gradient, or without gradients, has none.
        wants = tensor.requires_grad or not state.requires_grad
        has_gradient = is_derived(tensor, state) and wants
        check_gradient(tensor, state, root, has_gradient, self.tracked)
        if self.inner is not None:
            refuse_inside(root, tensor)
        out = new_fake(self, root.type, fake.fake_storage)
        out.tracked = root
        with torch.enable_grad():  # it was made before, whatever holds now
            if not has_gradient:
                out = detached(self, operator(aten.detach.default), (out,), {})
            for view in ways(fake.fake_type, root):
                out = self.evaluate(view.func, (out, *view.args), view.kwargs)
        fake.tracked = out.tracked
        self.state_views.append((tensor, root))

    # ------------------------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for t in types:
            if t is not FakeTensor and fallback.is_foreign(t):
                return NotImplemented
        if self.casting and func.__class__ is OpOverload:
            return autocast.dispatched(self, func, args, kwargs or {}, self._recorded)
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        if self.joined is None:
            return self.evaluate(func, args, kwargs or {})
        self.joined.recover([*args, *kwargs.values()] if kwargs else args)
        if is_grad_enabled() and not has_trait(func, Trait.RECURRENT):
            out = self._evaluate_tracked(func, args, kwargs or {})
        else:
            out = self.evaluate(func, args, kwargs or {})  # or the parts of it are tracked
        self.joined.recover([out])
        return out

    @property
    def takes_known_calls(self) -> bool:
        """May calls be recorded as the last such one was? Not where autograd is to see them."""
        if not self.is_recording or self.tracked or self.casts:
            return False
        return self.shape_env.facts.world is not None

    def sees_all(self) -> bool:
        """Would C++ hand a call to this tracer as it is, to be recorded? Not where something of the
        user's comes before it: modes, transforms, autocast."""
        if not self.takes_known_calls or _dispatch_modes() != 1:  # the tracer is one
            return False
        return not (_function_modes() or _autocast()) and _transform() is None

    def view(self, fake: FakeTensor, size: tuple[Any, ...]) -> Any:
        """What is known need not go through C++, which reads the sizes one by one."""
        is_active = torch._C._get_dispatch_mode(self._mode_key) is self
        out = known_view(self, _VIEW, fake, size) if is_active and self.sees_all() else None
        return super().view(fake, size) if out is None else out

    @contextmanager
    def give_context(self, context: Any) -> Iterator[None]:
        """A capture answers for itself (`patches/torch_functions.py`): the getter of torch's is all
        threads'."""
        self.contexts.append(context)
        try:
            yield
        finally:
            self.contexts.pop()

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        if self.tracked:
            return super().call(func, *args, **kwargs)
        if self.casts:
            return autocast.part(self, func, args, kwargs, self.evaluate)
        return self.evaluate(func, args, kwargs)

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Evaluate and record."""
        if not self.is_recording:
            return super().evaluate(func, args, kwargs)
        planned = PLANS.get(id(func))
        if planned is None:
            planned = PLAN_CACHE.keep(id(func), plan(func))
        handler, record = planned
        if self.keep and func in self.keep and handler in TAKING_APART:
            handler = kept
        return handler(self, record, args, kwargs)

    def forget(self) -> None:
        """The capture is over."""
        self.observer.is_over = True
        self.fake_tensor_converter.forget()
        self.bare.forget()
        self.stand_ins.clear()
        self.grad_marks.made.clear()
        if self.joined is not None:
            self.joined.forget()

    def refuse(self, what: str, instead: str) -> NoReturn:
        raise CaptureError(f"{what}.\n  at {user_location()}\n  instead: {instead}")

    def can_compute(self, number: Expr) -> bool:
        return all(symbol in self.origins for symbol in sources(number))

    # ------------------------------------------------------------------------------ recording

    def append(
        self, target: Any, operands: list[Any], kwargs: dict[str, Any], place: Place | None = None
    ) -> Step:
        grad = is_grad_enabled() if self.grad is None else self.grad
        step = Step()
        step.target = target
        step.args = tuple(operands)
        step.kwargs = kwargs
        step.place = place or self.provenance.here()
        step.grad = grad
        step.tensors = step.result = None
        self.region.steps.append(step)
        return step

    def operand(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            refusals.refuse_generator()
        return super().operand(value)

    def number(self, step: Step, out: Any, index: Any) -> Value:
        value = super().number(step, out, index)
        for source in sources(unwrap(out)):
            self.origins.setdefault(source, Origin(value, None))
        return value

    # ------------------------------------------------------------------------ views and writes

    def renew(self, tracked: Tracked) -> None:
        made_by = tracked.value.step
        super().renew(tracked)
        step = tracked.value.step
        if made_by is not None and step is not None:
            step.place = OtherLine(step.place, made_by.place)

    def take_view(self, base: Value, view: View) -> Value:
        if has_trait(view.func, Trait.NEEDS_STRIDES):
            self.relies_on_view = True
            self.reliance.viewed(base)
        elif has_trait(view.func, Trait.NOT_OF_CONJUGATE):
            base = self.value_of(self.resolved(self.temporary(base)))
        value = super().take_view(base, view)
        return value if view.history is None else self.with_gradient_of(view.history, value)

    def resolved(self, fake: FakeTensor) -> FakeTensor:
        """A tensor that is not conjugated when it is read: a real view has no way to do that. (What
        is written to such a view goes its own way, through the inverses.)"""
        value = self.value_of(fake)
        if not functionalize.is_conjugated(value):
            return fake
        return copy_like(self, self.temporary(value), fake.fake_type)

    def scatter(self, base: Tracked, new: Value, view: View) -> Value:
        try:
            value = super().scatter(base, new, view)
        except RuntimeError as error:
            is_symbolic = base.value.type is not None and base.value.type.is_symbolic
            if isinstance(error, LostwaxError) or not is_symbolic:
                raise
            raise CaptureError(
                f"a write through {view.func} cannot be captured for these sizes, which vary: "
                f"{error}.\n  at {user_location()}\n  instead: write to a copy (x.clone())"
            ) from error
        if has_trait(view.func, Trait.NEEDS_STRIDES):
            self.relies_on_view = True
            self.reliance.scattered(base, value)
        return value

    def write(self, target: FakeTensor, new: FakeTensor) -> None:
        if self.inner is not None:
            self._check_own(target)
        constant = new.known_constant() if target.known_constant() is not None else None
        super().write(target, new)
        if constant is not None and new.shape == target.shape:
            data.remember(target, constant.to(target.fake_type.dtype))

    def assign(self, tracked: Tracked, new: Value) -> None:
        root = tracked.root
        if self.doubts:
            self.doubts.written(root, len(self.region.steps))
        functionalize.check_writable(root)
        before = root.value
        if self.sees_gradients and self.inner is None:
            self._assign_with_history(tracked, new)
        else:
            super().assign(tracked, new)
        self.reliance.written(root, before)
        for tensor, _ in self.state_views:
            known = self.fake_tensor_converter.known(tensor)
            if known is not None and known.tracked is not None and known.tracked.root is root:
                check_history(root, tensor, known.tracked)

    def _assign_with_history(self, tracked: Tracked, new: Value) -> None:
        """To autograd a detached tensor is one of its own: a write to it, or to a view of it, is
        seen in its history alone."""
        seen = is_grad_enabled() if self.grad is None else self.grad
        if tracked.base is not None:
            self.read(tracked if _is_detached(tracked) else tracked.base)
        heads: list[tuple[Tracked, Value]] = []
        while tracked.base is not None and tracked.view is not None:
            seen = seen and tracked.view.grad
            if _is_detached(tracked):
                new = self._history(tracked.value, new, seen)
                heads.append((tracked, new))
                seen = False
            new = self.scatter(tracked.base, new, tracked.view)
            tracked = tracked.base
        new = self.lay_out(tracked.value, new)
        tracked.root.write(self._history(tracked.value, new, seen))
        for head, value in heads:
            self._remember(head, value)

    def _remember(self, head: Tracked, new: Value) -> None:
        """A detached tensor has a new value."""
        assert head.view is not None
        history = new if self.may_have_gradient(new) else None
        head.view = head.view._replace(history=history)
        # What the caller can see must be a view of what he handed in.
        if history is not None and not head.root.kind and head.type == new.type:
            head.value, head.seen = new, head.root.version

    def _history(self, old: Value, new: Value, seen: bool) -> Value:
        """A new value, with the gradient that it has where it was put in the place of the old."""
        if not seen:
            return self._unseen(old, new)
        is_kept = not self.differentiable or keeps_gradient(old, new)
        return new if is_kept else self._instead(old, new)

    def wants_gradient(self, *values: Value) -> bool:
        """Does a gradient of these reach something that the program is given? What is recorded
        hangs on it: if not, a call in which one does is refused."""
        if self.differentiable and any(map(is_differentiable, values)):
            return True
        sources = self._changing(*values)
        if sources:
            self.observer.note_gradients(sources)
        return False

    def may_have_gradient(self, value: Value) -> bool:
        return is_differentiable(value) or bool(self._changing(value))

    def _changing(self, *values: Value) -> list[Value]:
        """What a gradient of these reaches that may require one in one call, and not in another:
        inputs, and parameters."""
        if not self.sees_gradients:
            return []
        found = [s for value in values for s in functionalize.gradient_sources(value, grad=True)]
        return [s for s in found if s in self.users or isinstance(s.fake, torch.nn.Parameter)]

    def with_own_leaf(self, value: Value) -> Value:
        """The value, which requires a gradient whatever the program is given."""
        assert value.type is not None
        with torch._C._DisableTorchDispatch():
            leaf = torch.zeros((), dtype=value.type.dtype, device=value.type.device)
            leaf.requires_grad_()
        return self._instead(self.value_of(self.adopt(leaf)), value)

    def _instead(self, old: Value, new: Value) -> Value:
        """A new value, and a gradient of zeros for the old: nothing is taken of that."""
        assert old.type is not None
        options = {"dtype": torch.bool, "device": old.type.device}
        always = self.evaluate(aten.full.default, ([], True), options)
        both = self.temporary(new), self.temporary(old)
        out = self.evaluate(aten.where.self, (always, *both), {})
        return self.lay_out(new, self.value_of(out))

    def _unseen(self, old: Value, new: Value) -> Value:
        """A new value, with the gradient of the one in whose place autograd did not see it put."""
        if self.wants_gradient(old):
            return self.with_gradient_of(old, self.lay_out(old, new))
        self.overwritten_unseen.update(functionalize.gradient_sources(old, grad=True))
        return self.take_view(new, DETACHED) if self.may_have_gradient(new) else new

    def attached(self, operands: tuple[Any, ...], types: Sequence[TensorType]) -> list[FakeTensor]:
        """Record `with_gradient`; its results are of these types."""
        step = self.step(with_gradient, operands, {})
        step.grad = True
        return list(self.results(step, tuple([new_fake(self, t) for t in types])))

    def with_gradient_of(self, old: Value, new: Value) -> Value:
        assert old.type is not None
        assert new.type is not None
        region = Region()
        grad = new_value(None, None, old.type, new_fake(self, old.type))
        body = Body("unchanged_gradient", region, [grad], [grad])
        (out,) = self.attached((body, [new], [old], []), [new.type])
        return self.value_of(out)

    def _check_own(self, target: FakeTensor) -> None:
        """A graph of its own writes only to what it has made, or was given for itself."""
        value, region = target.tracked.root.value, self.inner
        assert region is not None
        if value.step not in region.steps and value not in region.inputs:
            raise CaptureError(
                f"a backward writes to {target!r}, which it has not made.\n  at {user_location()}\n"
                "  why: the write would have to show in the program around it\n"
                "  instead: write to a copy (x.clone())"
            )


def _is_detached(tracked: Tracked) -> bool:
    return tracked.view is not None and has_trait(tracked.view.func, Trait.STOPS_GRADIENT)


def _check_no_input(root: Root) -> None:
    """Is it a real tensor that the module has for itself, and an input of the example at once?"""
    if root.kind == "the input":
        raise CaptureError(
            f"{root.kind} {root.name} of the example is also a tensor that the module reads "
            "without being given it: a global, one in a closure or in an attribute.\n"
            f"  at {user_location()}\n"
            "  why: in other calls they are two tensors, and the program would not know which is "
            f"meant\n  instead: pass a copy in the example, {root.name}.clone()"
        )


def _check_gradless(tensor: torch.Tensor) -> None:
    if is_grad_enabled():
        raise CaptureError(
            f"a tensor of size {tuple(tensor.shape)}, which is neither an input nor state, was "
            f"computed with gradients before the capture.\n  at {user_location()}\n"
            "  why: they would have to reach what it was computed from; for the program it is a "
            "constant\n"
            "  instead: compute it under torch.no_grad(), or in forward (empty the cache, if it is "
            "in one); or export under torch.no_grad()"
        )
