"""A tensor's copy in given strides, by operators that have derivatives.

`aten.copy` would do it in one step and has no derivative. Must not decide when to copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lostwax.fake.symbolic.node import wrap
from lostwax.ir.graph.numbers import sources
from lostwax.ops.registry import aten
from lostwax.ops.shapes import hint, same_sizes
from lostwax.sym import Expr, Size, maximum
from lostwax.types import Sizes, TensorType, channels_last_strides, contiguous_strides

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer
    from lostwax.fake.tensor import FakeTensor


def _called(tracer: Tracer, func: OpOverload, *args: Any, **kwargs: Any) -> FakeTensor:
    return tracer.evaluate(func, args, kwargs)  # type: ignore[no-any-return]


def cast_like(tracer: Tracer, source: FakeTensor, like: TensorType) -> FakeTensor:
    """The source in the size and dtype of `like`: cast and expanded where it must be."""
    t = source.fake_type
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    changed = {k: v for k, v in options.items() if getattr(t, k) != v}
    if changed:
        source = _called(tracer, aten._to_copy.default, source, **changed)
    if t.size == like.size:
        return source
    return _called(tracer, aten.expand.default, source, list(map(wrap, like.size)))


def copy_like(tracer: Tracer, source: FakeTensor, like: TensorType) -> FakeTensor:
    """A new tensor with the size, strides and dtype of `like` that holds the source, cast and
    expanded. Where elements of `like` share a place, it has strides of its own."""
    cast = cast_like(tracer, source, like)
    is_new = cast.fake_storage is not source.fake_storage
    if is_new and same_sizes(cast.fake_type.stride, like.stride):
        return cast
    return _laid_out(tracer, cast, like)


def _laid_out(tracer: Tracer, source: FakeTensor, like: TensorType) -> FakeTensor:
    form = _memory_format(like)
    if form is not None:
        return _called(tracer, aten.clone.default, source, memory_format=form)
    kept = tracer.computed(aten.clone.default, (source,), {})
    if same_sizes(kept.fake_type.stride, like.stride):
        return _called(tracer, aten.clone.default, source)
    order = _order(like)
    if order is not None:
        return _permuted(tracer, source, order)
    if _repeats(like) or 0 in like.size or not _is_known(tracer, like):
        return _called(tracer, aten.clone.default, source)
    return _with_gaps(tracer, source, like)


def _memory_format(t: TensorType) -> torch.memory_format | None:
    if same_sizes(t.stride, contiguous_strides(t.size)):
        return torch.contiguous_format
    if len(t.size) in (4, 5) and same_sizes(t.stride, channels_last_strides(t.size)):
        return torch.channels_last if len(t.size) == 4 else torch.channels_last_3d
    return None


def _order(t: TensorType) -> list[int] | None:
    """The dimensions from the outermost to the innermost, if that order is row-major."""
    steps = [hint(s) for s in t.stride]
    if None in steps:
        return None
    order = sorted(range(t.ndim), key=lambda d: (-steps[d], d))  # type: ignore[operator]
    size, stride = _taken(t.size, order), _taken(t.stride, order)
    return order if same_sizes(stride, contiguous_strides(size)) else None


def _taken(values: Sizes, order: list[int]) -> Sizes:
    return tuple(values[d] for d in order)


def _permuted(tracer: Tracer, source: FakeTensor, order: list[int]) -> FakeTensor:
    back = sorted(range(len(order)), key=order.__getitem__)
    turned = _called(tracer, aten.permute.default, source, order)
    form = torch.contiguous_format
    copy = _called(tracer, aten.clone.default, turned, memory_format=form)
    return _called(tracer, aten.permute.default, copy, back)


def _repeats(t: TensorType) -> bool:
    return any(st == 0 and s != 1 for s, st in zip(t.size, t.stride, strict=True))


def _is_known(tracer: Tracer, t: TensorType) -> bool:
    """Can the program compute its strides? Not those of an input with gaps whose sizes vary."""
    numbers = (s for s in t.stride if isinstance(s, Expr))
    return all(symbol in tracer.origins for n in numbers for symbol in sources(n))


def _with_gaps(tracer: Tracer, source: FakeTensor, like: TensorType) -> FakeTensor:
    """Elements lie apart from each other: they are put into a memory that has room for them."""
    room: Size = 1
    for size, stride in zip(like.size, like.stride, strict=True):
        room = room + (size - 1) * stride
    room = maximum(room, 0)  # nothing is in it
    places = (list(map(wrap, like.size)), list(map(wrap, like.stride)), 0)
    memory = _called(tracer, aten.new_zeros.default, source, [wrap(room)])
    memory = _called(tracer, aten.as_strided_scatter.default, memory, source, *places)
    return _called(tracer, aten.as_strided.default, memory, *places)
