"""The tracer: a FakeTensorMode that also records what it evaluates.

One trip through Python per operator: evaluate it on fakes, append a step to the region. Views and
writes go through `functionalize.py`, so the recorded program is functional. Real tensors that meet
an operator become constants of the program. Must not build a graph (`build.py`) and must not know
of modules or signatures (`export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from lostwax.capture import control, custom, functionalize
from lostwax.capture.doubt import Doubts
from lostwax.capture.functionalize import Root, Tracked, View, track, track_view
from lostwax.capture.layout import cast_like, copy_like
from lostwax.capture.provenance import Provenance, operator_in_progress
from lostwax.capture.reliance import Reliance
from lostwax.capture.steps import Body, Region, Step, Value, values_of
from lostwax.errors import CaptureError, LostwaxError
from lostwax.fake import composite, data, fallback, recurrent
from lostwax.fake.mode import FakeTensorMode, functional
from lostwax.fake.symnode import unwrap
from lostwax.fake.tensor import FakeTensor, new_fake, set_type
from lostwax.fake.write import (
    check_cast,
    check_fits,
    factory_options,
    mark_written,
    written_arguments,
)
from lostwax.ir.gradient import with_gradient
from lostwax.ir.numbers import Origin, sources
from lostwax.location import user_location
from lostwax.ops.registry import Operator, aten, operator
from lostwax.sym import Expr, ShapeEnv
from lostwax.types import TensorType

_AS_STRIDED, _DETACH = aten.as_strided.default, aten.detach.default
_LSTM = aten.lstm.input
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_PLAIN = frozenset((int, float, bool, type(None), str, torch.dtype, torch.device))
Handler = Callable[["Tracer", Operator, Any, dict[str, Any]], Any]


class Tracer(FakeTensorMode):
    """Records operators into a region. `keep`: composite operators that stay single steps.

    `tracked`: let autograd see the operators, for programs that differentiate inside; costs time.
    """

    portable = True
    supports_higher_order_operators = True

    def __init__(
        self,
        provenance: Provenance,
        *,
        keep: frozenset[OpOverload] = frozenset(),
        tracked: bool = False,
    ) -> None:
        env = ShapeEnv()
        env.asking = operator_in_progress
        super().__init__(allow_non_fake_inputs=True, shape_env=env)
        self.provenance = provenance
        self.keep = keep
        self.tracked = tracked
        self.region = Region()
        self.constants: list[tuple[torch.Tensor, Value]] = []
        self.origins: dict[Any, Origin] = {}
        """Where the program finds the value of a symbol, or of a float."""
        self.reliance = Reliance()
        self.doubts = Doubts()
        self.differentiable = False
        """Whether anything that the program is given needs a gradient."""
        self.inner: Region | None = None
        """The graph of its own that is being recorded: what was made outside is only read."""
        self.hooked: Callable[[FakeTensor, Callable[[Any], Any]], Any] | None = None
        """What records a hook on a tensor's gradient."""
        self._recording = True
        self.gradless = False
        """The program is not differentiated: detaching changes nothing."""
        self.grad: bool | None = None
        """Inside an `autograd.Function`, which runs its forward without gradients: what was set
        around it, where the program differentiates through what the forward computes."""

    # --------------------------------------------------------------------------------- inputs

    def input(self, fake: FakeTensor, kind: str = "", name: str = "") -> Value:
        """A tensor that the program is given."""
        t = fake.fake_type
        value = Value(None, None, t, fake)
        fake.tracked = Tracked(value, Root(value, t, kind, name), t)
        self.region.inputs.append(value)
        return value

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        if tensor.__class__ is FakeTensor and tensor.tracked and tensor.fake_mode is self:
            return tensor
        fake = super().adopt(tensor)
        if fake.tracked is None and self._recording:
            self._constant(tensor, fake)
        return fake

    def _constant(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """A tensor from outside that is no input and no state: the program carries it."""
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"{tensor!r} was made before the capture and is neither an input nor state.\n"
                f"  at {user_location()}\n  instead: pass it as an input, or register it as a "
                "buffer"
            )
        value = Value(None, None, fake.fake_type, fake)
        root = track(fake, value).root
        root.kind, root.name = "the constant", f"of size {tuple(tensor.shape)}"
        self.constants.append((tensor, value))

    # ------------------------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for t in types:
            if t is not FakeTensor and fallback.is_foreign(t):
                return NotImplemented
        if self.tracked and torch.is_grad_enabled() and func not in fallback.PORTABLE:
            return self._evaluate_tracked(func, args, kwargs or {})
        return self.evaluate(func, args, kwargs or {})  # or the parts of it are tracked

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        if self.tracked:
            return super().call(func, *args, **kwargs)
        return self.evaluate(func, args, kwargs)

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Evaluate and record."""
        if not self._recording:
            return super().evaluate(func, args, kwargs)
        plan = _PLANS.get(id(func))
        if plan is None:
            plan = _PLANS[id(func)] = _plan(func)
        handler, record = plan
        if self.keep and func in self.keep and handler in _TAKING_APART:
            handler = _kept
        return handler(self, record, args, kwargs)

    computed = FakeTensorMode.evaluate
    """What the call returns, without recording anything."""

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = before

    # ------------------------------------------------------------------------------ recording

    def step(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Step:
        """Append a step; its result is set by the caller."""
        operands = []
        for a in args:  # `operand`, with what is most common inlined
            if a.__class__ is FakeTensor:
                tracked = a.tracked
                is_new = tracked is not None and tracked.seen == tracked.root.version
                operands.append(tracked.value if is_new else self.value_of(a))
            else:
                operands.append(a if a.__class__ in _PLAIN else self.operand(a))
        step = Step(
            target,
            tuple(operands),
            {k: self.operand(v) for k, v in kwargs.items()} if kwargs else {},
            self.provenance.here(),
            (torch.is_grad_enabled() if self.grad is None else self.grad)
            and id(target) not in _UNDERIVED,
        )
        self.region.steps.append(step)
        return step

    def operand(self, value: Any) -> Any:
        """An argument as the log keeps it: tensors as values, symbolic numbers as expressions."""
        cls = value.__class__  # torch's classes are slow to be asked by isinstance
        if cls in _PLAIN or cls is Expr:
            return value
        if cls is FakeTensor or isinstance(value, FakeTensor):
            return self.value_of(value)
        if isinstance(value, (list, tuple)):
            return [v if v.__class__ is int else self.operand(v) for v in value]
        if cls in _SYMBOLIC:
            return unwrap(value)
        if isinstance(value, torch.Tensor):
            return self.value_of(self.adopt(value))
        if isinstance(value, torch.Generator):
            control.refuse_generator()
        return value

    def value_of(self, fake: FakeTensor) -> Value:
        tracked: Tracked | None = fake.tracked
        if tracked is None:
            self._constant(fake, fake)
        if tracked.seen == tracked.root.version:  # type: ignore[union-attr]
            return tracked.value  # type: ignore[union-attr]
        return functionalize.read(tracked, self.again)  # type: ignore[arg-type]

    def results(self, step: Step, out: Any) -> Any:
        """Give a step its outputs; each tensor among them becomes a new root."""
        step.result = self._output(step, out, None)
        return out

    def _output(self, step: Step, out: Any, index: Any) -> Any:
        if out.__class__ is FakeTensor:
            t = out.fake_type
            value = Value(step, index, t, out)
            out.tracked = Tracked(value, Root(value, t), t)
            return value
        if isinstance(out, (list, tuple)):
            places = [i if index is None else (index, i) for i in range(len(out))]
            return type(out)([self._output(step, *at) for at in zip(out, places, strict=True)])
        return out

    def hook_gradient(self, fake: FakeTensor, hook: Callable[[Any], Any]) -> Any:
        if self.hooked is None or self.tracked:
            return super().hook_gradient(fake, hook)
        return self.hooked(fake, hook)

    def layout_asked(self, fake: FakeTensor, what: str) -> None:
        if self._recording and fake.tracked is not None:
            self.reliance.note(fake.tracked.root, what)

    def layout_decided(self, source: FakeTensor, out: FakeTensor, what: str) -> None:
        if self._recording and source.tracked is not None and out.tracked is not None:
            roots = (source.tracked.root, out.tracked.root)
            name = f"a write to the result of {what}"
            self.reliance.note(roots[0], name, roots[1], len(self.region.steps))
            if source.fake_type.is_symbolic:
                self.doubts.add(source, out, len(self.region.steps), what)

    # ------------------------------------------------------------------------ views and writes

    def again(self, base: Value, view: View) -> Value:
        """The same view of another value of the base."""
        fake = self.temporary(base)
        out = self.computed(view.func, (fake, *view.args), view.kwargs)
        step = self.step(view.func, (fake, *view.args), view.kwargs)
        step.grad = view.grad  # as when it was made: here it is only read
        if view.position is None:
            step.result = value = Value(step, None, out.fake_type, out)
            return value
        step.result = values = [Value(step, i, o.fake_type, o) for i, o in enumerate(out)]
        return values[view.position]

    def temporary(self, value: Value) -> FakeTensor:
        """A fake that stands for a value, aliasing nothing."""
        assert value.type is not None
        fake = new_fake(self, value.type)
        track(fake, value)
        return fake

    def _scattered(self, base: Tracked, new: Value, view: View) -> Value:
        function = functionalize.inverse(view)
        position = () if view.position is None else (view.position,)
        fakes = (self.temporary(base.value), self.temporary(new))
        args = (*fakes, *position, *map(self.wrap, view.args))
        try:
            out = self.reentered(function, args, view.kwargs)
        except RuntimeError as error:
            if isinstance(error, LostwaxError) or not fakes[0].fake_type.is_symbolic:
                raise
            raise CaptureError(
                f"a write through {view.func} cannot be captured for these sizes, which vary: "
                f"{error}.\n  at {user_location()}\n  instead: write to a copy (x.clone())"
            ) from error
        value = self.value_of(out)
        return self.laid_out(base.value, value) if base.base is None else value

    def laid_out(self, like: Value, value: Value) -> Value:
        """The value in the layout of the one it replaces: later views count on its strides."""
        if like.type is None or value.type is None or like.type.stride == value.type.stride:
            return value
        return self.value_of(copy_like(self, self.temporary(value), like.type))

    def write(self, target: FakeTensor, new: FakeTensor) -> None:
        """`target` takes the value of `new`."""
        if self.inner is not None:
            self._check_own(target)
        value = self.value_of(new)
        if new.fake_type.dtype is not target.fake_type.dtype:
            value = self.value_of(
                self.evaluate(aten._to_copy.default, (new,), {"dtype": target.fake_type.dtype})
            )
        if target.tracked.base is None:
            value = self.laid_out(self.value_of(target), value)
        root = target.tracked.root
        if self.doubts:
            self.doubts.written(root, len(self.region.steps))
        before = root.value
        detached = functionalize.written(target.tracked, value, self.again, self._scattered)
        if self.differentiable and self._is_unseen(target) and has_gradient(before):
            root.value = self._with_gradient_of(before, root.value)
        # (Of what the caller can see, too, the shared memory counts more.)
        for each, new_value in detached if self.differentiable and not root.kind else ():
            if has_gradient(new_value):
                each.value, each.seen = self.laid_out(each.value, new_value), root.version
        mark_written([target])

    def _is_unseen(self, target: FakeTensor) -> bool:
        """Does autograd not see a write to this tensor?"""
        seen = torch.is_grad_enabled() if self.grad is None else self.grad
        return not seen or functionalize.is_detached(target.tracked)

    def attached(self, operands: tuple[Any, ...], types: Sequence[TensorType]) -> list[FakeTensor]:
        """Record `with_gradient`; its results are of these types."""
        step = self.step(with_gradient, operands, {})
        step.grad = True
        return list(self.results(step, tuple([new_fake(self, t) for t in types])))

    def _with_gradient_of(self, old: Value, new: Value) -> Value:
        """A value in the place of another to which autograd did not see the write."""
        assert old.type is not None
        region = Region()
        grad = Value(None, None, old.type, new_fake(self, old.type))
        body = Body("unchanged_gradient", region, [grad], [grad])
        (out,) = self.attached((body, [new], [old], []), [old.type])
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

    def become(self, target: FakeTensor, new: FakeTensor) -> None:
        """`target`, of which there was nothing to see, is `new` from now on, but for its dtype."""
        if new.fake_type.dtype is not target.fake_type.dtype:
            new = self.evaluate(aten._to_copy.default, (new,), {"dtype": target.fake_type.dtype})
        set_type(target, new.fake_type, new.fake_storage)
        target.tracked = new.tracked


# ----------------------------------------------------------------------------------------- handlers


def has_gradient(value: Value) -> bool:
    """Does a gradient of this value reach something that the program is given?"""
    left, seen = [value], set()
    while left:
        each = left.pop()
        if each in seen or each.type is None or not each.type.dtype.is_floating_point:
            continue
        seen.add(each)
        step = each.step
        if step is None:
            if each.fake.requires_grad:
                return True
        elif step.grad and step.target is not aten.detach.default:
            left.extend(values_of([step.args, *step.kwargs.values()]))
    return False


def _typed(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The most common operator: it has a rule, and its result is new."""
    out = functional(tracer, record, args, kwargs)
    step = tracer.step(record.overload, args, kwargs)
    if out.__class__ is not FakeTensor:
        return tracer.results(step, out)
    t = out.fake_type
    value = step.result = Value(step, None, t, out)
    out.tracked = Tracked(value, Root(value, t), t)
    return out


def _functional(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    if (
        record.rule is None
    ):  # a fall-back evaluates it by other operators: those are not the program's
        with tracer.silent():
            out = tracer.computed(record.overload, args, kwargs)
    else:
        out = tracer.computed(record.overload, args, kwargs)
    step = tracer.step(record.overload, args, kwargs)
    if out.__class__ is FakeTensor:
        value = step.result = Value(step, None, out.fake_type, out)
        track(out, value)
        return out
    return tracer.results(step, out)


def _view(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    base = tracer.adopt(args[0])
    func = record.overload
    out = tracer.computed(func, args, kwargs)
    if func is _AS_STRIDED:
        return _strided(tracer, base, out)
    if func is _DETACH and _is_gradless(base.tracked.value):
        out.tracked = base.tracked
        return out
    step = tracer.step(func, args, kwargs)
    rest = tuple(args[1:])
    if out.__class__ is FakeTensor:
        value = step.result = Value(step, None, out.fake_type, out)
        track_view(out, value, base.tracked, View(func, rest, kwargs, None, step.grad))
        return out
    values = step.result = [Value(step, i, o.fake_type, o) for i, o in enumerate(out)]
    for i, (fake, value) in enumerate(zip(out, values, strict=True)):
        track_view(fake, value, base.tracked, View(func, rest, kwargs, i, step.grad))
    return out


def _detach(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A step only where it stops a gradient: not for what has none."""
    base = tracer.adopt(args[0])
    value = tracer.value_of(base)
    has_gradient = value.step is not None or base.requires_grad or base.tracked.root.kind
    if has_gradient and not tracer.gradless:
        return _view(tracer, record, args, kwargs)
    out = tracer.computed(record.overload, args, kwargs)
    track_view(out, value, base.tracked, View(record.overload, (), {}, None))
    return out


def _is_gradless(value: Value) -> bool:
    """Does it come out of nothing that has a gradient? C++ detaches all that factories make."""
    step = value.step
    return value.is_literal if step is None else step.target in _FACTORIES


def _strided(tracer: Tracer, given: FakeTensor, out: FakeTensor) -> FakeTensor:
    """`as_strided` speaks of the storage: recorded as a view of the tensor that owns it."""
    base = functionalize.strided_base(given.tracked)
    tracer.reliance.note(base.root, "as_strided")
    arguments = functionalize.strided_arguments(base.type, out.fake_type)
    view = View(aten.as_strided.default, arguments, {}, None)
    track_view(out, tracer.again(functionalize.read(base, tracer.again), view), base, view)
    return out


def _metadata(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.t_()`: from here on `x` is the view that `x.t()` would be."""
    if record.overload in functionalize.REFUSED:
        functionalize.refuse(record.overload)
    target = tracer.adopt(args[0])
    if record.changes_metadata:
        functionalize.check_metadata(target.tracked)
    elif _is_gradless(target.tracked.value):
        return target
    func = functionalize.metadata_view(record.overload)
    seen = _view(tracer, operator(func), args, kwargs)
    set_type(target, seen.fake_type)
    target.tracked = seen.tracked
    return target


def _write(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    if record.changes_metadata or record.overload is aten.detach_.default:
        return _metadata(tracer, record, args, kwargs)
    if record.overload is aten.copy_.default:
        return _copy_(tracer, args, kwargs)
    if record.twin is None:
        return custom.write(tracer, record, args, kwargs)
    if record.kind == "out":
        return _out(tracer, record, args, kwargs)
    targets = _flat(written_arguments(record, args, kwargs))
    targets = [tracer.adopt(t) for t in targets]
    out = tracer.evaluate(record.twin, args, _with_defaults(record, args, kwargs))
    results = _flat([out])
    if record.kind == "inplace":
        for target, new in zip(targets, results, strict=False):
            check_fits(target.fake_type, new.fake_type)
            tracer.write(target, new)
        return (
            targets[0]
            if len(record.results) == 1
            else None
            if not record.results
            else tuple(targets)
        )
    own = len(record.results)
    for target, new in zip(targets, results[own:], strict=True):
        tracer.write(target, new)
    return results[0] if own == 1 else tuple(results[:own])


def _inplace(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The most common write: `x.relu_()`."""
    target = tracer.adopt(args[0])
    assert record.twin is not None
    new = tracer.evaluate(record.twin, args, _with_defaults(record, args, kwargs))
    check_fits(target.fake_type, new.fake_type)
    tracer.write(target, new)
    return target


def _is_plain_write(record: Operator) -> bool:
    """Does it write to its first argument, nothing else, and return it?"""
    return (
        record.kind == "inplace"
        and record.twin is not None
        and not record.changes_metadata
        and record.mutates == record.argument_names[:1]
        and [r.argument for r in record.results] == list(record.mutates)
        and not record.results[0].is_list
        and record.overload not in (aten.copy_.default, aten.detach_.default)
    )


def _fill(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A whole number has no gradient, and torch's derivative of a fill does not know that."""
    if not _is_real(args[0]) and _is_real(args[-1]):
        args = (*args[:-1], tracer.evaluate(_DETACH, (args[-1],), {}))
    return _write(tracer, record, args, kwargs)


def _is_real(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (value.is_floating_point() or value.is_complex())


def _with_defaults(record: Operator, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the functional twin: also those that only the writing form may
    leave out (`bernoulli_()`)."""
    lent = _LENT.get(id(record))
    if lent is None:
        lent = _LENT[id(record)] = _lent_defaults(record.overload)
    if not lent:
        return kwargs
    missing = {n: v for i, n, v in lent if i >= len(args) and kwargs.get(n) is None}
    if "dtype" in missing:  # `cumsum_` computes in the dtype of what it writes
        missing["dtype"] = args[0].dtype
    return {**kwargs, **missing}


# By identity: torch hashes its overloads in Python; records live for ever.
_LENT: dict[int, tuple[tuple[int, str, Any], ...]] = {}


def _lent_defaults(func: OpOverload) -> tuple[tuple[int, str, Any], ...]:
    """Position, name and value of the defaults that the functional twin does not have."""
    twin = operator(func).twin
    own = {a.name: a.default_value for a in twin._schema.arguments if a.has_default_value()}  # type: ignore[union-attr]
    return tuple(
        (i, a.name, a.default_value)
        for i, a in enumerate(func._schema.arguments)
        if a.has_default_value()
        and (a.name == "dtype" or a.name not in own or own[a.name] != a.default_value)
    )


def _copy_(tracer: Tracer, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.copy_(y)`: the whole of x is y, cast and expanded."""
    target, source = tracer.adopt(args[0]), args[1]
    if isinstance(source, torch.Tensor):
        tracer.computed(aten.copy.default, (target, source), {})  # raises what eager raises
        source = tracer.adopt(source)
        form = cast_like if functionalize.is_scattered(target.tracked) else copy_like
        new = form(tracer, source, target.fake_type)
    else:
        new = tracer.evaluate(aten.fill.Scalar, (target, source), {})
    tracer.write(target, new)
    return target


def _out(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    outs = _flat([kwargs[name] for name in record.out_names])
    outs = [tracer.adopt(o) for o in outs]
    inputs = {k: v for k, v in kwargs.items() if k not in record.out_names}
    inputs.update(factory_options(record, outs[0], args, inputs))
    results = _flat([tracer.evaluate(record.twin, args, inputs)])  # type: ignore[arg-type]
    for target, new in zip(outs, results, strict=True):
        check_cast(target.fake_type, new.fake_type)
        if target.fake_type.size != new.fake_type.size:
            if functionalize.is_blank(target.tracked):
                tracer.become(target, new)
                continue
            raise CaptureError(
                f"out= has size {tuple(target.fake_type.size)}, the result "
                f"{tuple(new.fake_type.size)}: "
                f"resizing cannot be captured.\n  at {user_location()}\n"
                "  instead: drop out= and use the returned tensor"
            )
        tracer.write(target, new)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _composite(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by C++, or by the user: its parts are recorded."""
    return fallback.evaluate(tracer, record, args, kwargs)


def _parts(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart here: its parts are recorded, all in its place."""
    return tracer.provenance.as_one(tracer.computed, record.overload, args, kwargs)


def _portable(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by torch's Python, which chooses no operator that one device has."""
    if _is_endless(tracer, record, args):
        if tracer.tracked and torch.is_grad_enabled():
            raise CaptureError(
                f"{record.overload} over a length that varies has no derivative in a program.\n"
                f"  at {user_location()}\n"
                "  why: it stays one operator, since its steps would hold for one length alone\n"
                "  instead: fix the length, and let other sizes vary"
            )
        return _functional(tracer, record, args, kwargs)
    if record.overload is _LSTM:
        return tracer.provenance.as_one(recurrent.lstm, tracer, *args)
    with fallback.without_mkldnn():
        function = record.overload.decompose
        return tracer.provenance.as_one(tracer.reentered, function, args, kwargs)


def _is_endless(tracer: Tracer, record: Operator, args: Any) -> bool:
    """A recurrent layer over a length that varies: step by step it would hold for the example's
    length alone, so it stays one operator, which every device has."""
    if record.rule is None:  # packed sequences: their steps are data
        return False
    size, batch_first = tracer.adopt(args[0]).fake_type.size, args[-1]
    return isinstance(size[1 if batch_first else 0], Expr)


def _view_or_copy(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The layout of the argument decides whether its result shares memory with it. If it does, the
    program takes a view, and fails where it cannot."""
    taken_apart = _parts if record.overload in composite.COMPOSITES else _composite
    out = taken_apart(tracer, record, args, kwargs)
    source = tracer.adopt(args[0])
    if not isinstance(out, FakeTensor):
        return out
    name = f"{record.overload._schema.name.removeprefix('aten::')}()"
    if out.fake_storage is not source.fake_storage:
        tracer.layout_decided(source, out, name)
    elif source.tracked is not None and source.tracked.root.version and source.tracked.root.kind:
        # Written to, it has the example's layout in the program, also where the input has another.
        tracer.reliance.note(source.tracked.root, f"a write before {name}")
    return out


def _batch_norm(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """It writes to the statistics and does not say so; those that say so have portable forms."""
    x, weight, bias, mean, var, training, momentum, eps = args
    legit = aten._native_batch_norm_legit
    if not training:
        frozen = (x, weight, bias, mean, var, momentum, eps)
        return tracer.evaluate(aten._native_batch_norm_legit_no_training.default, frozen, {})
    if mean is None or var is None:
        return tracer.evaluate(legit.no_stats, (x, weight, bias, True, momentum, eps), {})
    return tracer.evaluate(legit.default, tuple(args), {})


def _kept(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A composite operator that the user keeps whole: evaluated by its parts, recorded as one."""
    with tracer.silent():
        out = tracer.computed(record.overload, args, kwargs)
    memories = {
        id(a.fake_storage)
        for a in _flat([args, list(kwargs.values())])
        if isinstance(a, FakeTensor)
    }
    outputs = [o for o in _flat([out]) if isinstance(o, FakeTensor)]
    if any(id(o.fake_storage) in memories for o in outputs):
        raise CaptureError(
            f"{record.overload} cannot be kept as one operator: its result may be a view of its "
            f"argument, and the program would not show that.\n  at {user_location()}"
        )
    step = tracer.step(record.overload, args, kwargs)
    return tracer.results(step, out)


def _special(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Questions to the data, and tensor literals."""
    func = record.overload
    if func in (aten.lift_fresh.default, aten.lift.default):
        return _lift(tracer, record, args, kwargs)
    out = tracer.computed(func, args, kwargs)
    if isinstance(out, FakeTensor):  # its value is known here, and still the program computes it
        return tracer.results(tracer.step(func, args, kwargs), out)
    if isinstance(out, _SYMBOLIC) and func is aten._local_scalar_dense.default:
        value = tracer.value_of(tracer.adopt(args[0]))
        for source in sources(unwrap(out)):
            tracer.origins.setdefault(source, Origin(value, None))
    return out


def _lift(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if isinstance(tensor, FakeTensor):
        return tensor
    fake = tracer.computed(record.overload, args, kwargs)
    value = Value(None, None, fake.fake_type, fake)
    value.is_literal = True
    track(fake, value)  # a literal is the program's own: it may be written to
    tracer.constants.append((tensor, value))
    return fake


def _data_dependent(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    out = _functional(tracer, record, args, kwargs)
    for fake in _flat([out]):
        if isinstance(fake, FakeTensor):
            for d, size in enumerate(fake.fake_type.size):
                if isinstance(size, Expr):
                    for symbol in size.symbols():
                        if symbol.unbacked and size is symbol.expr:
                            tracer.origins.setdefault(symbol, Origin(fake.tracked.value, d))
    return out


_TAKING_APART = (_composite, _parts, _portable, _view_or_copy)
_LAYOUT_DECIDES = frozenset(
    (
        aten.reshape.default, aten.reshape_as.default, aten.flatten.using_ints, aten.ravel.default,
    )
)  # fmt: skip
_FILLS = frozenset((aten.fill_.Tensor, aten.masked_fill_.Tensor))
_UNDERIVED = frozenset(map(id, (aten.normal_functional.default, aten.bernoulli.p)))
"""They overwrite all of their argument, so that its gradient ends here, and have no derivative. By
identity: torch hashes its overloads in Python."""
_FACTORIES = frozenset(
    getattr(packet, overload)
    for packet in (
        aten.zeros, aten.ones, aten.full, aten.empty, aten.empty_strided, aten.arange, aten.eye,
        aten.linspace, aten.logspace, aten.rand, aten.randn, aten.randint, aten.randperm,
        aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.rand_like,
        aten.randn_like, aten.randint_like, aten.new_zeros, aten.new_ones, aten.new_full,
        aten.new_empty, aten.new_empty_strided, aten.tril_indices, aten.triu_indices,
        aten.scalar_tensor, aten.hann_window, aten.hamming_window, aten.bartlett_window,
    )
    for overload in packet.overloads()
    if not overload.endswith("out")
)  # fmt: skip
_PLANS: dict[int, tuple[Handler, Operator]] = {}


def _plan(func: Any) -> tuple[Handler, Any]:
    """How calls of this overload are recorded; chosen once."""
    if isinstance(func, HigherOrderOperator):
        if func._name != "auto_functionalized":
            control.refuse(func)
        return custom.again, func
    record = operator(func)
    if func in data.SPECIAL:
        return _special, record
    if func in _LAYOUT_DECIDES:
        return _view_or_copy, record
    if func is aten.native_batch_norm.default:
        return _batch_norm, record
    if func in composite.COMPOSITES:
        return _parts, record
    if func in fallback.PORTABLE:
        return _portable, record
    if fallback.is_composite(func) and not fallback.user_kernel(func):
        return _composite, record
    if func in _FILLS:
        return _fill, record
    if record.kind in ("inplace", "out", "mixed"):
        return (_inplace if _is_plain_write(record) else _write), record
    if func is aten.detach.default:
        return _detach, record
    if record.kind == "view":
        return _view, record
    if record.data_dependent:
        return _data_dependent, record
    is_typed = FakeTensorMode.plan(func)[0] is functional
    return (_typed if is_typed else _functional), record


def _flat(values: Any) -> list[Any]:
    out: list[Any] = []
    for v in values:
        out.extend(_flat(v)) if isinstance(v, (list, tuple)) else out.append(v)
    return out
