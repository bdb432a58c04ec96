"""Which memory format a tensor's strides suggest, and new tensors in that format.

Kernels for images (convolution, pooling, resampling, norms) keep the channels innermost if their
input does. The answer only chooses a layout, so it is read off the form of the strides; a guard is
the last resort. Must not know of single operators.
"""

from __future__ import annotations

import torch

from lostwax.ops.shapes import channels_last_strides, is_one, is_same, is_zero
from lostwax.sym import Size, decide, quotient
from lostwax.types import Sizes, TensorType


def reads_as_channels_last(size: Sizes, stride: Sizes) -> bool:
    """Do these strides read as channels-last (4-d or 5-d) to torch's `suggest_memory_format`?

    Not the same as `is_channels_last`: gaps are allowed, and where both formats would do
    (H = W = C = 1) row-major wins.
    """
    n = len(size)
    if n not in (4, 5) or is_zero(stride[1]):
        return False
    step: Size = 0
    for d in (1, *range(n - 1, 1, -1), 0):
        if is_zero(size[d]) or _is_less(stride[d], step) or (d == 0 and is_same(step, stride[1])):
            return False
        step = stride[d] if is_one(size[d]) else stride[d] * size[d]
    return True


def _is_less(a: Size, b: Size) -> bool:
    """Compares strides: products of sizes, in which every symbolic factor counts as more than 1."""
    if a.__class__ is int and b.__class__ is int:
        return a < b
    if is_zero(b) or is_same(a, b) or quotient(a, b) is not None:
        return False
    return quotient(b, a) is not None or decide(a < b)


def suggests_channels_last(x: TensorType) -> bool:
    """Are the channels innermost, as far as strides can tell?"""
    if x._contiguous and x.is_symbolic:
        return False  # it was made row-major, whatever its sizes turn out to be
    return reads_as_channels_last(x.size, x.stride)


def suggested_format(x: TensorType) -> torch.memory_format:
    """What `x.suggest_memory_format()` says."""
    if not suggests_channels_last(x):
        return torch.contiguous_format
    return torch.channels_last if len(x.size) == 4 else torch.channels_last_3d


def fresh_like(x: TensorType, size: Sizes, dtype: torch.dtype | None = None) -> TensorType:
    """A new tensor of this size (of the same rank) in the memory format that `x` suggests."""
    if suggests_channels_last(x):
        return TensorType(size, dtype or x.dtype, x.device, channels_last_strides(size))
    return TensorType(size, dtype or x.dtype, x.device)
