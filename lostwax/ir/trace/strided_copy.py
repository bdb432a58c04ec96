"""A tensor's copy in given strides, by operators that have derivatives.

`aten.copy` would do it in one step and has no derivative. Must not decide when to copy.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.memory import expanded_sizes, span
from lostwax.ops.registry import aten
from lostwax.ops.shapes import are_same_sizes, hint
from lostwax.sym import Expr, maximum
from lostwax.types import Sizes, TensorType, channels_last_strides, contiguous_strides


class Records(Protocol):
    """What copies ask of a recorder."""

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any: ...
    def compute(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any: ...
    def can_compute(self, number: Expr) -> bool: ...


def _call(recorder: Records, func: OpOverload, *args: Any, **kwargs: Any) -> FakeTensor:
    return recorder.evaluate(func, args, kwargs)  # type: ignore[no-any-return]


def cast_like(recorder: Records, source: FakeTensor, like: TensorType) -> FakeTensor:
    """The source in the size and dtype of `like`: cast and expanded where it must be."""
    t = source.fake_type
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    changed = {k: v for k, v in options.items() if getattr(t, k) != v}
    if changed:
        source = _call(recorder, aten._to_copy.default, source, **changed)
    if t.size == like.size:
        return source
    return _call(recorder, aten.expand.default, source, list(map(wrap, like.size)))


def copy_like(recorder: Records, source: FakeTensor, like: TensorType) -> FakeTensor:
    """A new tensor with the size, strides and dtype of `like` that holds the source, cast and
    expanded. Where elements of `like` share a place, it has strides of its own."""
    cast = cast_like(recorder, source, like)
    is_new = cast.fake_storage is not source.fake_storage
    if is_new and are_same_sizes(cast.fake_type.stride, like.stride):
        return cast
    return _clone_strided(recorder, cast, like)


def _clone_strided(recorder: Records, source: FakeTensor, like: TensorType) -> FakeTensor:
    form = _memory_format(like)
    if form is not None:
        return _call(recorder, aten.clone.default, source, memory_format=form)
    kept = recorder.compute(aten.clone.default, (source,), {})
    if are_same_sizes(kept.fake_type.stride, like.stride):
        return _call(recorder, aten.clone.default, source)
    order = _row_major_order(like)
    if order is not None:
        return _clone_permuted(recorder, source, order)
    # Not the strides of an input with gaps whose sizes vary.
    is_known = all(recorder.can_compute(s) for s in like.stride if isinstance(s, Expr))
    if expanded_sizes(like) or 0 in like.size or not is_known:
        return _call(recorder, aten.clone.default, source)
    return _clone_with_gaps(recorder, source, like)


def _memory_format(t: TensorType) -> torch.memory_format | None:
    if are_same_sizes(t.stride, contiguous_strides(t.size)):
        return torch.contiguous_format
    if len(t.size) in (4, 5) and are_same_sizes(t.stride, channels_last_strides(t.size)):
        return torch.channels_last if len(t.size) == 4 else torch.channels_last_3d
    return None


def _row_major_order(t: TensorType) -> list[int] | None:
    """The dimensions from the outermost to the innermost, if that order is row-major."""
    steps = [hint(s) for s in t.stride]
    if None in steps:
        return None
    order = sorted(range(t.ndim), key=lambda d: (-steps[d], d))  # type: ignore[operator]
    size, stride = _pick(t.size, order), _pick(t.stride, order)
    return order if are_same_sizes(stride, contiguous_strides(size)) else None


def _pick(values: Sizes, order: list[int]) -> Sizes:
    return tuple(values[d] for d in order)


def _clone_permuted(recorder: Records, source: FakeTensor, order: list[int]) -> FakeTensor:
    back = sorted(range(len(order)), key=order.__getitem__)
    turned = _call(recorder, aten.permute.default, source, order)
    form = torch.contiguous_format
    copy = _call(recorder, aten.clone.default, turned, memory_format=form)
    return _call(recorder, aten.permute.default, copy, back)


def _clone_with_gaps(recorder: Records, source: FakeTensor, like: TensorType) -> FakeTensor:
    """Elements lie apart from each other: they are put into a memory that has room for them."""
    first, end = span(like)
    room = maximum(end - first, 0)  # nothing is in it
    places = (list(map(wrap, like.size)), list(map(wrap, like.stride)), 0)
    memory = _call(recorder, aten.new_zeros.default, source, [wrap(room)])
    memory = _call(recorder, aten.as_strided_scatter.default, memory, source, *places)
    return _call(recorder, aten.as_strided.default, memory, *places)
