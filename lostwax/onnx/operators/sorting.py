"""Order: the largest, sorted lists, unique elements, searches."""

from __future__ import annotations

from typing import Any

import torch

from lostwax.onnx.operators.reductions import reduce
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import Size
from lostwax.types import product


@translation("topk")
def topk(
    on: OnnxWriter,
    self: OnnxTensor,
    k: Size,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> list[OnnxTensor]:
    if not self.rank:
        return [self, on.constant(0, torch.int64)]
    x = on.cast(self, _find_sortable(self.dtype))
    found = on.several(
"TopK",
        x, on.size(k), axis=dim % self.rank, largest=int(largest), sorted=int(sorted), outputs=2,
        dtype=[x.dtype, torch.int64],
    )  # fmt: skip
    return [on.cast(found[0], self.dtype), found[1]]


def _find_sortable(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which runtimes sort."""
    return dtype if dtype.is_floating_point else torch.int64


@translation("sort", "sort.stable")
def sort(
    on: OnnxWriter,
    self: OnnxTensor,
    *given: Any,
    dim: int = -1,
    descending: bool = False,
    stable: Any = 0,
) -> list[OnnxTensor]:
    """The elements that are equal stay in their order: `TopK` takes the first of them first."""
    if given:
        dim, descending = (
            (*given, dim, descending)[:2] if len(given) > 1 else (given[0], descending)
        )
    k = self.size[dim] if self.rank else 1
    return topk(on, self, k, dim, largest=descending)


@translation("argsort", "argsort.stable")
def argsort(on: OnnxWriter, self: OnnxTensor, *given: Any, **options: Any) -> OnnxTensor:
    return sort(on, self, *given, **options)[1]


@translation("kthvalue")
def kthvalue(
    on: OnnxWriter, self: OnnxTensor, k: Any, dim: int = -1, keepdim: bool = False
) -> list[OnnxTensor]:
    if not self.rank:
        return [self, on.constant(0, torch.int64)]
    found = topk(on, self, k, dim, largest=False)
    axis = dim % self.rank
    last = [on.Gather(each, on.ints(-1), axis=axis) for each in found]
    return last if keepdim else [on.Squeeze(each, on.ints(axis)) for each in last]


@translation("_unique2")
def unique(
    on: OnnxWriter,
    self: OnnxTensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Any]:
    x = on.Reshape(on.cast(self, _find_sortable(self.dtype)), on.ints(-1))
    found = on.several("Unique", x, sorted=1, outputs=4, dtype=[x.dtype, *[torch.int64] * 3])
    inverse = on.Reshape(found[2], on.shape(self.size), allowzero=1)
    blank = on.constant(torch.empty(0, dtype=torch.int64))
    return [
        on.cast(found[0], self.dtype),
        inverse if return_inverse else blank,
        found[3] if return_counts else blank,
    ]


@translation("unique_consecutive")
def unique_consecutive(
    on: OnnxWriter,
    self: OnnxTensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> list[Any]:
    """The first one of each run: those that are not what is before them."""
    if dim is not None and self.rank != 1:
        raise NotWritten("it compares rows", "use torch.unique")
    x = on.Reshape(self, on.ints(-1))
    last, axis = on.ints(2**63 - 1), on.ints(0)
    differs = on.Not(
        on.Equal(on.Slice(x, on.ints(1), last, axis), on.Slice(x, axis, on.ints(-1), axis))
    )
    is_some = on.Slice(
        on.ConstantOfShape(on.Shape(x), value=_TRUE, dtype=torch.bool), axis, on.ints(1), axis
    )
    begins = on.Concat(is_some, differs, axis=0)
    runs = on.CumSum(on.cast(begins, torch.int64), on.constant(0, torch.int64))
    blank = on.constant(torch.empty(0, dtype=torch.int64))
    found: list[Any] = [on.Compress(x, begins, axis=0), blank, blank]
    if return_inverse:
        places = on.Sub(runs, on.constant(1, torch.int64))
        found[1] = on.Reshape(places, on.shape(self.size), allowzero=1)
    if return_counts:
        places = on.Squeeze(on.NonZero(begins), axis)
        ends = on.Concat(on.Slice(places, on.ints(1), last, axis), on.Shape(x), axis=0)
        found[2] = on.Sub(on.Slice(ends, axis, on.Shape(places), axis), places)
    return found


_TRUE = torch.ones(1, dtype=torch.bool)


@translation("unique_dim")
def unique_dim(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Any]:
    x = on.cast(self, _find_sortable(self.dtype))
    kinds = [x.dtype, *[torch.int64] * 3]
    found = on.several("Unique", x, axis=dim % self.rank, sorted=1, outputs=4, dtype=kinds)
    return [on.cast(found[0], self.dtype), found[2], found[3]]


@translation("bincount")
def bincount(
    on: OnnxWriter, self: OnnxTensor, weights: OnnxTensor | None = None, minlength: Size = 0
) -> OnnxTensor:
    places, one = on.cast(self, torch.int64), on.constant(1, torch.int64)
    least = on.Sub(on.size(minlength), one)  # of nothing there is a largest, too
    most = on.ReduceMax(on.Concat(places, least, axis=0), on.ints(0), keepdims=1)
    dtype = on.out.dtype
    zero = torch.zeros(1, dtype=dtype)
    blank = on.ConstantOfShape(on.Add(most, one), value=zero, dtype=dtype)
    each = on.Expand(on.constant(1, dtype), on.Shape(places))
    each = each if weights is None else on.cast(weights, dtype)
    return on.ScatterElements(blank, places, each, axis=0, reduction="add")


@translation("median.dim")
def median(on: OnnxWriter, self: OnnxTensor, dim: int, keepdim: bool = False) -> list[OnnxTensor]:
    """The lower one of the two in the middle."""
    size = self.size[dim] if self.rank else 1
    return kthvalue(on, self, (size + 1) // 2, dim, keepdim)


@translation("median")
def median_of_all(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    count = product(self.size)
    found = on.several(
        "TopK", on.Reshape(on.cast(self, _find_sortable(self.dtype)), on.ints(-1)),
        on.size((count + 1) // 2), axis=0, largest=0, outputs=2,
        dtype=[_find_sortable(self.dtype), torch.int64],
    )  # fmt: skip
    return on.cast(on.Gather(found[0], on.constant(-1), axis=0), self.dtype)


@translation("bucketize.Tensor")
def bucketize(
    on: OnnxWriter,
    self: OnnxTensor,
    boundaries: OnnxTensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> OnnxTensor:
    """How many bounds are below."""
    return _count_below(on, self, boundaries, right)


def _count_below(on: OnnxWriter, x: OnnxTensor, bounds: OnnxTensor, right: bool) -> OnnxTensor:
    dtype = on.promote(x, bounds)
    alone = on.Unsqueeze(on.cast(x, dtype), on.ints(-1))
    other = on.cast(bounds, dtype)
    below = on.LessOrEqual(other, alone) if right else on.Less(other, alone)
    total = reduce(on, "ReduceSum", on.cast(below, torch.int64), [x.rank])
    return on.cast(total, on.out.dtype)


@translation("searchsorted.Tensor")
def searchsorted_tensor(
    on: OnnxWriter,
    sorted_sequence: OnnxTensor,
    self: OnnxTensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> OnnxTensor:
    bounds = sorted_sequence
    if sorter is not None:
        made = on.GatherElements(bounds, sorter, axis=bounds.rank - 1)
        bounds = OnnxTensor(made.value, made.dtype, bounds.type)
    if bounds.rank > 1:
        bounds = on.Unsqueeze(bounds, on.ints(-2))
        bounds = OnnxTensor(bounds.value, sorted_sequence.dtype)
    is_right = right or side == "right"
    return _count_below(on, self, bounds, is_right)
