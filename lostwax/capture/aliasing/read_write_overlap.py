"""Writes that read, through another view, the memory they write to: `a.add_(a.t())`.

What they leave depends on the order in which elements are computed. Eager refuses most of them; in
others it computes something that no functional program does (`a[:, 1:] += a[:, :-1]`). Both are
refused. Where the same element is read and written, or what is read lies ahead of what is written,
the order is no matter. Must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.location import user_location
from lostwax.ops.registry import operator
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


def check(func: OpOverload, target: FakeTensor, operands: Iterable[Any]) -> None:
    """May the call write to the target, and read these?"""
    storage = target.fake_storage
    for each in operands:
        if type(each) is FakeTensor:
            if each.fake_storage is storage:
                _check_pair(func, target, each)
        elif each.__class__ is list or each.__class__ is tuple:
            check(func, target, each)


def _check_pair(func: OpOverload, target: FakeTensor, read: FakeTensor) -> None:
    traits = operator(func).traits
    if read.fake_type.ndim == 0 and Trait.READS_NUMBER_FIRST in traits:
        return
    is_pointwise = torch.Tag.pointwise in func.tags or Trait.COPIES_INTO in traits
    is_apart = Trait.READS_ELSEWHERE in traits
    if read is target and not is_apart:
        return
    written, seen = _concrete(target.fake_type), _concrete(read.fake_type)
    if written is None or seen is None or 0 in written.size or 0 in seen.size:
        return
    if _is_in_the_way(written, seen, is_pointwise, is_apart):
        raise CaptureError(
            f"{func} reads the memory that it writes to.\n"
            f"  at {user_location()}\n"
            "  why: what it leaves would depend on the order of its elements; eager refuses most "
            "such writes\n"
            "  instead: read a copy, x.clone()"
        )


def _concrete(t: TensorType) -> TensorType | None:
    """With the sizes of the example; None: there is none."""
    if not t.is_symbolic:
        return t
    known = [n if isinstance(n, int) else n.hint for n in (*t.size, *t.stride, t.offset)]
    numbers = [n for n in known if n is not None]
    if len(numbers) < len(known):
        return None
    size, stride = tuple(numbers[: t.ndim]), tuple(numbers[t.ndim : -1])
    return t.replace(size=size, stride=stride, offset=numbers[-1])


def _is_in_the_way(a: Any, b: Any, is_pointwise: bool, is_apart: bool) -> bool:
    (start, end), (other, last) = _span(a), _span(b)
    if start >= last or other >= end:
        return False
    if (a.size, a.stride, a.offset, a.dtype) == (b.size, b.stride, b.offset, b.dtype):
        return is_apart
    if a.is_dense and b.is_dense:  # here eager refuses
        return (start, end) != (other, last) or a.stride != b.stride or is_apart
    if a.dtype is not b.dtype:
        return True
    return _is_out_of_order(a, b) if is_pointwise else _meet(a, b)


def _span(t: Any) -> tuple[int, int]:
    """From the first to behind the last place, in bytes."""
    reach = sum((size - 1) * stride for size, stride in zip(t.size, t.stride, strict=True))
    return t.offset * t.dtype.itemsize, (t.offset + reach + 1) * t.dtype.itemsize


def _is_out_of_order(written: Any, read: Any) -> bool:
    """Is there a place that is read for another element than the one it is written for?"""
    if written.size == read.size and written.stride == read.stride:
        if read.offset > written.offset:
            return False  # it is read before it is written
        return _is_reached(written.offset - read.offset, _steps(written))
    if _is_large(written, read):
        return False
    first = min(written.offset, read.offset)
    owner = np.full(max(_span(written)[1], _span(read)[1]) // read.dtype.itemsize - first, -1)
    elements = np.arange(written.numel()).reshape(written.size)
    _shown(owner, written, first)[...] = elements
    seen = np.broadcast_to(_shown(owner, read, first), written.size)
    return bool(((seen >= 0) & (seen != elements)).any())


def _meet(a: Any, b: Any) -> bool:
    """Is there a place of both?"""
    if a.size == b.size and a.stride == b.stride:
        return _is_reached(abs(a.offset - b.offset), _steps(a))
    if _is_large(a, b):
        return True
    first = min(a.offset, b.offset)
    places = np.full(max(_span(a)[1], _span(b)[1]) // a.dtype.itemsize - first, False)
    _shown(places, a, first)[...] = True
    return bool(_shown(places, b, first).any())


def _shown(memory: Any, t: Any, first: int) -> Any:
    strides = [stride * memory.itemsize for stride in t.stride]
    return np.lib.stride_tricks.as_strided(memory[t.offset - first :], t.size, strides)


def _is_large(a: Any, b: Any) -> bool:
    return max(_span(a)[1], _span(b)[1]) - min(_span(a)[0], _span(b)[0]) > 1 << 26


def _steps(t: Any) -> list[tuple[int, int]]:
    steps = [(stride, size - 1) for size, stride in zip(t.size, t.stride, strict=True)]
    return sorted([(stride, most) for stride, most in steps if stride and most], reverse=True)


def _is_reached(distance: int, steps: list[tuple[int, int]]) -> bool:
    """Is it a sum of steps, each taken at most so often, forwards or backwards?"""
    if not steps:
        return distance == 0
    (stride, most), rest = steps[0], steps[1:]
    reach = sum(step * times for step, times in rest)
    least, last = -((reach - distance) // stride), (distance + reach) // stride
    return any(
        _is_reached(abs(distance - k * stride), rest)
        for k in range(max(least, -most), min(last, most) + 1)
    )
