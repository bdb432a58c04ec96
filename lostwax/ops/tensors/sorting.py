"""Operators that need an order of the elements: sorting, the k largest, searching, distinct values.

Only the data know how many distinct values there are: these rules ask `Fresh` for a size between 1
(0 if there are no elements) and the number of elements. Must not know how data are compared.
"""

from __future__ import annotations

import torch

from lostwax.ops.math.reduce import Pair, reduce_dims, require_elements
from lostwax.ops.registry import Fresh, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    TensorType,
    contiguous_strides,
    fail,
    preserved_strides,
    require,
    require_same_sizes,
    show,
    wrap_dim,
)
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Size, eq, known, ne
from lostwax.torch_version import DTYPE_ERROR, KIND_ERROR

Triple = tuple[TensorType, TensorType, TensorType]


# ------------------------------------------------------------------------------------------- order


@rule("sort")
def sort(x: TensorType, dim: int = -1, descending: bool = False) -> Pair:
    return _sort(x, dim)


@rule("sort.stable")
def sort_stable(x: TensorType, *_: object, dim: int = -1, **__: object) -> Pair:
    return _sort(x, dim)


def _sort(x: TensorType, dim: int) -> Pair:
    """Both results keep the layout of the operand."""
    wrap_dim(dim, len(x.size))
    if x.dtype.is_complex:
        fail(f"Sort does not support complex dtypes on {x.device.type.upper()}", KIND_ERROR)
    stride = preserved_strides(x)
    return (
        TensorType(x.size, x.dtype, x.device, stride),
        TensorType(x.size, torch.int64, x.device, stride),
    )


@rule("topk")
def topk(x: TensorType, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    d = wrap_dim(dim, len(x.size))
    n = x.size[d] if x.size else 1
    require(k >= 0, "selected index k out of range")
    require(k <= n, "selected index k out of range")
    if x.dtype.is_complex:
        fail("topk(): does not support complex dtypes on CPU", KIND_ERROR)
    size = (*x.size[:d], k, *x.size[d + 1 :]) if x.size else ()
    return x.fresh(size), x.fresh(size, torch.int64)


@rule("kthvalue")
def kthvalue(x: TensorType, k: Size, dim: int = -1, keepdim: bool = False) -> Pair:
    d = wrap_dim(dim, len(x.size))
    require_elements("kthvalue", x, d)
    text = f"kthvalue(): selected number k out of range for dimension {d}"
    require(k >= 1, text)
    require(k <= (x.size[d] if x.size else 1), text)
    out = reduce_dims(x, d, keepdim)
    return out, out.fresh(dtype=torch.int64)


# ------------------------------------------------------------------------------------------ search


def _positions(size: tuple[Size, ...], like: TensorType, out_int32: bool) -> TensorType:
    return TensorType(size, torch.int32 if out_int32 else torch.int64, like.device)


@rule("searchsorted.Tensor")
def searchsorted(
    boundaries: TensorType,
    x: TensorType,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorType | None = None,
) -> TensorType:
    _check_search(boundaries, x.size, right, side, sorter)
    if len(boundaries.size) != 1:
        text = (
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
            "dimensions of boundaries tensor and input value tensor must match, but we got "
            f"boundaries tensor {show(boundaries.size)} and input value tensor {show(x.size)}"
        )
        require_same_sizes(boundaries.size[:-1], x.size[:-1], text)
    return _positions(x.size, boundaries, out_int32)


@rule("searchsorted.Scalar")
def searchsorted_scalar(
    boundaries: TensorType,
    value: Scalar,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorType | None = None,
) -> TensorType:
    _check_search(boundaries, (), right, side, sorter)
    return _positions((), boundaries, out_int32)


def _check_search(
    boundaries: TensorType,
    size: tuple[Size, ...],
    right: bool,
    side: str | None,
    sorter: TensorType | None,
) -> None:
    n = len(boundaries.size)
    if side is not None and side not in ("left", "right"):
        fail(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        fail(
            "torch.searchsorted(): side and right can't be set to opposites, "
            "got side of left while right was True"
        )
    if n == 0:
        fail(
            "torch.searchsorted(): boundaries tensor should have positive dimension, "
            "but got 0 dimension"
        )
    if not size and n != 1:
        fail(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor "
            f"dimension is 1, but we got boundaries tensor dim({n}) and input value's dim(0) "
            "numel(1)"
        )
    if sorter is not None:
        text = (
            "torch.searchsorted(): boundary and sorter must have the same size, but got boundary "
            f"tensor {show(boundaries.size)}and got sorter tensor {show(sorter.size)}"
        )
        require_same_sizes(boundaries.size, sorter.size, text)


@rule("bucketize.Tensor")
def bucketize(
    x: TensorType, boundaries: TensorType, *, out_int32: bool = False, right: bool = False
) -> TensorType:
    if len(boundaries.size) != 1:
        fail(f"boundaries tensor must be 1 dimension, but got dim({len(boundaries.size)})")
    return _positions(x.size, boundaries, out_int32)


@rule("bucketize.Scalar")
def bucketize_scalar(
    value: Scalar, boundaries: TensorType, *, out_int32: bool = False, right: bool = False
) -> TensorType:
    if len(boundaries.size) != 1:
        fail(f"boundaries tensor must be 1 dimension, but got dim({len(boundaries.size)})")
    return _positions((), boundaries, out_int32)


@rule("isin.Tensor_Tensor", "isin.Tensor_Scalar")
def isin(elements: TensorType, *_: object, **__: object) -> TensorType:
    if elements.dtype.is_complex:
        dtype = scalar_type(elements.dtype)
        fail(f"Unsupported input type encountered for isin(): {dtype}", DTYPE_ERROR)
    return elements.fresh(dtype=torch.bool)


@rule("isin.Scalar_Tensor")
def isin_scalar(element: Scalar, tests: TensorType, *_: object, **__: object) -> TensorType:
    return tests.fresh((), torch.bool)


# ------------------------------------------------------------------------------------------ unique


def _count_distinct(fresh: Fresh, n: Size) -> Size:
    """How many distinct values there are among n."""
    if known(eq(n, 0)) is True:
        return 0
    return fresh.size(n, 1 if known(ne(n, 0)) is True else 0)


def _unique_values(fresh: Fresh, x: TensorType, inverse: bool, counts: bool) -> Triple:
    n = _count_distinct(fresh, x.numel())
    return (
        x.fresh((n,)),
        x.fresh(x.size if inverse else (0,), torch.int64),
        x.fresh((n,) if counts else (0,), torch.int64),
    )


@rule("_unique2", data=True)
def unique2(
    fresh: Fresh,
    x: TensorType,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Triple:
    return _unique_values(fresh, x, return_inverse, return_counts)


@rule("_unique", data=True)
def unique(fresh: Fresh, x: TensorType, sorted: bool = True, return_inverse: bool = False) -> Pair:
    return _unique_values(fresh, x, return_inverse, False)[:2]


@rule("unique_dim", data=True)
def unique_dim(fresh: Fresh, x: TensorType, dim: int, *_: object, **__: object) -> Triple:
    return _unique_slices(fresh, x, dim)


@rule("unique_dim_consecutive", data=True)
def unique_dim_consecutive(
    fresh: Fresh, x: TensorType, dim: int, *_: object, **__: object
) -> Triple:
    return _unique_slices(fresh, x, dim)


@rule("unique_consecutive", data=True)
def unique_consecutive(
    fresh: Fresh,
    x: TensorType,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Triple:
    if dim is None or (dim == 0 and len(x.size) == 1):
        return _unique_values(fresh, x, return_inverse, return_counts)
    return _unique_slices(fresh, x, dim)


def _unique_slices(fresh: Fresh, x: TensorType, dim: int) -> Triple:
    """Eager compares the slices as rows, so that on the CPU the dimension comes first in memory. It
    always returns all three results."""
    if not x.size:
        fail(f"Dimension specified as {dim} but tensor has no dimensions", IndexError)
    d = wrap_dim(dim, len(x.size))
    others = (*x.size[:d], *x.size[d + 1 :])
    for s in others:
        require(
            ne(s, 0),
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied",
        )
    n = _count_distinct(fresh, x.size[d])
    if n.__class__ is int and n == 0:  # there is nothing to compare: eager returns an empty copy
        return x.fresh(), x.fresh((0,), torch.int64), x.fresh((0,), torch.int64)
    if x.device.type == "cuda":
        out = x.fresh((*x.size[:d], n, *x.size[d + 1 :]))
        return out, x.fresh((x.size[d],), torch.int64), x.fresh((n,), torch.int64)
    first, *rest = contiguous_strides((n, *others))
    out = TensorType(
        (*x.size[:d], n, *x.size[d + 1 :]), x.dtype, x.device, (*rest[:d], first, *rest[d:])
    )
    return out, x.fresh((x.size[d],), torch.int64), x.fresh((n,), torch.int64)


mark_writing_forms(Trait.READS_ELSEWHERE, "kthvalue")
mark_writing_forms(Trait.OUT_APART, "kthvalue")
