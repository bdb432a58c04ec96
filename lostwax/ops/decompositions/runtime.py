"""Operators that the ExecuTorch runtime has no kernels for, by those that it has.

These are beside the table of core ATen: some of the operators are core, and others are better left
whole for everybody else. `to_edge` takes them apart, and keeps those of `preserve_ops`. A call that
cannot be computed exactly stays whole, and is refused later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lostwax.ops.decompositions.precision import cast
from lostwax.ops.registry import aten

INSTEAD = {
    "aten::histc": "torch.histc(x, bins, min, max) with a range of fixed numbers",
    "aten::scatter_reduce.two": "sums, or amax and amin of numbers; the product as exp of a sum of "
    "logarithms, where all are positive",
    "aten::_fft_c2c": "products with matrices of cosines and sines, or torch.fft.rfft",
    "aten::_grouped_mm": "a loop over the groups with masks, or torch.bmm",
    "aten::bernoulli.p": "module.eval() before the export, if it is of a dropout",
}
"""What to write where these cannot be taken apart."""


# --------------------------------------------------------------------------------------- sorting


def sort(self: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Equal values stay in their order, though nobody asks for it: eager's comes from its
    algorithm, and differs between machines."""
    return sort_stably(self, stable=True, dim=dim, descending=descending)


def sort_stably(
    self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    """`topk` of all gives the values, with equal ones in any order. Their places are sorted once
    more: by the number of different values before them, then by themselves."""
    if self.dim() == 0:
        return aten.clone.default(self), aten.full.default([], 0, dtype=torch.int64)
    if self.dtype is torch.bool:
        values, indices = sort_stably(
            cast(self, torch.uint8), stable=stable, dim=dim, descending=descending
        )
        return cast(values, torch.bool), indices
    length = self.shape[dim]
    values, places = aten.topk.default(self, length, dim, descending, True)
    before = aten.roll.default(values, [1], [dim])
    is_new = aten.ne.Tensor(values, before)
    if self.dtype.is_floating_point:  # one NaN is like another
        is_number = (aten.eq.Tensor(v, v) for v in (values, before))
        is_new = aten.logical_and.default(is_new, aten.logical_or.default(*is_number))
    groups = aten.cumsum.default(cast(is_new, torch.int64), dim)
    keys = aten.add.Tensor(aten.mul.Tensor(groups, length), places)
    ordered, _ = aten.topk.default(keys, length, dim, False, True)
    return values, aten.remainder.Scalar(ordered, length)


# --------------------------------------------------------------------------------------- writing


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Sums are added up. Of the largest or smallest, the last that is written to a place stays: so
    they are sorted before."""
    if self.dim() == 0:
        row = (aten.view.default(t, [1]) for t in (self, index, src))
        given, places, source = row
        out = scatter_reduce(given, 0, places, source, reduce, include_self=include_self)
        return aten.view.default(out, [])
    if reduce == "sum":
        start = self if include_self else aten.scatter.value(self, dim, index, 0)
        return aten.scatter_add.default(start, dim, index, src)
    if reduce == "mean" and self.dtype.is_floating_point:
        return _scatter_mean(self, dim, index, src, include_self)
    if reduce in ("amax", "amin") and self.dtype is not torch.bool:
        return _scatter_extreme(self, dim, index, src, reduce == "amax", include_self)
    raise NotImplementedError(f"no kernel scatters by {reduce!r} on {self.dtype}")


def _scatter_mean(self: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Any:
    total = scatter_reduce(self, dim, index, src, "sum", include_self=include_self)
    ones = aten.full.default(index.shape, 1, dtype=self.dtype, device=self.device)
    start = aten.full.default(self.shape, 1 if include_self else 0, dtype=self.dtype)
    count = aten.scatter_add.default(start, dim, index, ones)
    return aten.div.Tensor(total, aten.clamp.default(count, 1))


def _scatter_extreme(
    self: Tensor, dim: int, index: Tensor, src: Tensor, is_largest: bool, include_self: bool
) -> Any:
    for d, size in enumerate(index.shape):  # what lies beside the indices is not read
        src = aten.slice.Tensor(src, d, 0, size)
    if not is_largest and self.dtype.is_floating_point:  # NaN wins, whichever is asked for
        given = (aten.neg.default(self), dim, index, aten.neg.default(src))
        return aten.neg.default(_scatter_extreme(*given, True, include_self))
    ordered, places = sort(src, dim, not is_largest)
    index = aten.gather.default(index, dim, places)
    out = aten.scatter.src(self, dim, index, ordered)
    if not include_self:
        return out
    choose = aten.maximum.default if is_largest else aten.minimum.default
    return choose(self, out)


def col2im(
    self: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Add each window to the places that it was read from."""
    batch = [self.shape[0]] if self.dim() == 3 else [1]
    sizes = zip(output_size, kernel_size, dilation, padding, stride, strict=True)
    places, image, windows = [], [], []
    for i, (size, kernel, apart, border, step) in enumerate(sizes):
        count = (size + 2 * border - apart * (kernel - 1) - 1) // step + 1
        starts = aten.mul.Tensor(aten.arange.default(count, device=self.device), step)
        steps = aten.mul.Tensor(aten.arange.default(kernel, device=self.device), apart)
        at = aten.add.Tensor(aten.unsqueeze.default(steps, 1), starts)
        places.append(aten.view.default(at, [kernel, count, *[1] * (2 - 2 * i)]))
        image.append(size + 2 * border)
        windows.append((kernel, count))
    (high, rows), (wide, columns) = windows
    channels = self.shape[-2] // (high * wide)
    parts = aten.view.default(self, [*batch, channels, high, wide, rows, columns])
    parts = aten.permute.default(parts, [0, 1, 2, 4, 3, 5])
    size = [*batch, channels, *image]
    zeros = aten.full.default(size, 0, dtype=self.dtype, device=self.device)
    out = aten.index_put.default(zeros, [None, None, *places], parts, True)
    for d, (border, length) in enumerate(zip(padding, output_size, strict=True)):
        out = aten.slice.Tensor(out, 2 + d, border, border + length)
    return out if self.dim() == 3 else aten.squeeze.dim(out, 0)


# --------------------------------------------------------------------------------------- counting


def histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Count the numbers in bins of one width, each found as eager does it, in the same dtype."""
    if min == max:
        raise NotImplementedError("the range depends on data")
    flat = aten.view.default(aten.clone.default(self), [-1])
    low, high = (aten.full.default([], v, dtype=self.dtype, device=self.device) for v in (min, max))
    is_inside = aten.logical_and.default(aten.ge.Tensor(flat, low), aten.le.Tensor(flat, high))
    inside = aten.where.self(is_inside, flat, low)
    scaled = aten.mul.Tensor(aten.sub.Tensor(inside, low), bins)
    place = cast(aten.div.Tensor(scaled, aten.sub.Tensor(high, low)), torch.int64)
    place = aten.clamp.default(place, None, bins - 1)
    zeros = aten.full.default([bins], 0, dtype=self.dtype, device=self.device)
    return aten.scatter_add.default(zeros, 0, place, cast(is_inside, self.dtype))


def grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Any:
    """Multiply all rows with the matrices of all groups, and choose: no kernel takes as many rows
    as data says."""
    if bias is not None or out_dtype not in (None, self.dtype):
        raise NotImplementedError("with a bias, or in another dtype")
    if offs is None:
        return aten.bmm.default(self, mat2)
    if self.dim() != 2 or mat2.dim() != 3:
        raise NotImplementedError("other than rows in groups")
    (rows, inner), groups = self.shape, mat2.shape[0]
    row = aten.arange.default(rows, device=self.device)
    is_behind = aten.ge.Tensor(aten.unsqueeze.default(row, 1), cast(offs, torch.int64))
    group = aten.sum.dim_IntList(cast(is_behind, torch.int64), [1])
    group = aten.clamp.default(group, None, groups - 1)
    every = aten.expand.default(aten.unsqueeze.default(self, 0), [groups, rows, inner])
    return aten.index.Tensor(aten.bmm.default(every, mat2), [group, row])


RUNTIME: dict[OpOverload, Callable[..., Any]] = {
    aten._grouped_mm.default: grouped_mm,
    aten.col2im.default: col2im,
    aten.histc.default: histc,
    aten.scatter_reduce.two: scatter_reduce,
    aten.sort.default: sort,
    aten.sort.stable: sort_stably,
}
"""How each of these operators is computed."""
