"""Where the elements of tensors lie in memory: from where to where, and whether they meet.

A place is counted in elements from the start of a storage. Spans are half-open: from the first
place to the one behind the last; the span of a tensor without elements is empty. Two types that are
compared are types of tensors in one storage: that they are is for the caller to know. Must not look
at data, and never costs a guard.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from lostwax.sym import Size, eq, known
from lostwax.types import TensorType


def span(t: TensorType) -> tuple[Size, Size]:
    """The first place of a tensor, and the one behind its last."""
    first = t.offset
    if t.is_contiguous:
        return first, first + t.numel()
    end: Size = first + 1
    for size, stride in zip(t.size, t.stride, strict=True):
        if size == 0 if size.__class__ is int else known(eq(size, 0)) is True:
            return first, first
        end = end + (size - 1) * stride
    return first, end


def byte_span(t: TensorType) -> tuple[Size, Size]:
    """The span in bytes."""
    first, end = span(t)
    return first * t.dtype.itemsize, end * t.dtype.itemsize


def spans_meet(a: TensorType, b: TensorType) -> bool:
    """Is there for certain a byte in the spans of both?"""
    (start, end), (other, last) = byte_span(a), byte_span(b)
    pairs = (start, end), (start, last), (other, end), (other, last)
    return all(known(low < high) is True for low, high in pairs)


def overlap(a: TensorType, b: TensorType) -> bool:
    """Is there a byte that is part of an element of both? Sizes that are not known reach
    everywhere."""
    if a.is_symbolic or b.is_symbolic:
        return True
    if not spans_meet(a, b):
        return False
    if a.is_dense and b.is_dense:
        return True
    unit = gcd(a.dtype.itemsize, b.dtype.itemsize)
    reach: dict[int, tuple[int, int]] = {}
    for t, forwards in ((a, True), (b, False)):
        scale: Any = t.dtype.itemsize // unit
        dims: Any = [(scale, 1), *((size, stride * scale) for size, stride in _dimensions(t))]
        for size, stride in dims:
            least, most = reach.get(stride, (0, 0))
            reach[stride] = (least, most + size - 1) if forwards else (least - size + 1, most)
    distance: Any = byte_span(b)[0] - byte_span(a)[0]
    steps = sorted(((stride, *times) for stride, times in reach.items() if stride), reverse=True)
    return _is_sum(distance // unit, steps)


def repeats(t: TensorType) -> bool:
    """Does one place stand for several elements? For sizes that are known."""
    if 0 in t.size:
        return False
    smaller: list[tuple[int, int, int]] = []
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in _dimensions(t) if size > 1):
        if stride == 0:
            return True
        most = min(size - 1, reach // stride)
        if any(_is_sum(times * stride, smaller) for times in range(1, most + 1)):
            return True
        smaller.insert(0, (stride, 1 - size, size - 1))
        reach += (size - 1) * stride
    return False


def expanded_sizes(t: TensorType) -> list[Size]:
    """The sizes of the dimensions along which all elements are one, if they are not 0 or 1."""
    return [
        size
        for size, stride in zip(t.size, t.stride, strict=True)
        if stride.__class__ is int and stride == 0 and (size.__class__ is not int or size > 1)
    ]


def places(t: TensorType) -> Any:
    """The place of each element: an array of the tensor's size. For sizes that are known."""
    found: Any = np.asarray(t.offset)
    for size, stride in _dimensions(t):
        found = found[..., None] + np.arange(size) * stride
    return found


def lies_within(part: TensorType, whole: TensorType) -> bool:
    """Is each element of a tensor one of another, of the same dtype? For sizes that are known."""
    if 0 in part.size:
        return True
    if not whole.is_dense:
        return bool(np.isin(places(part), places(whole)).all())
    (start, end), (first, last) = span(part), span(whole)
    return bool(first <= start) and bool(end <= last)


def shows_all(part: TensorType, whole: TensorType) -> bool:
    """Does a tensor show, for certain, all elements of another, of the same dtype, each once?"""
    if part == whole:
        return True
    if part.is_symbolic or whole.is_symbolic or not (part.is_dense and whole.is_dense):
        return False
    return span(part) == span(whole)


def _dimensions(t: TensorType) -> Any:
    """Size and stride of each."""
    return zip(t.size, t.stride, strict=True)


def _is_sum(distance: int, steps: list[tuple[int, int, int]]) -> bool:
    """Can it be walked in these steps? Each has a length, the number of times that it may be taken
    at least (backwards: 0 or less) and at most; the longest first."""
    if distance == 0:
        return True
    if not steps or distance % gcd(*(length for length, _, _ in steps)):
        return False
    (length, least, most), rest = steps[0], steps[1:]
    back, forth = sum(s * low for s, low, _ in rest), sum(s * high for s, _, high in rest)
    least = max(least, -((forth - distance) // length))
    most = min(most, (distance - back) // length)
    return any(_is_sum(distance - k * length, rest) for k in range(least, most + 1))
