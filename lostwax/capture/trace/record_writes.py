"""How operators that write are recorded: by what they compute, and then as a new value of what they
write to.

Must not decide how a new value reaches the storage: `functionalize.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lostwax.capture.aliasing import functionalize, read_write_overlap, self_overlap
from lostwax.capture.trace import custom_ops, grad_marks
from lostwax.capture.trace.record import flat, is_gradless, view
from lostwax.capture.trace.refusals import refuse_generator
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.tensor import FakeTensor, set_type
from lostwax.fake.write import (
    check_cast,
    check_fits,
    factory_options,
    with_defaults,
    written_arguments,
)
from lostwax.ir.trace.strided_copy import cast_like, copy_like
from lostwax.location import user_location
from lostwax.ops.registry import Operator, aten, operator
from lostwax.ops.shapes import hint

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


def change_metadata(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.t_()`: from here on `x` is the view that `x.t()` would be."""
    target = tracer.adopt(args[0])
    functionalize.check_metadata(target.tracked)
    return _become_view(tracer, record, target, args, kwargs)


def detach_itself(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.detach_()`: from here on `x` is what `x.detach()` would be."""
    target = tracer.adopt(args[0])
    tracked = target.tracked
    if is_gradless(tracked.value):
        return target
    if tracked.root.kind and tracked.base is None and is_marked(target):
        grad_marks.refuse_detaching(tracked.root)
    return _become_view(tracer, record, target, args, kwargs)


def _become_view(
    tracer: Tracer, record: Operator, target: FakeTensor, args: Any, kwargs: dict[str, Any]
) -> Any:
    func = functionalize.metadata_view(record.overload)
    seen = view(tracer, operator(func), args, kwargs)
    if tracer.doubts:
        tracer.doubts.changed(target.tracked.root, len(tracer.region.steps))
    set_type(target, seen.fake_type)
    target.tracked = seen.tracked
    return target


def write_one_by_one(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> None:
    """`_foreach_zero_` as `zero_` of each."""
    name = record.overload._schema.name.removeprefix("aten::_foreach_")
    single = operator(getattr(aten, name).default)
    for each in args[0]:
        write(tracer, single, (each,), {})


def write(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    if record.twin is None:
        return custom_ops.write(tracer, record, args, kwargs)
    if record.kind == "out":
        return _out(tracer, record, args, kwargs)
    targets = flat(written_arguments(record, args, kwargs))
    targets = [tracer.adopt(t) for t in targets]
    for target in targets:
        self_overlap.check(record.overload, target.tracked)
    _check_reads(record, targets, args, kwargs)
    out = tracer.evaluate(record.twin, args, with_defaults(record, args, kwargs))
    results = flat([out])
    if record.kind == "inplace":
        for target, new in zip(targets, results, strict=False):
            check_fits(target.fake_type, new.fake_type)
            tracer.write(target, new)
        if len(record.results) == 1:
            return targets[0]
        return tuple(targets) if record.results else None
    own = len(record.results)
    for target, new in zip(targets, results[own:], strict=True):
        tracer.write(target, new)
    return results[0] if own == 1 else tuple(results[:own])


def _check_reads(record: Operator, targets: list[Any], args: Any, kwargs: dict[str, Any]) -> None:
    named = dict(zip(record.argument_names, args, strict=False)) | kwargs
    read = [value for name, value in named.items() if name not in record.mutates]
    if not record.overload._schema.name.startswith("aten::_foreach"):
        for target in targets:
            read_write_overlap.check(record.overload, target, read)
        return
    lists = [value for value in read if isinstance(value, list) and len(value) == len(targets)]
    for target, *others in zip(targets, *lists, strict=True):  # one after the other
        read_write_overlap.check(record.overload, target, others)


def inplace(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The most common write: `x.relu_()`."""
    target = tracer.adopt(args[0])
    self_overlap.check(record.overload, target.tracked)
    assert record.twin is not None
    new = tracer.evaluate(record.twin, args, with_defaults(record, args, kwargs))
    check_fits(target.fake_type, new.fake_type)
    tracer.write(target, new)
    return target


def reading(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The same, where it may read other tensors."""
    read_write_overlap.check(record.overload, tracer.adopt(args[0]), [*args[1:], *kwargs.values()])
    return inplace(tracer, record, args, kwargs)


def drawn(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Random numbers: eager draws them in the order of memory, their functional twins in that of
    indices. So they are written to the view in which the two are the same."""
    target = tracer.adopt(args[0])
    t = target.fake_type
    order = sorted(range(t.ndim), key=lambda d: (hint(t.stride[d]) or 0, -d), reverse=True)
    size, stride = (tuple(numbers[d] for d in order) for numbers in (t.size, t.stride))
    if t.is_contiguous or not t.replace(size=size, stride=stride).is_contiguous:
        return inplace(tracer, record, args, kwargs)
    inplace(tracer, record, (tracer.call(aten.permute.default, target, order), *args[1:]), kwargs)
    return target


def drawn_between(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.random_(low, high)`: the functional twin is called `random.from`, which Python cannot
    say."""
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    target, low, high = tracer.adopt(given["self"]), given["from"], given["to"]
    if high is None:
        raise CaptureError(
            f"random_({low}, None) cannot be captured.\n  at {user_location()}\n"
            "  instead: say how high, x.random_(low, high)"
        )
    if given.get("generator") is not None:
        refuse_generator()
    self_overlap.check(record.overload, target.tracked)
    tracer.write(target, tracer.evaluate(aten.randint_like.low_dtype, (target, low, high), {}))
    return target


def is_plain_write(record: Operator) -> bool:
    """Does it write to its first argument, nothing else, and return it?"""
    return (
        record.kind == "inplace"
        and record.twin is not None
        and not record.changes_metadata
        and record.mutates == record.argument_names[:1]
        and [r.argument for r in record.results] == list(record.mutates)
        and not record.results[0].is_list
    )


def is_reading_write(record: Operator) -> bool:
    """Does it also read tensors beside the one it writes to?"""
    arguments = record.overload._schema.arguments[1:]
    return is_plain_write(record) and any("Tensor" in str(each.type) for each in arguments)


def fill(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A whole number has no gradient, and torch's derivative of a fill does not know that."""
    if not _is_real(args[0]) and _is_real(args[-1]):
        args = (*args[:-1], tracer.evaluate(aten.detach.default, (args[-1],), {}))
    return write(tracer, record, args, kwargs)


def _is_real(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (value.is_floating_point() or value.is_complex())


def copy_into(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.copy_(y)`: the whole of x is y, cast and expanded."""
    target, source = tracer.adopt(args[0]), args[1]
    self_overlap.check(record.overload if _is_many(source) else aten.fill_.Tensor, target.tracked)
    if isinstance(source, torch.Tensor):
        tracer.computed(aten.copy.default, (target, source), {})  # raises what eager raises
        source = tracer.adopt(source)
        read_write_overlap.check(record.overload, target, (source,))
        form = cast_like if functionalize.is_scattered(target.tracked) else copy_like
        new = form(tracer, source, target.fake_type)
    else:
        new = tracer.evaluate(aten.fill.Scalar, (target, source), {})
    tracer.write(target, new)
    return target


def _is_many(source: Any) -> bool:
    return isinstance(source, torch.Tensor) and source.dim() > 0


def _out(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    outs = flat([kwargs[name] for name in record.out_names])
    outs = [tracer.adopt(o) for o in outs]
    for target in outs:
        self_overlap.check(record.overload, target.tracked)
    inputs = {k: v for k, v in kwargs.items() if k not in record.out_names}
    for target in outs:
        read_write_overlap.check(record.overload, target, [*args, *inputs.values()])
    inputs.update(factory_options(record, outs[0], args, inputs))
    results = flat([tracer.evaluate(record.twin, args, inputs)])  # type: ignore[arg-type]
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
    if not record.results:
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)
