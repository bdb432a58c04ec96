"""`torch.autograd.Function` in a capture: what its forward computes is recorded as any other step,
and its backward as a graph of its own, which the program's gradient goes through.

The backward is run once, on gradients that are inputs of that graph. Must not build nodes.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from types import BuiltinMethodType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.autograd.function import FunctionCtx, FunctionMeta
from torch.nn.modules import module as _modules
from torch.utils.hooks import RemovableHandle

from lostwax import torch_version
from lostwax.capture.patches.swap import CodeSwap
from lostwax.capture.threads import is_capturing, running
from lostwax.capture.trace.gradient_reach import can_have_gradient
from lostwax.capture.trace.gradient_steps import attach_gradient, wants_gradient
from lostwax.capture.trace.refusals import refuse_gradients_of_class
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError, LostwaxError
from lostwax.fake.convert import AutogradResult
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import ByIdentity
from lostwax.ir.graph.numbers import number_sources
from lostwax.ir.run.conditions.answers import GRADIENTS
from lostwax.ir.trace.log import InnerGraph, Region, Value, values_of
from lostwax.ir.trace.views import View, make_root, track_view
from lostwax.location import user_location, warn
from lostwax.ops.registry import aten, has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.numbers.real import Real
from lostwax.undo.undo import Undo

_Function: Any = torch.autograd.Function
_CHECKPOINT: Any = torch.utils.checkpoint.CheckpointFunction


def begin(tracer: Tracer, undo: Undo) -> None:
    """From here on functions are recorded with their backward, and hooks on gradients, too."""
    tracer.observer.hook = partial(_register_hook, tracer)
    if torch_version.APPLY_IS_C:
        undo.add(partial(_put_back, FunctionMeta.__dict__.get("__getattribute__")))
        FunctionMeta.__getattribute__ = _look_up  # type: ignore[method-assign]


def _apply(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Function.apply`: functions with a backward of their own are recorded with it."""
    tracer, plain = running[-1], partial(original, cls)
    if cls is _CHECKPOINT:  # its backward is that of what it calls
        return args[0](*args[2:], **kwargs)
    if cls.__module__ == _CHECKPOINT.__module__:  # what it keeps is not computed again
        tracer.gradients.forget(args[0])
        with torch.no_grad():
            return plain(*args, **kwargs)
    if not torch.is_grad_enabled() or tracer.gradients.stay_inside or not tracer.is_recording:
        return plain(*args, **kwargs)
    if cls.setup_context is not _Function.setup_context:
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if not _can_attach(tracer, cls, args):
        return _record_through(tracer, cls, plain, args, kwargs)
    if tracer.tracked:
        return original(_make_attaching(tracer, cls), *args, **kwargs)
    return _run_and_attach(tracer, cls, _Context(args), args, kwargs)


_PYTHON_APPLY = [] if torch_version.APPLY_IS_C else [_Function.__dict__["apply"].__func__]
CODE_SWAPS = [CodeSwap(function, _apply) for function in _PYTHON_APPLY]


# -------------------------------------------------------------------------------- `apply` that is C


def _put_back(before: Any) -> None:
    if before is not None:
        FunctionMeta.__getattribute__ = before  # type: ignore[method-assign]
    elif "__getattribute__" in FunctionMeta.__dict__:
        del FunctionMeta.__getattribute__


def _look_up(cls: Any, name: str) -> Any:
    """An attribute of a function's class. `apply` has no code that could be exchanged; code
    that asks for it gets a stand-in. Code that already holds it calls C++, which asks the class for
    what it needs: `_backward_cls` (only C++ does), `forward`, and then `setup_context`."""
    found = type.__getattribute__(cls, name)
    if name not in _ASKED or not is_capturing():
        return found
    if name == "apply":
        return partial(_call_apply, cls) if isinstance(found, BuiltinMethodType) else found
    wanted, stand_in = _next.pop(name, (None, None))
    _next.clear()
    if name == "_backward_cls" and cls is not AutogradResult:
        if _plain and _plain[-1] is cls:
            _plain.pop()
        elif (forward := _stand_in(running[-1], cls)) is not None:
            _next["forward"] = cls, forward
    return stand_in if wanted is cls else found


def _call_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if is_capturing():
        return _apply(_apply_plainly, cls, *args, **kwargs)
    return cls.apply(*args, **kwargs)  # it was kept, and the capture is over


def _apply_plainly(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`apply` itself."""
    count = len(_plain)
    _plain.append(cls)
    try:
        return type.__getattribute__(cls, "apply")(*args, **kwargs)
    finally:
        del _plain[count:]


_ASKED = frozenset({"apply", "_backward_cls", "forward", "setup_context"})
_plain: list[Any] = []
"""The classes whose `apply` runs as it is, until it asks."""
_next: dict[str, tuple[Any, Callable[..., Any]]] = {}
"""What `apply` is given for the attribute that it asks for next, and of which class."""


def _stand_in(tracer: Tracer, cls: Any) -> Callable[..., Any] | None:
    """What a held `apply` is to call as the forward, so that it does what `_apply` does. Autograd
    gives what it returns a history, where there is one."""
    if not torch.is_grad_enabled() or tracer.gradients.stay_inside:
        return None
    whole = cls.setup_context is _Function.setup_context

    def forward(*given: Any, **kwargs: Any) -> Any:
        args = given[1:] if whole else given
        follow: Any = cls
        if not _can_attach(tracer, cls, args):
            return _record_through(tracer, cls, cls.forward, given, kwargs)
        if tracer.tracked:
            follow = _make_attaching(tracer, cls)
            out = follow.forward(*given, **kwargs)
        else:
            context = _Context(args)
            out = _run_and_attach(tracer, cls, context, args, kwargs)
            follow = _Marking(context)
            if whole:
                follow.setup_context(given[0])
        if not whole:
            _next["setup_context"] = cls, follow.setup_context  # nothing is asked in between
        return out

    return forward


class _Marking:
    """Tells autograd what a forward said to a context of ours."""

    def __init__(self, context: _Context) -> None:
        self.context = context

    def setup_context(self, ctx: Any, *_: Any) -> None:
        ctx.mark_dirty(*self.context.dirty_tensors)
        ctx.mark_non_differentiable(*self.context.non_differentiable)


def _can_attach(tracer: Tracer, cls: Any, args: tuple[Any, ...]) -> bool:
    return (
        tracer.gradients.differentiable
        and not torch._C._are_functorch_transforms_active()
        and _backward_of(cls) is not None
        and any(map(can_have_gradient, args))
    )


def _backward_of(cls: Any) -> Callable[..., Any] | None:
    """The user's backward, by either of its names; None if there is none."""
    if cls.vjp is not _Function.vjp:
        return cls.vjp  # type: ignore[no-any-return]
    return None if cls.backward is _Function.backward else cls.backward


def _record_through(
    tracer: Tracer, cls: Any, plain: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """What the forward computes counts as computed where it is called: else its results would seem
    to come from a `no_grad` region."""
    if not tracer.gradients.differentiable:  # else what has a gradient has a backward of its own
        fakes = [a for a in args if isinstance(a, FakeTensor) and a.fake_mode is tracer]
        wants_gradient(tracer, *map(tracer.value_of, fakes))
    elif _backward_of(cls) is None and any(map(can_have_gradient, args)):
        warn(
            f"{cls.__name__} has no backward: the exported program differentiates what its forward "
            f"computes, where eager raises an error.\n  at {user_location()}\n"
            "  instead: give it a backward, or call it under torch.no_grad()",
        )
    with tracer.assume_grad(True):
        return plain(*args, **kwargs)


def _register_hook(tracer: Tracer, fake: FakeTensor, hook: Callable[[Any], Any]) -> Any:
    """`x.register_hook(hook)`: from here on `x` is the result of a function that does nothing, and
    has the hook as its backward."""

    class Hook(_Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            changed = hook(grad)
            return grad if changed is None else changed

    if tracer.gradients.differentiable and torch.is_grad_enabled():
        value = tracer.value_of(fake)
        if fake.tracked.base is not None or fake.tracked.root.kind or _is_read(tracer, value):
            raise CaptureError.here(
                "a hook is registered on a tensor that is an input, a view, or was used before",
                why="the gradients of those uses would not pass through the hook",
                instead="call x.register_hook(...) where x is computed, before it is used",
            )
        new = _run_and_attach(tracer, Hook, _Context((fake,)), (fake,), {})
        fake.tracked.root.write(tracer.value_of(new))
    elif torch.is_grad_enabled():
        wants_gradient(tracer, tracer.value_of(fake))
    if tracer.tracked:
        return torch.Tensor.register_hook(fake, hook)  # type: ignore[no-untyped-call]
    return RemovableHandle(OrderedDict())


def _is_read(tracer: Tracer, value: Value) -> bool:
    """Do steps that gradients flow through read it already?"""
    return any(
        value in values_of([s.args, *s.kwargs.values()])
        for s in tracer.region.steps
        if not has_trait(s.target, Trait.DETACHES)
    )


# ------------------------------------------------------------------------------------- the forward


class _Context(FunctionCtx):
    """What `forward` leaves for `backward`."""

    to_save: tuple[Any, ...] = ()
    saved_tensors: tuple[Any, ...] = ()
    dirty_tensors: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    output_grad_dtypes: tuple[Any, ...] | None = None

    was_asked = False
    """Has the function looked at `needs_input_grad`?"""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needed = tuple(map(can_have_gradient, args))
        self._input_grad_buffers = (None,) * len(args)  # nothing is there to be added to

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        self.was_asked = True
        return self.needed


def _run_forward(cls: Any, context: _Context, args: Any, kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        if cls.setup_context is _Function.setup_context:
            return cls.forward(context, *args, **kwargs)
        out = cls.forward(*args, **kwargs)
        cls.setup_context(context, args, out)
        return out


def _run_and_attach(
    tracer: Tracer, cls: Any, context: _Context, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    before = _values(tracer, args)
    out = _separate_outputs(tracer, args, before, _run_forward(cls, context, args, kwargs))
    _attach(tracer, cls, context, before, out)
    return out


def _values(tracer: Tracer, args: tuple[Any, ...]) -> list[Value | None]:
    """The values of the arguments that may have a gradient, before the forward writes to them."""
    return [tracer.value_of(tracer.adopt(a)) if can_have_gradient(a) else None for a in args]


def _separate_outputs(tracer: Tracer, args: Any, before: list[Value | None], out: Any) -> Any:
    """The outputs; in place of an argument that was not written to, a view of it, as in eager."""
    unwritten = {
        id(a)
        for a, value in zip(args, before, strict=False)
        if value is not None and tracer.value_of(tracer.adopt(a)) is value
    }
    if isinstance(out, (tuple, list)):
        return tuple([o.view_as(o) if id(o) in unwritten else o for o in out])
    return out.view_as(out) if id(out) in unwritten else out


def _attach(
    tracer: Tracer, cls: Any, context: _Context, before: list[Value | None], out: Any
) -> None:
    """From here on the outputs have the backward as their gradient."""
    if context.output_grad_dtypes is not None:
        raise CaptureError.here(
            f"{cls.__name__}: ctx.set_output_grad_dtype cannot be captured",
            why="a program has no place for the dtype of a gradient",
            instead="convert the gradient at the beginning of the backward",
        )
    outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    stopped = {id(t) for t in context.non_differentiable}
    followed = [i for i, o in enumerate(outputs) if can_have_gradient(o) and id(o) not in stopped]
    if not followed:
        return
    attached = _attach_outputs(tracer, cls, context, before, outputs, followed)
    dirty = {id(t) for t in context.dirty_tensors}
    for i, new in zip(followed, attached, strict=True):
        if id(outputs[i]) in dirty:
            with tracer.assume_grad(True):
                tracer.write(outputs[i], new)
        else:
            _replace_output(outputs[i], new)


def _attach_outputs(
    tracer: Tracer, cls: Any, context: _Context, before: list[Value | None], outputs: list[Any],
    followed: list[int],
) -> list[FakeTensor]:  # fmt: skip
    """A program has one backward, that for all arguments; which of them need gradients is known
    only when it is called. So what one of them gets must not depend on the others' needs."""
    held = dict(context.__dict__)
    known: dict[Any, int] = {"": 0}  # no number is 0
    whole = _Backward(tracer, cls, context, before)
    whole.record(outputs, followed)
    places = [i for i, needs in enumerate(context.needed) if needs]
    if context.was_asked and len(places) > 1:
        for i in places:
            alone = copy(context)
            alone.__dict__.clear()
            alone.__dict__.update(held, needed=tuple(i == k for k in range(len(context.needed))))
            one = _Backward(tracer, cls, alone, before)
            try:
                one.record(outputs, followed)
            except CaptureError as error:
                if not isinstance(error.__cause__, LostwaxError):
                    continue  # as eager does, where only this one needs a gradient
                raise
            if one.meaning(i, known) != whole.meaning(i, known):
                raise whole.explain_refusal(
                    f"what argument {i} gets hangs on whether others need a gradient "
                    "(ctx.needs_input_grad), which is known only when the program is called"
                )
    return whole.attach(outputs, followed)


def _replace_output(output: FakeTensor, new: FakeTensor) -> None:
    """The output is `new` from now on. A view of an argument shares memory, and has a gradient of
    its own: like a detached tensor to which something was written."""
    if output.tracked.base is None:
        output.tracked = new.tracked
    else:
        view = View(aten.detach.default, (), {}, None, history=new.tracked.value)
        track_view(output, new.tracked.value, output.tracked, view)


def _make_attaching(tracer: Tracer, cls: Any) -> Any:
    """The function as autograd is to see it in a program that differentiates inside: autograd calls
    its backward, and what its forward returns has that backward in the program, too."""
    before: list[Value | None] = []

    def attach(ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        context = _Context(args)
        context.__dict__.update(ctx.__dict__)
        for name in ("to_save", "dirty_tensors", "non_differentiable"):
            setattr(context, name, getattr(ctx, name) or ())
        context.output_grad_dtypes = getattr(ctx, "output_grad_dtypes", None)
        _attach(tracer, cls, context, before, out)

    class Whole(cls):
        @staticmethod
        def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            before.extend(_values(tracer, args))
            out = _separate_outputs(tracer, args, before, cls.forward(ctx, *args, **kwargs))
            attach(ctx, args, out)
            return out

    class Parts(cls):
        @staticmethod
        def forward(*args: Any, **kwargs: Any) -> Any:
            before.extend(_values(tracer, args))
            return _separate_outputs(tracer, args, before, cls.forward(*args, **kwargs))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            cls.setup_context(ctx, inputs, output)
            attach(ctx, inputs, output)

    return Whole if cls.setup_context is _Function.setup_context else Parts


# ------------------------------------------------------------------------------------- the backward


class _Backward:
    """One run of a backward into a graph of its own."""

    def __init__(
        self, tracer: Tracer, cls: Any, context: _Context, args: list[Value | None]
    ) -> None:
        self.tracer = tracer
        self.cls = cls
        self.context = context
        self.args = args
        """The values of the arguments that may have a gradient."""
        self.where = user_location()
        self.inside = ByIdentity[FakeTensor, FakeTensor]()
        self.saved: list[Value] = []
        """What the backward keeps of the forward, and what that is inside."""
        self.inputs: list[Value] = []
        self.region = Region()
        self.given: list[Value] = []
        """The outputs' gradients."""
        self.results: dict[int, Value] = {}
        """The arguments' gradients, by their places."""

    def record(self, outputs: list[Any], followed: list[int]) -> None:
        tracer = self.tracer
        self._keep()
        outer = tracer.region
        tracer.region = tracer.regions.inner = self.region
        try:
            grads, self.given = self._new_grads(outputs, followed)
            found = self._run(grads)
            self.results = {i: tracer.value_of(tracer.adopt(g)) for i, g in found.items()}
        finally:
            tracer.region, tracer.regions.inner = outer, None

    def attach(self, outputs: list[Any], followed: list[int]) -> list[FakeTensor]:
        """The outputs, with this backward as their gradient."""
        tracer, results = self.tracer, list(self.results.values())
        own = [*self.given, *self.inputs]
        free = _free(self.region, results, set(own), tracer)
        numbers = {each: _hold(tracer, each) for each in free if each.type is None}
        free = [numbers.get(each, each) for each in free]
        body = InnerGraph(self.cls.__name__ + "_backward", self.region, [*own, *free], results)
        if numbers:
            body.origins = {
                source: origin._replace(value=numbers.get(origin.value, origin.value))
                for source, origin in tracer.origins.items()
            }
        values = [outputs[i] for i in followed]
        operands = (body, values, [self.args[i] for i in self.results], [*self.saved, *free])
        return attach_gradient(tracer, operands, [tracer.adopt(v).fake_type for v in values])

    def meaning(self, place: int, known: dict[Any, int]) -> int | None:
        """How the gradient of an argument is computed: the same number for runs that do it alike.
        Masks are left out, which tell operators which results are needed."""

        def number(key: Any) -> int:
            return known.setdefault(key, len(known))

        def name_values(held: Any) -> Any:
            leaves, structure = pytree.tree_flatten(held)
            return repr(structure), *[
                numbers.get(v) or number(v) if isinstance(v, Value) else repr(v) for v in leaves
            ]

        numbers = {g: number(("gradient", i)) for i, g in enumerate(self.given)}
        numbers |= {v: number(("saved", s)) for v, s in zip(self.inputs, self.saved, strict=True)}
        for step in self.region.steps:
            args = [a for i, a in enumerate(step.args) if i not in _find_masks(step.target)]
            key = (step.target, name_values(args), name_values(step.kwargs))
            numbers |= {v: number((key, v.index)) for v in values_of(step.result)}
        result = self.results.get(place)
        return None if result is None else numbers.get(result) or number(result)

    def _keep(self) -> None:
        """Let the context hold tensors of the inner graph."""
        context = self.context
        context.saved_tensors = tuple(map(self._make_inner, context.to_save))
        for name, held in list(context.__dict__.items()):
            if name not in ("to_save", "saved_tensors", "dirty_tensors", "non_differentiable"):
                setattr(context, name, pytree.tree_map(self._make_inner, held))

    def _make_inner(self, held: Any) -> Any:
        if not isinstance(held, torch.Tensor):
            return held
        fake = self.tracer.adopt(held)
        if fake not in self.inside:
            self.saved.append(self.tracer.value_of(fake))
            inner = self.inside[fake] = new_fake(self.tracer, fake.fake_type)
            self.inputs.append(make_root(inner, None, None).value)
            self.inside[inner] = inner
        return self.inside[fake]

    def _new_grads(self, outputs: list[Any], followed: list[int]) -> tuple[list[Any], list[Value]]:
        """A gradient for each output, and those that the graph is given."""
        grads: list[Any] = []
        given: list[Value] = []
        for i, output in enumerate(outputs):
            if i in followed:
                refuse_gradients_of_class(self.cls.__name__, [output])
                grads.append(new_fake(self.tracer, self.tracer.adopt(output).fake_type))
                given.append(self.tracer.add_input(grads[-1]).value)
            elif isinstance(output, torch.Tensor):
                grads.append(torch.zeros_like(output))
            else:
                grads.append(None)
        return grads, given

    def _run(self, grads: list[Any]) -> dict[int, Any]:
        """The arguments' gradients."""
        backward = _backward_of(self.cls)
        assert backward is not None
        try:
            with torch.no_grad():
                found = backward(self.context, *grads)
        except (LostwaxError, RuntimeError, TypeError, NotImplementedError) as error:
            raise self.explain_refusal(str(error)) from error
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(found) < len(self.args) or any(g is not None for g in found[len(self.args) :]):
            count = f"{len(found)} gradients for {len(self.args)} arguments"
            raise self.explain_refusal(f"it returns {count}")
        pairs = enumerate(zip(self.args, found, strict=False))
        return {i: g for i, (a, g) in pairs if g is not None and a is not None}

    def explain_refusal(self, why: str) -> CaptureError:
        return CaptureError(
            f"{self.cls.__name__}.backward cannot be captured.\n  at {self.where}\n  why: {why}\n"
            "  instead: if no gradients are needed, export under torch.no_grad(); else make it a "
            "torch.library.custom_op with register_autograd"
        )


def _find_masks(target: Any) -> list[int]:
    """The arguments that say which results an operator is to compute."""
    schema = getattr(target, "_schema", None)
    names = [] if schema is None else [a.name for a in schema.arguments]
    return [i for i, name in enumerate(names) if name in ("output_mask", "grad_input_mask")]


def _hold(tracer: Tracer, number: Value) -> Value:
    """A tensor that has this number as its element: autograd saves tensors alone."""
    dtype = torch.int64 if isinstance(number.fake, torch.SymInt) else torch.float64
    return tracer.value_of(tracer.adopt(torch.scalar_tensor(number.fake, dtype=dtype)))


def _free(region: Region, results: list[Value], own: set[Value], tracer: Tracer) -> list[Value]:
    """The values of the program outside that a graph reads."""
    made = set(region.steps)
    found: dict[Value, None] = {}

    def look(value: Any) -> None:
        if isinstance(value, Value):
            if value not in own and (value.step is None or value.step not in made):
                found[value] = None
        elif isinstance(value, (list, tuple)):
            for each in value:
                look(each)
        elif isinstance(value, (Expr, BoolExpr, Real)):
            for source in number_sources(value):
                if source in tracer.origins:
                    look(tracer.origins[source].value)

    for step in region.steps:
        look([step.args, *step.kwargs.values()])
    look(results)
    return list(found)


def check_hooks(tracer: Tracer, modules: list[nn.Module]) -> None:
    """Refuse hooks on the gradients of modules, which would be lost."""
    for what in _backward_hooks(modules) if tracer.gradients.enabled else ():
        if tracer.gradients.differentiable:
            raise CaptureError(
                f"{what}, which cannot be captured.\n"
                "  why: a program has no modules whose gradients they could see or change\n"
                "  instead: remove them, or, if no gradients are needed, export under "
                "torch.no_grad()"
            )
        if tracer.gradients.users:
            tracer.observer.questions.note_joint(list(tracer.gradients.users), what, GRADIENTS)


def _backward_hooks(modules: list[nn.Module]) -> Iterator[str]:
    if _modules._global_backward_hooks or _modules._global_backward_pre_hooks:
        yield "torch.nn has backward hooks for all modules"
    for module in modules:
        if module._backward_hooks or module._backward_pre_hooks:
            yield f"the {type(module).__name__} has backward hooks"
