"""The tracer: a Recorder of all that a call of the user's does.

One trip through Python per operator: `dispatch.py` finds what handles it; that evaluates it on
fakes and appends a step. Beside its value, a step has its place in the user's code, and whether
autograd sees it. Real tensors that meet an operator become constants (`outside_tensors.py`). What
Python does beside operators is reported to the observer. Must not build a graph (`to_graph.py`) and
must not know of modules or signatures (`export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import is_grad_enabled
from torch._ops import OpOverload

from lostwax.capture.aliasing import storage
from lostwax.capture.aliasing.input_layouts import LayoutAssumptions
from lostwax.capture.aliasing.maybe_views import MaybeViews
from lostwax.capture.aliasing.sharing import TensorSharing
from lostwax.capture.steps.provenance import OtherLine, Provenance, StepPlace, operator_in_progress
from lostwax.capture.trace import refusals
from lostwax.capture.trace.dispatch import PLAN_CACHE, PLANS, is_composite_view, plan, plan_whole
from lostwax.capture.trace.grad_marks import CaptureGradients
from lostwax.capture.trace.gradient_steps import assign_with_history, keep_gradient_of
from lostwax.capture.trace.observer import CaptureObserver
from lostwax.capture.trace.outside_tensors import OutsideTensors
from lostwax.capture.trace.record import record_known_view
from lostwax.capture.trace.regions import KeepsBothWays, OpenScope, Regions
from lostwax.capture.trace.saved_tensors import SavedTensors
from lostwax.capture.trace.single_step_composites import Composites, Kept, show_sharing
from lostwax.classes import list_nested
from lostwax.errors import CaptureError, LostwaxError
from lostwax.fake import autocast, data, fallback
from lostwax.fake.devices import public_device_of
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.numbers import SymbolOrigin, number_sources
from lostwax.ir.run.conditions.answers import ONE
from lostwax.ir.trace.log import Step, StepPosition, Value
from lostwax.ir.trace.recorder import Recorder
from lostwax.ir.trace.strided_copy import copy_like
from lostwax.ir.trace.views import Root, Tracked, View, make_root
from lostwax.location import user_location
from lostwax.ops.registry import aten, has_trait, operator
from lostwax.ops.traits import Trait
from lostwax.sym import Expr, ShapeEnv
from lostwax.sym.numbers import narrowing

if TYPE_CHECKING:
    from torch import nn

    from lostwax.capture.heap.moment import ReachableState
    from lostwax.capture.heap.reach import Reach
    from lostwax.capture.heap.recomputed import ComputedResults
    from lostwax.capture.python.returning import CallsInProgress
    from lostwax.capture.state.global_state import OutsideState

_function_modes: Any = torch._C._len_torch_function_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_autocast: Any = torch._C._is_any_autocast_enabled
_transform: Any = torch._C._functorch.peek_interpreter_stack


class UserPython:
    """The Python that one capture runs: the program's modules, the functions that it may run, and
    the variables that these keep something in, as they were."""

    __slots__ = ("_computed", "_list_changed", "_reachable", "modules", "outside", "reach")

    def __init__(
        self,
        modules: Sequence[nn.Module],
        reach: Reach,
        outside: OutsideState,
        list_changed: Callable[[], Iterator[tuple[Any, Any]]],
    ) -> None:
        """`list_changed` yields what modules hold that is not as it was given, by its key."""
        self.modules = modules
        self.reach = reach
        self.outside = outside
        self._list_changed = list_changed
        self._computed: ComputedResults | None = None
        self._reachable: ReachableState | None = None

    @property
    def computed(self) -> ComputedResults:
        """What functions with a cache give for numbers of data."""
        if self._computed is None:
            from lostwax.capture.heap.recomputed import ComputedResults

            self._computed = ComputedResults(self._list_all_changed)
        return self._computed

    def _list_all_changed(self) -> Iterator[tuple[Any, Any]]:
        """What holds something else than when the call began, with its key."""
        for key, place in self.outside.places.list_changes({}):
            yield key, place.value
        yield from self._list_changed()

    @property
    def reachable(self) -> ReachableState:
        """Where the functions may keep something: found when it is first needed."""
        if self._reachable is None:
            from lostwax.capture.heap.moment import ReachableState

            self._reachable = ReachableState(self.modules, self.reach, self.outside)
        return self._reachable

    def check_recomputed(self) -> None:
        """The call is over."""
        if self._computed is not None:
            self._computed.check()
        if self._reachable is not None:
            self._reachable.recomputed.check()
            self._reachable.recomputed.check_counts(self.reach.functions)


class Tracer(Recorder):
    """Records operators into a region. `keep`: composite operators that stay single steps
    (`COMPOSITES`: all of them).

    `tracked`: let autograd see the operators, for programs that differentiate inside; costs time.
    """

    takes_wrappers = False
    supports_higher_order_operators = True
    observer: CaptureObserver
    python: UserPython
    """Set while the capture runs."""

    def __init__(
        self,
        provenance: Provenance,
        *,
        keep: Kept = frozenset(),
        tracked: bool = False,
    ) -> None:
        env = ShapeEnv()
        env.asking = operator_in_progress
        narrowing.install(env)
        super().__init__(env)
        self.provenance = provenance
        self.keep = keep
        self._plans: dict[int, Any] = {} if keep else PLANS
        """How operators are recorded, by their ids."""
        self.composites = Composites()
        self.tracked = tracked
        self.templates = None if tracked else {}
        self.saved = SavedTensors(self) if tracked else None
        self.contexts: list[Any] = []
        """What `torch.library.get_ctx()` gives, the innermost last."""
        self.packed: dict[Value, Any] = {}
        """The sequences that were packed, by how many of them have each step."""
        self.delegates: list[Any] = []
        """The delegates of other programs that have got the sizes of their calls."""
        self.origins: dict[Any, SymbolOrigin] = {}
        """Where the program finds the value of a symbol, or of a float."""
        self.layout_assumptions = LayoutAssumptions()
        self.maybe_views = MaybeViews()
        self.observer = CaptureObserver(self)
        self.sharing = TensorSharing()
        self.gradients = CaptureGradients()
        self.outside = OutsideTensors(self)
        self.regions = Regions()
        self.calls: CallsInProgress | None = None
        """Those of functions that look at what they get, if there are any."""
        self.addresses = set[int]()
        """The addresses of objects that the user's code has asked for."""
        self.tells_exporting = True
        """Is code told that it is being exported, if it asks?"""
        self.asked_exporting: list[str] = []
        """The lines that ask it."""
        self.scope: OpenScope | None = None
        self.splits: KeepsBothWays | None = None
        self.casting = bool(autocast.find_enabled())
        """Is autocast on, or has it been?"""
        self.autocasts = autocast.MadeAutocasts()
        self.grad: bool | None = None
        """Inside an `autograd.Function`, which runs its forward without gradients: what was set
        around it, where the program differentiates through what the forward computes."""

    # --------------------------------------------------------------------------------- inputs

    def add_input(self, fake: FakeTensor, kind: str = "", name: str = "") -> Root:
        """A tensor that the program is given."""
        root = make_root(fake, None, None, kind, name)
        self.region.inputs.append(root.value)
        self.gradients.users.add(root.value)
        return root

    def add_inputs(
        self, fakes: Sequence[FakeTensor], kinds: Sequence[str], names: Sequence[str]
    ) -> list[Root]:
        """Many tensors that the program is given."""
        nothing = repeat(None)
        roots = list(map(make_root, fakes, nothing, nothing, kinds, names))
        self.region.inputs += [root.value for root in roots]
        return roots

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        if type(tensor) is FakeTensor and tensor.tracked and tensor.fake_mode is self:
            return tensor
        found = self.outside.find_detached(tensor)
        if found is not None:
            return found
        fake = super().adopt(tensor)
        if self.is_recording:
            self.outside.meet(tensor, fake)
        return fake

    # ------------------------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for t in types:
            if t is not FakeTensor and fallback.is_foreign(t):
                return fallback.leave_to_class(self, func, args, kwargs or {})
        if kwargs and "device" in kwargs:
            public_device_of(kwargs)
        try:
            if self.casting and func.__class__ is OpOverload:
                return autocast.dispatch(self, func, args, kwargs or {}, self._record)
            return self._record(func, args, kwargs)
        except Exception as error:
            values = [*args, *kwargs.values()] if kwargs else args
            refusals.hold_sizes_of_failed(self.shape_env, error, values)
            raise

    def track_foreign(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = super().track_foreign(func, args, kwargs)
        if not self.gradients.stay_inside:
            flows = [each for each in list_nested([out], torch.Tensor) if each.requires_grad]
            refusals.refuse_gradients_of_class(str(func), flows)
        return out

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        if self.saved is None:
            return self.evaluate(func, args, kwargs or {})
        self.saved.recover([*args, *kwargs.values()] if kwargs else args)
        if is_grad_enabled() and not has_trait(func, Trait.RECURRENT):
            out = self._evaluate_tracked(func, args, kwargs or {})
        else:
            out = self.evaluate(func, args, kwargs or {})  # or the parts of it are tracked
        self.saved.recover([out])
        return out

    @property
    def can_replay_calls(self) -> bool:
        """May calls be recorded as the last such one was? Not where autograd is to see them."""
        if not self.is_recording or self.tracked or self.casts:
            return False
        return self.shape_env.facts.world is not None

    def sees_all(self) -> bool:
        """Would C++ hand a call to this tracer as it is, to be recorded? Not where something of the
        user's comes before it: modes, transforms, autocast."""
        if not self.can_replay_calls or _dispatch_modes() != 1:  # the tracer is one
            return False
        return not (_function_modes() or _autocast()) and _transform() is None

    def view(self, fake: FakeTensor, size: tuple[Any, ...]) -> Any:
        """What is known need not go through C++, which reads the sizes one by one."""
        is_active = torch._C._get_dispatch_mode(self._mode_key) is self
        out = None
        if is_active and self.sees_all():
            out = record_known_view(self, operator(aten.view.default), fake, size)
        return super().view(fake, size) if out is None else out

    @contextmanager
    def give_context(self, context: Any) -> Iterator[None]:
        """While a capture runs, it answers for itself (`patches/torch_functions.py`): the getter of
        torch's is all threads'."""
        if not self.thread:
            with super().give_context(context):
                yield
            return
        self.contexts.append(context)
        try:
            yield
        finally:
            self.contexts.pop()

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        if self.tracked:
            return super().call(func, *args, **kwargs)
        if self.casts:
            return autocast.evaluate_part(self, func, args, kwargs, self.evaluate)
        return self.evaluate(func, args, kwargs)

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Evaluate and record."""
        if not self.is_recording:
            if self.composites.check_part is not None:
                self.composites.check_part(func)
            return super().evaluate(func, args, kwargs)
        handler, record = self._plans.get(id(func)) or self._plan(func)
        return handler(self, record, args, kwargs)

    def _plan(self, func: OpOverload) -> Any:
        planned = PLANS.get(id(func))
        if planned is None:
            planned = PLAN_CACHE.keep(id(func), plan(func))
        if self.keep:
            planned = self._plans[id(func)] = plan_whole(planned) if func in self.keep else planned
        return planned

    def forget(self) -> None:
        """The capture is over."""
        self.observer.is_over = True
        self.fake_tensor_converter.forget()
        self.outside.forget()
        self.stand_ins.clear()
        self.composites.one_in_eager.clear()
        self.gradients.made.clear()
        del self.python
        if self.saved is not None:
            self.saved.forget()

    def refuse(self, what: str, instead: str) -> NoReturn:
        raise CaptureError.here(what, instead=instead)

    def can_compute(self, number: Expr) -> bool:
        return all(symbol in self.origins for symbol in number_sources(number))

    # ------------------------------------------------------------------------------ recording

    def append_step(
        self, target: Any, operands: list[Any], kwargs: dict[str, Any], at: StepPlace | None = None
    ) -> Step:
        grad = is_grad_enabled() if self.grad is None else self.grad
        step = Step()
        step.target = target
        step.args = tuple(operands)
        step.kwargs = kwargs
        step.place = at or self.provenance.here()
        step.grad = grad
        step.tensors = step.result = None
        self.region.steps.append(step)
        return step

    @property
    def has_grad(self) -> bool:
        """Do gradients flow through what is recorded now?"""
        return is_grad_enabled() if self.grad is None else self.grad

    @contextmanager
    def assume_grad(self, grad: bool) -> Iterator[None]:
        """Inside, gradients flow through what is recorded, or do not, whatever autograd says."""
        before, self.grad = self.grad, grad
        try:
            yield
        finally:
            self.grad = before

    def operand(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            refusals.refuse_generator()
        return super().operand(value)

    def note_number(self, step: Step, out: Any, index: Any) -> Value:
        value = super().note_number(step, out, index)
        for source in number_sources(unwrap(out)):
            self.origins.setdefault(source, SymbolOrigin(value, None))
        return value

    # ------------------------------------------------------------------------ views and writes

    @property
    def position(self) -> int:
        """How many steps the program has; inside of a region of its own, how many it had before."""
        return len(self.region.steps) if self.scope is None else self.scope.position

    @property
    def moment(self) -> StepPosition:
        steps = self.region.steps
        return StepPosition(steps, len(steps), self.position)

    def renew_view(self, tracked: Tracked) -> None:
        if self.scope is not None:
            self.scope.keep(tracked)
        if self.keep:
            show_sharing(self, tracked)
        made_by = tracked.value.step
        super().renew_view(tracked)
        step = tracked.value.step
        if made_by is not None and step is not None:
            step.place = OtherLine(step.place, made_by.place)

    def take_view(self, base: Value, view: View) -> Value:
        if has_trait(view.func, Trait.NEEDS_STRIDES):
            self.layout_assumptions.note_view(base)
        elif has_trait(view.func, Trait.NOT_OF_CONJUGATE):
            base = self.value_of(self.resolve_conjugate(self.temporary(base)))
        value = super().take_view(base, view)
        history = view.history
        return value if history is None else keep_gradient_of(self, history, value)

    def resolve_conjugate(self, fake: FakeTensor) -> FakeTensor:
        """A copy of a conjugated tensor, which no real view can show; any other is itself. (Writes
        to such a view reach the tensor through the views' inverses.)"""
        value = self.value_of(fake)
        if not storage.is_conjugated(value):
            return fake
        return copy_like(self, self.temporary(value), fake.fake_type)

    def scatter(self, base: Tracked, new: Value, view: View) -> Value:
        try:
            if self.keep and not operator(view.func).view_inverse and is_composite_view(view.func):
                value = self._scatter_by_parts(base, new, view)
            else:
                value = super().scatter(base, new, view)
        except RuntimeError as error:
            is_symbolic = base.value.type is not None and base.value.type.is_symbolic
            if isinstance(error, LostwaxError) or not is_symbolic:
                raise
            raise CaptureError.here(
                f"a write through {view.func} cannot be captured for these sizes, which vary: "
                f"{error}",
                instead="write to a copy (x.clone())",
            ) from error
        if has_trait(view.func, Trait.NEEDS_STRIDES):
            self.layout_assumptions.note_scatter(base, value)
        return value

    def _scatter_by_parts(self, base: Tracked, new: Value, view: View) -> Value:
        """The same for an operator that is kept whole: through the views that it consists of."""
        whole = self.temporary(base.value)
        handler, record = plan(view.func)
        shown = handler(self, record, (whole, *map(self.wrap, view.args)), view.kwargs)
        part = shown if view.position is None else shown[view.position]
        super().assign(part.tracked, new)
        return whole.tracked.value  # type: ignore[no-any-return]

    def write(self, target: FakeTensor, new: FakeTensor) -> None:
        if self.regions.inner is not None:
            self.regions.check_written(target.tracked.root, target)
        is_known = self.scope is None and target.known_constant() is not None
        constant = new.known_constant() if is_known else None
        super().write(target, new)
        if constant is not None and new.shape == target.shape:
            data.remember_constant(target, constant.to(target.fake_type.dtype))

    def check_apart(self, *pair: torch.Tensor) -> None:
        """Check that Python may ask whether these are one tensor: they are two here."""
        if any(type(each) is FakeTensor and each.tracked is None for each in pair):
            return
        one, other = map(self.adopt, pair)
        self.sharing.check_apart(one.tracked.root, other.tracked.root)
        self.observer.note_question_at(user_location(), ONE, [one, other])

    def check_class(self, fake: FakeTensor) -> None:
        """Refuse the question of what class it is, if that is a number's in the first turn of a
        loop: so is what is computed of such alone."""
        if self.regions.numbers_at_first and fake.tracked is not None:
            name = self.regions.find_number_at_first(self.value_of(fake))
            if name:
                refusals.refuse_class(name)

    def check_caught(self, error: TypeError) -> None:
        """Refuse an error over a symbolic number, if the user's code may catch it."""
        refusals.refuse_caught_symbol(error, self.shape_env)

    def assign(self, tracked: Tracked, new: Value) -> None:
        root = tracked.root
        if self.maybe_views or self.scope is not None:  # in a loop, it comes again
            self.maybe_views.note_write(root, self.moment)
        storage.check_writable(root)
        self.sharing.check_written(root)
        if self.scope is not None:
            self.scope.keep(root)
        if self.keep:
            show_sharing(self, tracked)
        before = root.value
        if self.gradients.enabled and self.regions.inner is None:
            assign_with_history(self, tracked, new)
        else:
            super().assign(tracked, new)
        self.layout_assumptions.note_write(root, before)
        self.outside.check_written(root)

    def replace_value(self, root: Root, new: Value) -> None:
        """Give the root another value, with the gradient that it should have."""
        if self.scope is not None:
            self.scope.keep(root)
        before = root.value
        root.write(new)
        self.layout_assumptions.note_write(root, before)

    def become(self, target: FakeTensor, new: FakeTensor) -> None:
        if self.scope is not None:
            self.scope.check_own(target.tracked)
        super().become(target, new)
