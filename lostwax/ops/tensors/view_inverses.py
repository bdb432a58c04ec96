"""How a write through a view gets back into its base, as a function of tensors.

`inverse(base, written, *view arguments) -> new base`: `written` is the new value of the view, and
the result is the new value of the base. For views that come as a list (`split`, `unbind`) the
position in the list follows `written`. The functions make only ATen calls, so that capture records
them. Must not read data, nor branch on a symbolic size, except where eager forbids the write anyway
(views whose elements overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import Rule, aten, view_inverse


def _invert_reshape(base: Tensor, written: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return written.reshape(base.shape)


def _invert_permute(base: Tensor, written: Tensor, dims: Sequence[int]) -> Any:
    order = [d % base.dim() for d in dims]
    return aten.permute.default(written, sorted(range(len(order)), key=order.__getitem__))


def _invert_view_as_real(base: Tensor, written: Tensor) -> Any:
    # Not by `view_as_complex`, which needs strides that `written` may not have.
    return aten.complex.default(aten.select.int(written, -1, 0), aten.select.int(written, -1, 1))


def _invert_slice(
    base: Tensor, written: Tensor, dim: int, start: Any, end: Any, step: int = 1
) -> Any:
    """Complex numbers are scattered as pairs, since torch's derivative does not take them."""
    if not base.is_complex():
        return aten.slice_scatter.default(base, written, dim, start, end, step)
    pairs = aten.view_as_real.default(base), aten.view_as_real.default(written)
    dim %= base.dim()
    return _invert_view_as_real(base, aten.slice_scatter.default(*pairs, dim, start, end, step))


def _invert_select(base: Tensor, written: Tensor, dim: int, index: int) -> Any:
    if not base.is_complex():
        return aten.select_scatter.default(base, written, dim, index)
    pairs = aten.view_as_real.default(base), aten.view_as_real.default(written)
    return _invert_view_as_real(base, aten.select_scatter.default(*pairs, dim % base.dim(), index))


def _invert_narrow(base: Tensor, written: Tensor, dim: int, start: Any, length: Any) -> Any:
    n = base.shape[dim]
    begin = start + n if start.__class__ is int and start < 0 else start
    return _invert_slice(base, written, dim, begin, begin + length)


def _invert_chunk(base: Tensor, written: Tensor, position: int, chunks: int, dim: int = 0) -> Any:
    return _invert_split(base, written, position, -(-base.shape[dim] // chunks), dim)


def _invert_alias(base: Tensor, written: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return written


def _is_empty(x: Tensor) -> bool:
    return any(s.__class__ is int and s == 0 for s in x.shape)


def _invert_view_dtype(base: Tensor, written: Tensor, dtype: torch.dtype) -> Any:
    if _is_empty(base):
        return base  # nothing is written, and strides of nothing need not be divisible
    if base.dtype.itemsize != dtype.itemsize:
        written = aten.clone.default(written, memory_format=torch.contiguous_format)
    return aten.view.dtype(written, base.dtype)


def _invert_split(
    base: Tensor, written: Tensor, position: int, split_size: int, dim: int = 0
) -> Any:
    start = position * split_size
    return _invert_slice(base, written, dim, start, start + written.shape[dim])


def _invert_split_with_sizes(
    base: Tensor, written: Tensor, position: int, split_sizes: Sequence[int], dim: int = 0
) -> Any:
    start = sum(split_sizes[:position])
    return _invert_slice(base, written, dim, start, start + split_sizes[position])


def _invert_expand(
    base: Tensor, written: Tensor, size: Sequence[int], *, implicit: bool = False
) -> Tensor:
    """All copies of an expanded element share one place in memory: the first stands for them."""
    if _is_empty(written):
        return base
    for _ in range(written.dim() - base.dim()):
        written = aten.select.int(written, 0, 0)
    for d in range(base.dim()):
        if base.shape[d] is not written.shape[d] and base.shape[d] != written.shape[d]:
            if written.shape[d] == 0:
                return base  # nothing is written
            written = aten.slice.Tensor(written, d, 0, 1)
    return written


def _invert_unfold(base: Tensor, written: Tensor, dimension: int, size: int, step: int) -> Any:
    if base.dim() == 0:
        return written.reshape(()) if size else base
    d = dimension % base.dim()
    places = aten.arange.default(base.shape[d], device=base.device)
    index = aten.unfold.default(places, 0, size, step).reshape(-1)
    # Windows and the places inside them as one dimension, in the order of `index`.
    rows = written.movedim(-1, d + 1).flatten(d, d + 1)
    return aten.index_copy.default(base, d, index, rows)


def _invert_as_strided(
    base: Tensor,
    written: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Any:
    """It writes by places in memory. `as_strided_scatter` would do, but torch's derivative of it is
    wrong (2.13)."""
    order = _memory_order(base)
    if order is None:
        return _write_among_gaps(base, written, size, stride, storage_offset or 0)
    is_turned = order != sorted(order)
    memory = aten.permute.default(base, order) if is_turned else base
    places = aten.arange.default(memory.numel(), device=base.device)
    index = aten.as_strided.default(places, size, stride, storage_offset or 0).reshape(-1)
    flat = aten.index_put.default(memory.reshape(-1), [index], written.reshape(-1))
    filled = flat.reshape(memory.shape)
    back = sorted(range(len(order)), key=order.__getitem__)
    return aten.permute.default(filled, back) if is_turned else filled


def _write_among_gaps(
    base: Tensor, written: Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> Any:
    """Lay the base out as in memory, gaps included, write to that, and read the base back."""
    sizes, strides = base.shape, base.stride()
    end: Any = 1 + sum((s - 1) * step for s, step in zip(sizes, strides, strict=True))
    count = max(end, 0) if end.__class__ is int else torch.sym_max(end, 0)
    places = aten.arange.default(count, device=base.device)
    own = aten.as_strided.default(places, sizes, strides, 0)
    memory = aten.index_put.default(aten.new_zeros.default(base, [count]), [own], base)
    index = aten.as_strided.default(places, size, stride, offset)
    return aten.index.Tensor(aten.index_put.default(memory, [index], written), [own])


def _memory_order(base: Tensor) -> list[int] | None:
    """The dimensions in the order of memory, outermost first; None if there are gaps."""
    size, stride = list(base.shape), list(base.stride())
    if any(s.__class__ is not int for s in (*size, *stride)):
        return list(range(len(size))) if base.is_contiguous() else None
    order = list(range(len(size)))
    if not base.is_contiguous():
        order.sort(key=lambda d: (size[d] != 1, -stride[d]))
    step = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != step:
            return None
        step *= size[d]
    return order


_INVERSES: dict[str, Rule] = {
    # The view shows every element of the base.
    "view": _invert_reshape,
    "_reshape_alias": _invert_reshape,
    "squeeze": _invert_reshape,
    "squeeze.dim": _invert_reshape,
    "squeeze.dims": _invert_reshape,
    "unsqueeze": lambda base, new, dim: aten.squeeze.dim(new, dim),
    "permute": _invert_permute,
    "transpose.int": lambda base, new, dim0, dim1: aten.transpose.int(new, dim0, dim1),
    "t": lambda base, new: aten.t.default(new),
    "alias": lambda base, new: new,
    "detach": lambda base, new: new,
    "lift_fresh": lambda base, new: new,
    "_conj": lambda base, new: aten._conj_physical.default(new),
    "_neg_view": lambda base, new: aten.neg.default(new),
    "view_as_real": _invert_view_as_real,
    "view_as_complex": lambda base, new: aten.view_as_real.default(new),
    "view.dtype": _invert_view_dtype,
    # The view shows a part of the base.
    "select.int": _invert_select,
    "slice.Tensor": lambda base, new, dim=0, start=None, end=None, step=1: _invert_slice(
        base, new, dim, start, end, step
    ),
    "diagonal": lambda base, new, offset=0, dim1=0, dim2=1: aten.diagonal_scatter.default(
        base, new, offset, dim1, dim2
    ),
    "as_strided": _invert_as_strided,
    "split.Tensor": _invert_split,
    "split_with_sizes": _invert_split_with_sizes,
    "unbind.int": lambda base, new, position, dim=0: _invert_select(base, new, dim, position),
    # Composite views, which a program has only where they are kept whole.
    **dict.fromkeys(("reshape", "flatten.using_ints"), _invert_reshape),
    **dict.fromkeys(("to.dtype", "to.device"), _invert_alias),
    "narrow": _invert_narrow,
    "chunk": _invert_chunk,
    # The view may show an element more than once: eager refuses most writes.
    "expand": _invert_expand,
    "unfold": _invert_unfold,
}
for _name, _inverse in _INVERSES.items():
    view_inverse(_name)(_inverse)
