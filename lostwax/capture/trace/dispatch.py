"""Which way an operator is recorded: chosen once for each overload.

Composite operators are taken apart in their portable form, or kept whole. Must not record steps
itself, but for those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import is_grad_enabled
from torch._ops import HigherOrderOperator, OpOverload

from lostwax.cache import Cache
from lostwax.capture.aliasing import read_write_overlap, self_overlap
from lostwax.capture.trace import custom_ops, refusals, single_step_composites
from lostwax.capture.trace.gradient_steps import wants_gradient
from lostwax.capture.trace.record import (
    record_by_rule,
    record_call,
    record_data_read,
    record_detach,
    record_literal,
    record_made,
    record_plain_view,
    record_unsafe_view,
    record_view,
    record_whole_view,
)
from lostwax.capture.trace.record_writes import (
    change_metadata,
    copy_into,
    detach_itself,
    draw_between,
    draw_in_order,
    is_plain_write,
    is_reading_write,
    record_fill,
    record_write,
    write_and_read,
    write_in_place,
    write_one_by_one,
)
from lostwax.errors import CaptureError
from lostwax.fake import fallback
from lostwax.fake.mode import FakeTensorMode, functional
from lostwax.fake.tensor import FakeTensor
from lostwax.fake.write import check_fits, flatten
from lostwax.ir.run.conditions.answers import answer
from lostwax.ir.trace.log import Value, new_value
from lostwax.ir.trace.views import track_views
from lostwax.location import user_location
from lostwax.ops.registry import Operator, Ways, aten, choose, operator
from lostwax.ops.shapes import fail
from lostwax.ops.traits import Trait
from lostwax.sym import Expr
from lostwax.sym.undecided import FAILING, refuse_caught

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer

_linalg: Any = torch.linalg
Handler = Callable[["Tracer", Operator, Any, dict[str, Any]], Any]


def _call_unrecorded(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`record_function`: it measures the capture, and is no part of the program."""
    return func(*args, **kwargs)


def _record_higher_order(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator that takes functions."""
    handler = tracer.higher_order.get(func._name)
    if handler is None:
        refusals.refuse(func)
    return handler(tracer, func, args, kwargs)


def _launch_triton(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """A Triton kernel. In the fake kernel of an operator (`torch.library.triton_op`), which stays
    one, it is asked for the types of tensors alone, and changes none."""
    if not tracer.contexts:
        refusals.refuse_triton()


def _record_composite(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by C++, or by the user: its parts are recorded."""
    if record.overload.namespace != "aten":
        return fallback.evaluate(tracer, record, args, kwargs)
    together = tracer.provenance.as_one
    return together(record.overload, fallback.evaluate, tracer, record, args, kwargs)


def _record_parts(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart here: its parts are recorded, all in its place."""
    return tracer.provenance.as_one(record.overload, tracer.compute, record.overload, args, kwargs)


def _take_apart(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    take_apart = _record_composite if record.parts is None else _record_parts
    return take_apart(tracer, record, args, kwargs)


def _record_portable(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by torch's Python, which chooses no operator that one device has."""
    from lostwax.fake.composite import recurrent
    from lostwax.ops.nn.rnn import PACKED

    if tracer.casts:
        args, is_cast = recurrent.cast_arguments(tracer, record.overload, args)
        if is_cast:
            around, tracer.casts = tracer.casts, ()
            try:
                return _record_portable(tracer, record, args, kwargs)
            finally:
                tracer.casts = around
    if _has_varying_length(tracer, record, args):
        _check_scan(tracer, record)
        with tracer.pause_recording():
            tracer.compute(record.overload, args, kwargs)  # raises what eager raises
    layer = recurrent.LAYERS.get(record.overload)
    if layer is not None:
        return tracer.provenance.as_one(record.overload, layer, tracer, *args)
    if record.rule is None and args[6] and args[7] and args[5] > 1:
        raise CaptureError.here(
            f"{record.overload} of a packed sequence cannot be captured with dropout",
            instead="pass a padded sequence, or call eval() first",
        )
    packed = tracer.packed.get(tracer.value_of(tracer.adopt(args[1])))
    if record.rule is None and packed is not None:
        if isinstance(packed.steps, torch.SymInt):
            _check_scan(tracer, record)
        run, rest = recurrent.run_packed, (record.overload, packed, args[0], *args[2:])
        return tracer.provenance.as_one(record.overload, run, tracer, *rest)
    if record.rule is None and tracer.adopt(args[1]).known_constant() is None:
        refusals.refuse_operator(record.overload, PACKED)
    with fallback.without_mkldnn():
        function = record.overload.decompose
        return tracer.provenance.as_one(record.overload, tracer.reenter, function, args, kwargs)


def _refuse(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> NoReturn:
    assert record.refusal is not None
    refusals.refuse_operator(record.overload, record.refusal)


def _record_observer(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """An observer of quantization-aware training, whose first call gives its state a size."""
    if tracer.adopt(args[3]).fake_type.size == (0,):
        raise CaptureError.here(
            f"{record.overload} would give its running statistics their size: they have none yet",
            why="a program's state keeps its types, the next run counts on them",
            instead="call the module once before exporting, module(*args)",
        )
    return record_write(tracer, record, args, kwargs)


def _record_rrelu(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """torch's derivative of the functional form reads the noise as it was before it was drawn. The
    result is the argument times the noise, so that is what the program computes."""
    x, noise = args[:2]
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    if not given.get("training"):
        return record_write(tracer, record, args, kwargs)
    drawn_for = (tracer.evaluate(aten.detach.default, (x,), {}), *args[1:])
    record_write(tracer, operator(aten.rrelu_with_noise.default), drawn_for, kwargs)
    is_inplace = record.kind == "inplace"
    return tracer.call(aten.mul_.Tensor if is_inplace else aten.mul.Tensor, x, noise)


def _check_scan(tracer: Tracer, record: Operator) -> None:
    """Refuse a recurrent layer over a length that varies, which is a loop, where loops cannot be
    recorded."""
    if tracer.casts:
        raise CaptureError.here(
            f"{record.overload} over a length that varies, under autocast",
            why="it becomes a loop, and autocast would cast what a step hands to the next one",
            instead="fix the length; or cast the layer and its input, x.to(dtype), and call "
            "it inside of torch.autocast(device, enabled=False)",
        )
    if tracer.tracked and is_grad_enabled():
        raise CaptureError.here(
            f"{record.overload} over a length that varies has no derivative in a program",
            why="it becomes a loop, since its steps would hold for one length alone",
            instead="fix the length, and let other sizes vary",
        )


def _has_varying_length(tracer: Tracer, record: Operator, args: Any) -> bool:
    """A recurrent layer over a length that varies: step by step it would hold for the example's
    length alone, so it becomes a `scan`."""
    if record.rule is None:  # packed sequences: their steps are data
        return False
    size, batch_first = tracer.adopt(args[0]).fake_type.size, args[-1]
    return isinstance(size[1 if batch_first else 0], Expr)


def _view_or_copy(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The layout of the argument decides whether its result shares memory with it. If it does, the
    program takes a view, and fails where it cannot."""
    out = _take_apart(tracer, record, args, kwargs)
    source = tracer.adopt(args[0])
    if not isinstance(out, FakeTensor):
        return out
    name = f"{record.overload._schema.name.removeprefix('aten::')}()"
    if out.fake_storage is not source.fake_storage:
        tracer.observer.note_layout_choice(source, out, name)
    elif source.tracked is not None and source.tracked.root.kind:
        # Written to, it has the example's layout in the program, also where the input has another.
        root = source.tracked.root
        if root.version:
            tracer.layout_assumptions.note(root, f"a write before {name}")
        elif not root.type.is_dense or Trait.COPIES_GAPS in record.traits:
            # Else a view fails where eager would copy; but these copy what has a view, too.
            tracer.layout_assumptions.note(root, f"a write after {name}", root)
    return out


def _record_in_order(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Its kernel takes what it is given for contiguous, and torch copies what is not, before it
    calls it: the layout at capture decides whether there is a copy."""
    name = record.overload._schema.name.removeprefix("aten::")
    for each in args:
        if isinstance(each, torch.Tensor):
            tracer.observer.note_layout(tracer.adopt(each), name, exact=False)
    return record_by_rule(tracer, record, args, kwargs)


def _record_batch_norm(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Its schema hides that it writes to statistics: it is recorded by those that declare it."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if not training:
        frozen = (x, weight, bias, mean, var, momentum, eps)
        return tracer.evaluate(aten._native_batch_norm_legit_no_training.default, frozen, {})
    if mean is None or var is None:
        alone = (x, weight, bias, True, momentum, eps)
        return tracer.evaluate(aten._native_batch_norm_legit.no_stats, alone, {})
    return tracer.evaluate(aten._native_batch_norm_legit.default, tuple(args), {})


def _record_embedding_bag(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    """C++ calls it for tensors that need no gradient; it has no backward."""
    fakes = [each for each in (*args, *kwargs.values()) if isinstance(each, FakeTensor)]
    if torch.is_grad_enabled() and wants_gradient(tracer, *map(tracer.value_of, fakes)):
        return tracer.evaluate(aten._embedding_bag.default, args, kwargs)
    return record_by_rule(tracer, record, args, kwargs)


def _record_nondifferentiable(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    """As `record_by_rule`, but no gradient flows through the step."""
    with tracer.assume_grad(False):
        return record_by_rule(tracer, record, args, kwargs)


def _record_wait(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """It returns its argument: what is read of that from here on has arrived. An input keeps its
    value, whoever gave it knows what it is."""
    target = tracer.adopt(args[0])
    step = tracer.add_step(record.overload, (target,), {})
    step.result = value = new_value(step, None, target.fake_type, target)
    if target.tracked.root.kind == "":
        target.tracked.value = value
    return target


def _record_real(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """torch conjugates when a tensor is read, which fakes do not know: so `real` is taken of the
    tensor that the conjugate was made of."""
    if _is_conjugate(tracer.adopt(args[0])):
        args = (tracer.call(aten._conj.default, args[0]),)
    return _record_composite(tracer, record, args, kwargs)


def _record_imag(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`imag`: as `real`, with the other sign for a conjugate."""
    out = _record_real(tracer, record, args, kwargs)
    is_negative = _is_conjugate(tracer.adopt(args[0]))
    return tracer.call(aten._neg_view.default, out) if is_negative else out


def _record_as_real(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of a conjugate there is nothing to view: eager refuses it, too."""
    if _is_conjugate(tracer.adopt(args[0])):
        fail(
            "view_as_real doesn't work on unresolved conjugated tensors. To resolve the conjugate "
            "tensor so you can view it as real, use self.resolve_conj()"
        )
    base = tracer.adopt(args[0])
    out = tracer.compute(record.overload, args, kwargs)
    given = (tracer.resolve_conjugate(base),)
    step = tracer.add_step(record.overload, given, kwargs)
    return track_views(step, base.tracked, given, kwargs, out)


def _is_conjugate(fake: FakeTensor) -> bool:
    views = (each.view for each in fake.tracked.way() if each.view is not None)
    return sum(Trait.CONJUGATES in operator(view.func).traits for view in views) % 2 == 1


def _record_for_numpy(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """What C++ calls on a constant before its memory is shown to numpy."""
    if tracer.outside.is_unrecorded(args[0]):
        return tracer.outside.call_unrecorded(record.overload, args, kwargs)
    return _take_apart(tracer, record, args, kwargs)


def _record_whole_for_numpy(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    if tracer.outside.is_unrecorded(args[0]):
        return _record_for_numpy(tracer, record, args, kwargs)
    return single_step_composites.record_whole(_take_apart, tracer, record, args, kwargs)


def _record_resolve(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`resolve_conj`, `resolve_neg`: a copy of a tensor with the bit, else the tensor itself."""
    tensor = args[0]
    # before it is read as it is
    if type(tensor) is not FakeTensor or tracer.outside.is_unrecorded(tensor):
        return tracer.outside.call_unrecorded(record.overload, args, kwargs)
    of_conjugate = Trait.RESOLVES_CONJUGATE in record.traits
    asked = "is_conj()" if of_conjugate else "is_neg()"
    tracer.observer.note_question_at(user_location(), asked, [tensor])
    given = tracer.fake_tensor_converter.find_real(tensor)
    has_bit = given is not None and answer(asked, given)
    if has_bit or (of_conjugate and _is_conjugate(tracer.adopt(tensor))):
        return tracer.call(aten.clone.default, tensor)
    return _take_apart(tracer, record, args, kwargs)


PLAN_CACHE = Cache[int, tuple[Handler, Operator]](__name__, "plans", 20_000)
PLANS = PLAN_CACHE.table


def plan(func: Any) -> tuple[Handler, Any]:
    """How calls of this overload are recorded; chosen once."""
    if isinstance(func, HigherOrderOperator):
        if func._name == "triton_kernel_wrapper_mutation":
            return _launch_triton, func
        if func._name == "auto_functionalized":
            return custom_ops.record_again, func
        return _record_higher_order, func
    if func.namespace == "profiler":
        return _call_unrecorded, func
    record = operator(func)
    handler = choose(record, _WAYS)
    if record.may_fail and handler not in _TAKING_APART:
        handler = partial(_record_failing, handler, record.places)
    return handler, record


def _record_failing(
    handler: Handler,
    places: tuple[str, ...],
    tracer: Tracer,
    record: Operator,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """An operator that raises for some data."""
    if Trait.FAILS_TO_FACTOR in record.traits:
        refuse_caught(_linalg.LinAlgError)
    elif Trait.FAILS in record.traits or (
        _has_places_of_data(tracer, record, places, args, kwargs)
    ):
        refuse_caught(*FAILING)
    return handler(tracer, record, args, kwargs)


def _has_places_of_data(
    tracer: Tracer, record: Operator, names: tuple[str, ...], args: Any, kwargs: dict[str, Any]
) -> bool:
    """Are there places that data decide? Not those of a mask, nor what the program makes itself."""
    given = {**dict(zip(record.argument_names, args, strict=False)), **kwargs}
    named = [given.get(name) for name in names]
    tensors = [x for x in flatten(named) if isinstance(x, torch.Tensor)]
    places = [tracer.adopt(x) for x in tensors if x.dtype not in (torch.bool, torch.uint8)]
    return any(_is_of_data(tracer.value_of(each)) for each in places)


def _is_of_data(value: Value) -> bool:
    """Is it given, or computed from what is?"""
    seen, left = set[Value](), [value]
    while left:
        value = left.pop()
        if value.step is None and not value.is_literal:
            return True
        if value.step is not None and value not in seen:
            seen.add(value)
            read = flatten([*value.step.args, *value.step.kwargs.values()])
            left += [each for each in read if isinstance(each, Value)]
    return False


def plan_whole(planned: tuple[Handler, Any]) -> tuple[Handler, Any]:
    """How calls of this overload are recorded if it is kept whole, if it is a composite one."""
    take_apart, record = planned
    if take_apart is _record_for_numpy:
        return _record_whole_for_numpy, record
    if take_apart not in _TAKING_APART or not _gives_tensors(record.overload):
        return planned
    if Trait.RECURRENT in record.traits and record.rule is None:  # packed: its steps are data
        return planned
    if record.writes:
        is_plain = record.kind == "inplace" and torch.Tag.inplace_view not in record.overload.tags
        if not is_plain or record.twin is None or not fallback.is_composite(record.twin):
            return planned
        return partial(_write_whole, take_apart), record
    return partial(single_step_composites.record_whole, take_apart), record


_TAKING_APART = (
    _record_composite,
    _record_parts,
    single_step_composites.record_composite,
    _record_portable,
    _view_or_copy,
)


def is_composite_view(func: Any) -> bool:
    """Is it a view that consists of others?"""
    return plan(func)[0] in _TAKING_APART


def _gives_tensors(overload: OpOverload) -> bool:
    returns = overload._schema.returns
    return bool(returns) and all("Tensor" in str(each.type) for each in returns)


def _write_whole(
    take_apart: Handler, tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    """An in-place composite operator: recorded by its twin, whose result is then written."""
    target, twin = tracer.adopt(args[0]), record.twin
    assert twin is not None
    with tracer.pause_recording():
        new = tracer.compute(twin, args, kwargs)
    if new is target:  # it does nothing (dropout in evaluation)
        return tracer.evaluate(twin, args, kwargs)
    if new.fake_type.dtype is not target.fake_type.dtype or tracer.casts:
        return take_apart(tracer, record, args, kwargs)
    read = [*args[1:], *kwargs.values()]
    read_write_overlap.check(record.overload, target, read)
    self_overlap.check(record.overload, target.tracked)
    new = tracer.evaluate(twin, args, kwargs)
    check_fits(target.fake_type, new.fake_type)
    tracer.write(target, new)
    return target


def _is_taken_apart(record: Operator) -> bool:
    """Does C++ take it apart, or the user's Python?"""
    return fallback.is_composite(record.overload) and not fallback.user_kernel(record.overload)


def _is_typed(record: Operator) -> bool:
    return FakeTensorMode.plan(record.overload)[0] is functional


def _is_made_of_numbers(record: Operator) -> bool:
    is_known = Trait.FACTORY in record.traits and Trait.UNINITIALIZED not in record.traits
    return is_known and _is_typed(record)


_WAYS: Ways[Handler] = (
    (lambda record: record.refusal is not None, _refuse),
    # Composite or not, of these something is to be known before what their schemas and rules say.
    (Trait.LITERAL, record_literal),
    (lambda record: record.evaluation is not None, record_data_read),
    (Trait.BEFORE_NUMPY, _record_for_numpy),
    (Trait.RESOLVES_CONJUGATE, _record_resolve),
    (Trait.RESOLVES_NEGATIVE, _record_resolve),
    (Trait.VIEW_OR_COPY, _view_or_copy),
    (Trait.WAITS, _record_wait),
    (Trait.REAL_OF_CONJUGATE, _record_real),
    (Trait.NEGATIVE_OF_CONJUGATE, _record_imag),
    (Trait.DROPS_OUT, record_write),
    # Composite operators. Those that amount to one other are among those that we take apart, and
    # recurrent ones among those that C++ takes apart.
    (Trait.ONE_FOR_ONE, single_step_composites.record_composite),
    (lambda record: record.parts is not None, _record_parts),
    (Trait.RECURRENT, _record_portable),
    (_is_taken_apart, _record_composite),
    # Writes.
    (Trait.DRAWS_FACTORS, _record_rrelu),
    (Trait.DRAWS_BETWEEN, draw_between),
    (Trait.DRAWS_IN_ORDER, draw_in_order),
    (Trait.SIZES_STATE, _record_observer),
    (Trait.DECLARED_ELSEWHERE, _record_batch_norm),
    (Trait.FILLS, record_fill),
    (Trait.COPIES_INTO, copy_into),
    (Trait.ONE_BY_ONE, write_one_by_one),
    (lambda record: record.changes_metadata, change_metadata),
    (lambda record: record.writes and Trait.DETACHES in record.traits, detach_itself),
    (is_reading_write, write_and_read),
    (is_plain_write, write_in_place),
    (lambda record: record.writes, record_write),
    # Views.
    (Trait.DETACHES, record_detach),
    (Trait.NOT_OF_CONJUGATE, _record_as_real),
    (Trait.VIEWS_STORAGE, record_view),
    (lambda record: record.kind == "view" and record.rule is None, record_whole_view),
    (lambda record: record.kind == "view", record_plain_view),
    # What is computed.
    (lambda record: record.data_dependent, record_call),
    (Trait.SHARES_STORAGE, record_unsafe_view),
    (Trait.READS_IN_ORDER, _record_in_order),
    (Trait.UNDERIVED, _record_nondifferentiable),
    (Trait.FORWARD_ONLY, _record_embedding_bag),
    (_is_made_of_numbers, record_made),
    (_is_typed, record_by_rule),
    (lambda record: True, record_call),
)
"""The first whose condition holds is taken."""
