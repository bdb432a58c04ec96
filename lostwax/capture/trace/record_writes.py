"""Which operators may write, and how those are recorded that write in a way of their own.

Must not record the others itself: `ir/trace/writes.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lostwax.capture.aliasing import read_write_overlap, self_overlap, storage
from lostwax.capture.trace import custom_ops, grad_marks
from lostwax.capture.trace.gradient_reach import can_have_gradient
from lostwax.capture.trace.record import is_gradless, record_view
from lostwax.capture.trace.refusals import refuse_generator
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.tensor import FakeTensor
from lostwax.fake.write import add_defaults, check_fits, flatten, written_arguments
from lostwax.ir.trace import writes
from lostwax.ops.registry import Operator, aten, operator
from lostwax.ops.shapes import hint

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


def change_metadata(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.t_()`: from here on `x` is the view that `x.t()` would be."""
    target = tracer.adopt(args[0])
    storage.check_metadata(target.tracked)
    return _become_view(tracer, record, target, args, kwargs)


def detach_itself(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.detach_()`: from here on `x` is what `x.detach()` would be."""
    target = tracer.adopt(args[0])
    if is_gradless(target.tracked.value):
        return target
    if is_marked(target):
        what = "which requires a gradient, is detached in place"
        grad_marks.check_own(target, what, "x = x.detach(), which is another tensor")
    return _become_view(tracer, record, target, args, kwargs)


def _become_view(
    tracer: Tracer, record: Operator, target: FakeTensor, args: Any, kwargs: dict[str, Any]
) -> Any:
    tracer.composites.check_single(target)
    shown = record_view(tracer, operator(storage.metadata_view(record.overload)), args, kwargs)
    if tracer.maybe_views or tracer.scope is not None:
        tracer.maybe_views.note_change(target.tracked.root, tracer.moment)
    tracer.become(target, shown)
    return target


def write_one_by_one(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> None:
    """`_foreach_zero_` as `zero_` of each."""
    name = record.overload._schema.name.removeprefix("aten::_foreach_")
    single = operator(getattr(aten, name).default)
    for each in args[0]:
        record_write(tracer, single, (each,), {})


def record_write(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    if record.twin is None:
        return custom_ops.write_copies(tracer, record, args, kwargs)
    targets = [tracer.adopt(t) for t in flatten(written_arguments(record, args, kwargs))]
    for target in targets:
        self_overlap.check(record.overload, target.tracked)
    read_write_overlap.check_apart(record.overload, targets)
    _check_reads(record, targets, args, kwargs)
    return writes.record_write(tracer, record, args, kwargs)


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


def write_in_place(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The most common write: `x.relu_()`."""
    target = tracer.adopt(args[0])
    self_overlap.check(record.overload, target.tracked)
    assert record.twin is not None
    new = tracer.evaluate(record.twin, args, add_defaults(record, args, kwargs))
    check_fits(target.fake_type, new.fake_type)
    tracer.write(target, new)
    return target


def write_and_read(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A write that may read other tensors: `x.add_(y)`."""
    read_write_overlap.check(record.overload, tracer.adopt(args[0]), [*args[1:], *kwargs.values()])
    return write_in_place(tracer, record, args, kwargs)


def draw_in_order(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Random numbers: eager draws them in the order of memory, their functional twins in that of
    indices. So they are written to the view in which the two are the same."""
    target = tracer.adopt(args[0])
    t = target.fake_type
    order = sorted(range(t.ndim), key=lambda d: (hint(t.stride[d]) or 0, -d), reverse=True)
    size, stride = (tuple(numbers[d] for d in order) for numbers in (t.size, t.stride))
    if t.is_contiguous or not t.replace(size=size, stride=stride).is_contiguous:
        return write_in_place(tracer, record, args, kwargs)
    permuted = tracer.call(aten.permute.default, target, order)
    write_in_place(tracer, record, (permuted, *args[1:]), kwargs)
    return target


def draw_between(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.random_(low, high)`: the functional twin is called `random.from`, which Python cannot
    say."""
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    target, low, high = tracer.adopt(given["self"]), given["from"], given["to"]
    if high is None:
        raise CaptureError.here(
            f"random_({low}, None) cannot be captured",
            instead="say how high, x.random_(low, high)",
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


def record_fill(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A whole number has no gradient, and torch's derivative of a fill does not know that."""
    if not can_have_gradient(args[0]) and can_have_gradient(args[-1]):
        args = (*args[:-1], tracer.evaluate(aten.detach.default, (args[-1],), {}))
    return record_write(tracer, record, args, kwargs)


def copy_into(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = tracer.adopt(args[0]), args[1]
    self_overlap.check(record.overload if _has_dims(source) else aten.fill_.Tensor, target.tracked)
    read_write_overlap.check(record.overload, target, (source,))
    return writes.copy_into(tracer, target, source)


def _has_dims(source: Any) -> bool:
    return isinstance(source, torch.Tensor) and source.dim() > 0
