"""Which way an operator is recorded: chosen once for each overload.

Composite operators are taken apart in their portable form, or kept whole. Must not record steps
itself, but for those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import is_grad_enabled
from torch._ops import HigherOrderOperator

from lostwax.cache import Cache
from lostwax.capture.trace import custom_ops, refusals, single_step_composites
from lostwax.capture.trace.record import (
    SPECIAL_VIEWS,
    computed,
    detach,
    flat,
    note_sizes,
    plain_view,
    special,
    typed,
    undeclared_view,
    view,
    whole_view,
)
from lostwax.capture.trace.record_writes import (
    DRAWN,
    drawn,
    drawn_between,
    fill,
    has_operands,
    inplace,
    is_plain_write,
    reading,
    write,
)
from lostwax.errors import CaptureError
from lostwax.fake import data, fallback
from lostwax.fake.composite import composites, recurrent
from lostwax.fake.mode import UNDECLARED_VIEWS, FakeTensorMode, functional
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.rules.graph import SILENT_WRITERS
from lostwax.ir.run.questions import answer
from lostwax.location import user_location
from lostwax.ops.registry import Operator, aten, operator
from lostwax.ops.shapes import fail
from lostwax.sym import Expr

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer

Handler = Callable[["Tracer", Operator, Any, dict[str, Any]], Any]


def _unrecorded(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`record_function`: it measures the capture, and is no part of the program."""
    return func(*args, **kwargs)


def _launched(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """A Triton kernel. In the fake kernel of an operator (`torch.library.triton_op`), which stays
    one, it is asked for the types of tensors alone, and changes none."""
    if not tracer.contexts:
        refusals.refuse_triton()


def _composite(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by C++, or by the user: its parts are recorded."""
    if record.overload.namespace != "aten":
        return fallback.evaluate(tracer, record, args, kwargs)
    together = tracer.provenance.as_one
    return together(record.overload, fallback.evaluate, tracer, record, args, kwargs)


def _parts(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart here: its parts are recorded, all in its place."""
    return tracer.provenance.as_one(record.overload, tracer.computed, record.overload, args, kwargs)


def _portable(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Taken apart by torch's Python, which chooses no operator that one device has."""
    if tracer.casts:
        args, is_cast = recurrent.cast(tracer, record.overload, args)
        if is_cast:
            around, tracer.casts = tracer.casts, ()
            try:
                return _portable(tracer, record, args, kwargs)
            finally:
                tracer.casts = around
    if _is_endless(tracer, record, args):
        if tracer.casts:
            raise CaptureError(
                f"{record.overload} over a length that varies, under autocast.\n"
                f"  at {user_location()}\n"
                "  why: it stays one operator, and autocast would cast parts of it\n"
                "  instead: fix the length; or cast the layer and its input, x.to(dtype), and call "
                "it inside of torch.autocast(device, enabled=False)"
            )
        if tracer.tracked and is_grad_enabled():
            raise CaptureError(
                f"{record.overload} over a length that varies has no derivative in a program.\n"
                f"  at {user_location()}\n"
                "  why: it stays one operator, since its steps would hold for one length alone\n"
                "  instead: fix the length, and let other sizes vary"
            )
        return computed(tracer, record, args, kwargs)
    layer = recurrent.LAYERS.get(record.overload)
    if layer is not None:
        return tracer.provenance.as_one(record.overload, layer, tracer, *args)
    if record.rule is None and args[6] and args[7] and args[5] > 1:
        raise CaptureError(
            f"{record.overload} of a packed sequence cannot be captured with dropout.\n"
            f"  at {user_location()}\n"
            "  instead: pass a padded sequence, or call eval() first"
        )
    if record.rule is None and tracer.adopt(args[1]).known_constant() is None:
        _refuse_packed(tracer, record, args, kwargs)
    with fallback.without_mkldnn():
        function = record.overload.decompose
        return tracer.provenance.as_one(record.overload, tracer.reentered, function, args, kwargs)


def _refuse_packed(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> NoReturn:
    raise CaptureError(
        f"{record.overload} works on packed sequences, which cannot be captured.\n"
        f"  at {user_location()}\n"
        "  why: the lengths, which are data, say how many steps are computed of each sequence\n"
        "  instead: give the padded sequences to the layer, and mask what comes after their end: "
        "torch.where(mask, out, 0)"
    )


def _refuse_dual(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> NoReturn:
    raise CaptureError(
        f"dual numbers (torch.autograd.forward_ad) cannot be captured.\n  at {user_location()}\n"
        "  why: a tensor carries its tangent unseen, and a program shows all that it computes\n"
        "  instead: torch.func.jvp(function, (x,), (tangent,)), which returns it"
    )


_DUAL = frozenset((aten._make_dual.default, aten._unpack_dual.default))
_PACKED = frozenset((aten._pack_padded_sequence.default, aten._pad_packed_sequence.default))


def _observed(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """An observer of quantization-aware training, whose first call gives its state a size."""
    if tracer.adopt(args[3]).fake_type.size == (0,):
        raise CaptureError(
            f"{record.overload} would give its running statistics their size: they have none yet.\n"
            f"  at {user_location()}\n"
            "  why: a program's state keeps its types, the next run counts on them\n"
            "  instead: call the module once before exporting, module(*args)"
        )
    return write(tracer, record, args, kwargs)


def _rrelu(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """torch's derivative of the functional form reads the noise as it was before it was drawn. The
    result is the argument times the noise, so that is what the program computes."""
    x, noise = args[:2]
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    if not given.get("training"):
        return write(tracer, record, args, kwargs)
    drawn_for = (tracer.evaluate(aten.detach.default, (x,), {}), *args[1:])
    write(tracer, operator(aten.rrelu_with_noise.default), drawn_for, kwargs)
    is_inplace = record.overload is aten.rrelu_with_noise_.default
    return tracer.call(aten.mul_.Tensor if is_inplace else aten.mul.Tensor, x, noise)


_RRELUS = frozenset((aten.rrelu_with_noise.default, aten.rrelu_with_noise_.default))


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
    taken_apart = _parts if record.overload in composites.COMPOSITES else _composite
    out = taken_apart(tracer, record, args, kwargs)
    source = tracer.adopt(args[0])
    if not isinstance(out, FakeTensor):
        return out
    name = f"{record.overload._schema.name.removeprefix('aten::')}()"
    if out.fake_storage is not source.fake_storage:
        tracer.observer.layout_decided(source, out, name)
    elif source.tracked is not None and source.tracked.root.kind:
        # Written to, it has the example's layout in the program, also where the input has another.
        root = source.tracked.root
        if root.version:
            tracer.reliance.note(root, f"a write before {name}")
        elif not root.type.is_dense or record.overload is aten.ravel.default:
            # Else a view fails where eager would copy; but `ravel` copies what has a view, too.
            tracer.reliance.note(root, f"a write after {name}", root)
    return out


def _read_in_order(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Its kernel takes what it is given for contiguous. torch copies what is not, before it calls
    it: whether it does, the layout at capture has decided."""
    name = record.overload._schema.name.removeprefix("aten::")
    for each in args:
        if isinstance(each, torch.Tensor):
            tracer.observer.layout_asked(tracer.adopt(each), name, exact=False)
    return typed(tracer, record, args, kwargs)


_READING_IN_ORDER = frozenset((aten._weight_norm_interface.default, aten._pdist_forward.default))


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


def _bags_without_gradient(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    """C++ takes it for tensors that it sees no gradient of; it has no backward."""
    fakes = [each for each in (*args, *kwargs.values()) if isinstance(each, FakeTensor)]
    if torch.is_grad_enabled() and tracer.wants_gradient(*map(tracer.value_of, fakes)):
        return tracer.evaluate(aten._embedding_bag.default, args, kwargs)
    return typed(tracer, record, args, kwargs)


def kept(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A composite operator that the user keeps whole: evaluated by its parts, recorded as one."""
    flag = SILENT_WRITERS.get(record.overload)
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    if flag is not None and given.get(flag) and given.get("running_mean") is not None:
        raise CaptureError(
            f"{record.overload} cannot be kept as one operator here: in training it writes to its "
            f"statistics, and a program shows all that it writes.\n  at {user_location()}\n"
            "  instead: export module.eval(), or leave it out of keep="
        )
    with tracer.silent():
        out = tracer.computed(record.overload, args, kwargs)
    arguments = flat([args, list(kwargs.values())])
    memories = {a.fake_storage for a in arguments if isinstance(a, FakeTensor)}
    outputs = [o for o in flat([out]) if isinstance(o, FakeTensor)]
    if not outputs:  # a number (`item`): what gives it is an operator of its own
        return plan(record.overload)[0](tracer, record, args, kwargs)
    if any(o.fake_storage in memories for o in outputs):
        return _kept_view(tracer, record, args, kwargs, out, outputs)
    step = tracer.step(record.overload, args, kwargs)
    tracer.results(step, out)
    note_sizes(tracer, out)
    return out


def _kept_view(
    tracer: Tracer,
    record: Operator,
    args: Any,
    kwargs: dict[str, Any],
    out: Any,
    outputs: list[FakeTensor],
) -> Any:
    """What shares memory with the first argument is kept as a view of it, if the operator says that
    it is one. Else (dropout that is switched off) there is nothing to keep."""
    is_view = record.kind == "view" and isinstance(args[0], torch.Tensor)
    base = tracer.adopt(args[0]) if is_view else None
    if base is None or any(o.fake_storage is not base.fake_storage for o in outputs):
        return plan(record.overload)[0](tracer, record, args, kwargs)
    return whole_view(tracer, record, args, kwargs, out)


TAKING_APART = (_composite, _parts, single_step_composites.parts, _portable, _view_or_copy)


def _of_conjugate(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`real`, `imag`, `resolve_conj`: torch conjugates when it is read, and fakes do not know."""
    func, taken_apart = record.overload, (args, kwargs)
    conjugated = _is_conjugate(tracer.adopt(args[0]))
    if conjugated and func is aten.resolve_conj.default:
        return tracer.call(aten.clone.default, args[0])
    if conjugated:  # of what is no conjugate any more
        taken_apart = ((tracer.call(_CONJ, args[0]),), kwargs)
    out = _composite(tracer, record, *taken_apart)
    return tracer.call(aten._neg_view.default, out) if conjugated and func is _IMAG else out


def _as_real(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of a conjugate there is nothing to view: eager refuses it, too."""
    if _is_conjugate(tracer.adopt(args[0])):
        fail(
            "view_as_real doesn't work on unresolved conjugated tensors. To resolve the conjugate "
            "tensor so you can view it as real, use self.resolve_conj()"
        )
    return view(tracer, record, args, kwargs)


def _is_conjugate(fake: FakeTensor) -> bool:
    way = fake.tracked.way()
    return bool(sum(each.view is not None and each.view.func is _CONJ for each in way) % 2)


_CONJ, _IMAG = aten._conj.default, aten.imag.default
_SEEING_CONJUGATES = frozenset((aten.real.default, _IMAG, aten.resolve_conj.default))


_LAYOUT_DECIDES = frozenset(
    (
        aten.reshape.default,
        aten.reshape_as.default,
        aten.flatten.using_ints,
        aten.ravel.default,
    )
)


# Where tensors are of a subclass, C++ returns the result and leaves `out=` as it is.
_UNWRITTEN = frozenset(
    getattr(packet, overload)
    for packet in (aten.kron, aten.linalg_matrix_rank)
    for overload in packet.overloads()
    if overload.endswith("out")
)
_RANDOM_FROM = getattr(aten.random_, "from")
_FILLS = frozenset((aten.fill_.Tensor, aten.masked_fill_.Tensor))


PLAN_CACHE = Cache[int, tuple[Handler, Operator]](__name__, "plans", 20_000)
PLANS = PLAN_CACHE.table


def _on_the_way_to_numpy(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> Any:
    """What is done to a constant before it is read as it is."""
    is_read = record.overload is not aten.to.dtype_layout and type(args[0]) is not FakeTensor
    if is_read or tracer.bare.is_one(args[0]):
        return tracer.bare.as_it_is(record.overload, args, kwargs)
    if (asked := _RESOLVED.get(record.overload)) is not None:
        # Of a tensor that has the bit it is a copy, of others it is the tensor itself.
        tracer.observer.asked_at(user_location(), asked, [args[0]])
        given = tracer.fake_tensor_converter.real_one(args[0])
        if given is not None and answer(asked, given):
            return tracer.call(aten.clone.default, args[0])
    if record.overload in _SEEING_CONJUGATES:
        return _of_conjugate(tracer, record, args, kwargs)
    taken_apart = _parts if record.overload in composites.COMPOSITES else _composite
    return taken_apart(tracer, record, args, kwargs)


_RESOLVED = {aten.resolve_conj.default: "is_conj()", aten.resolve_neg.default: "is_neg()"}
_BEFORE_NUMPY = frozenset(
    (aten.to.dtype_layout, aten.resolve_conj.default, aten.resolve_neg.default)
)


def plan(func: Any) -> tuple[Handler, Any]:
    """How calls of this overload are recorded; chosen once."""
    if isinstance(func, HigherOrderOperator):
        if func._name == "triton_kernel_wrapper_mutation":
            return _launched, func
        if func._name != "auto_functionalized":
            refusals.refuse(func)
        return custom_ops.again, func
    if func.namespace == "profiler":
        return _unrecorded, func
    record = operator(func)
    if func in _PACKED:
        return _refuse_packed, record
    if func in _DUAL:
        return _refuse_dual, record
    if func in _RRELUS:
        return _rrelu, record
    if func is aten._fused_moving_avg_obs_fq_helper.default:
        return _observed, record
    if func in data.SPECIAL:
        return special, record
    if func in _BEFORE_NUMPY:
        return _on_the_way_to_numpy, record
    if func in _LAYOUT_DECIDES:
        return _view_or_copy, record
    if func in _SEEING_CONJUGATES:
        return _of_conjugate, record
    if func is aten.view_as_real.default:
        return _as_real, record
    if func in _READING_IN_ORDER:
        return _read_in_order, record
    if func is aten.native_batch_norm.default:
        return _batch_norm, record
    if func is aten._embedding_bag_forward_only.default:
        return _bags_without_gradient, record
    if func in single_step_composites.ONE_FOR_ONE:
        return single_step_composites.parts, record
    if func in composites.COMPOSITES:
        return _parts, record
    if func in fallback.PORTABLE:
        return _portable, record
    if fallback.is_composite(func) and not fallback.user_kernel(func):
        return (write if func in _UNWRITTEN else _composite), record
    if func in _FILLS:
        return fill, record
    if func is _RANDOM_FROM:
        return drawn_between, record
    if func in DRAWN:
        return drawn, record
    if record.kind in ("inplace", "out", "mixed"):
        if is_plain_write(record):
            return (reading if has_operands(record) else inplace), record
        return write, record
    if func is aten.detach.default:
        return detach, record
    if record.kind == "view":
        known = view if func in SPECIAL_VIEWS else plain_view
        return (whole_view if record.rule is None else known), record
    if record.data_dependent:
        return computed, record
    if func in UNDECLARED_VIEWS:
        return undeclared_view, record
    is_typed = FakeTensorMode.plan(func)[0] is functional
    return (typed if is_typed else computed), record
