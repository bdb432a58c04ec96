"""Views and rearrangements by `permute`, `view`, `select`, `split_with_sizes`, `cat`, `index`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition("t")
def t(self: Tensor) -> Any:
    return aten.permute.default(self, [1, 0]) if self.dim() == 2 else aten.alias.default(self)


@decomposition("transpose.int")
def transpose(self: Tensor, dim0: int, dim1: int) -> Any:
    order = list(range(self.dim()))
    if not order:
        return aten.alias.default(self)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return aten.permute.default(self, order)


@decomposition("_unsafe_view", "_reshape_alias")
def unsafe_view(self: Tensor, size: Sequence[int], stride: Any = None) -> Any:
    return aten.view.default(self, size)


@decomposition("split.Tensor", "unsafe_split.Tensor")
def split(self: Tensor, split_size: int, dim: int = 0) -> Any:
    size = self.shape[dim]
    if split_size.__class__ is not int or size.__class__ is not int:
        raise NotImplementedError("how many pieces there are depends on a size")
    if split_size == 0:
        return aten.split_with_sizes.default(self, [0], dim)
    pieces = [split_size] * (size // split_size)
    if size % split_size or not pieces:
        pieces.append(size % split_size)
    return aten.split_with_sizes.default(self, pieces, dim)


@decomposition("unsafe_split_with_sizes")
def unsafe_split_with_sizes(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> Any:
    return aten.split_with_sizes.default(self, split_sizes, dim)


@decomposition("unbind.int")
def unbind(self: Tensor, dim: int = 0) -> Any:
    count = self.shape[dim]
    if count.__class__ is not int:
        raise NotImplementedError("how many tensors there are depends on a size")
    return [aten.select.int(self, dim, i) for i in range(count)]


@decomposition("squeeze")
def squeeze(self: Tensor) -> Any:
    ones = [d for d, size in enumerate(self.shape) if size.__class__ is int and size == 1]
    return aten.squeeze.dims(self, ones)


@decomposition("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    at = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(x, at) for x in tensors], at)


@decomposition("roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        flat = aten.view.default(aten.clone.default(self, memory_format=_ROWS), [-1])
        return aten.view.default(_roll_dim(flat, shifts[0], 0), self.shape)
    out = self
    for shift, dim in zip(shifts, dims, strict=True):
        out = _roll_dim(out, shift, dim)
    return aten.clone.default(self) if out is self else out


_ROWS = torch.contiguous_format


def _roll_dim(x: Tensor, shift: int, dim: int) -> Any:
    """The elements counted from position `-shift`, wrapping round the end."""
    size = x.shape[dim] if x.dim() else 1
    if _are_ints(size, shift) and (size == 0 or shift % size == 0):
        return x
    start = -shift % size if _are_ints(size, shift) else size - shift
    places = aten.arange.start_step(start, start + size, 1, device=x.device)
    return aten.index_select.default(x, dim, aten.remainder.Scalar(places, size))


def _are_ints(*numbers: Any) -> bool:
    return all(n.__class__ is int for n in numbers)


@decomposition("pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Any:
    r, lead, (c, h, w) = upscale_factor, list(self.shape[:-3]), self.shape[-3:]
    n = len(lead)
    x = aten.view.default(_copy_row_major(self), [*lead, c // (r * r), r, r, h, w])
    x = aten.permute.default(x, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return aten.view.default(_copy_row_major(x), [*lead, c // (r * r), h * r, w * r])


@decomposition("pixel_unshuffle")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Any:
    r, lead, (c, h, w) = downscale_factor, list(self.shape[:-3]), self.shape[-3:]
    n = len(lead)
    x = aten.view.default(_copy_row_major(self), [*lead, c, h // r, r, w // r, r])
    x = aten.permute.default(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return aten.view.default(_copy_row_major(x), [*lead, c * r * r, h // r, w // r])


@decomposition("channel_shuffle")
def channel_shuffle(self: Tensor, groups: int) -> Any:
    n, c, *rest = self.shape
    x = aten.view.default(_copy_row_major(self), [n, groups, c // groups, *rest])
    x = aten.permute.default(x, [0, 2, 1, *range(3, 3 + len(rest))])
    return aten.view.default(_copy_row_major(x), self.shape)


def _copy_row_major(x: Tensor) -> Any:
    """A row-major copy, which can be viewed with other sizes."""
    return aten.clone.default(x, memory_format=_ROWS)


@decomposition("diagonal_scatter")
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    n = self.dim()
    first, second = dim1 % n, dim2 % n
    order = [first, second, *(d for d in range(n) if d not in (first, second))]
    count = src.shape[-1]
    steps = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=self.device)
    rows = aten.add.Scalar(steps, -offset) if offset < 0 else steps
    columns = aten.add.Scalar(steps, offset) if offset > 0 else steps
    turned = aten.permute.default(src, [n - 2, *range(n - 2)])
    out = aten.index_put.default(aten.permute.default(self, order), [rows, columns], turned)
    return aten.permute.default(out, sorted(range(n), key=order.__getitem__))
