"""Reading and writing at positions held in tensors: index, gather, scatter, masks.

The positions are data: nothing here asks whether they are in range. Where the data decide the
*number* of results (`nonzero`, boolean masks, `repeat_interleave`), the rule takes a fresh size
with its bounds. Embeddings are in `embeddings.py`. Must not know of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.ops.elementwise import new_like
from lostwax.ops.registry import Fresh, mark, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    always_broadcasts,
    broadcast_sizes,
    elementwise_strides,
    fail,
    hint,
    is_met,
    is_one,
    is_same,
    must_be_one,
    require,
    require_same_device,
    require_same_sizes,
    show,
    wrap_dim,
)
from lostwax.ops.spelling import raise_not_implemented, scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Condition, Size, decide, eq, maximum, ne
from lostwax.types import Sizes, TensorType, product

_INDEX = (torch.int64, torch.int32)
_MASK = (torch.bool, torch.uint8)
Indices = Sequence[TensorType | None]


# ------------------------------------------------------------------------------ index and index_put


def _check_indices(x: TensorType, indices: Indices) -> None:
    if not indices:
        fail("at least one index must be provided", IndexError)
    for t in indices:
        if t is not None and t.dtype not in _INDEX and t.dtype not in _MASK:
            fail("tensors used as indices must be long, int, byte or bool tensors", IndexError)
    used = sum(1 if t is None or t.dtype not in _MASK else len(t.size) for t in indices)
    if used > len(x.size):
        fail(f"too many indices for tensor of dimension {len(x.size)} (got {used})", IndexError)


def _positions(x: TensorType, indices: Indices, fresh: Fresh | None) -> list[TensorType | None]:
    """The indices with each mask replaced by as many vectors of positions as it has dimensions.

    If there is no `fresh`, the length of these vectors does not matter and is taken to be 1.
    """
    _check_indices(x, indices)
    out: list[TensorType | None] = []
    for t in indices:
        if t is None or t.dtype not in _MASK:
            out.append(t)
            continue
        for j, s in enumerate(t.size):
            at = len(out) + j
            if not is_met(eq(s, x.size[at])):
                fail(
                    f"The shape of the mask {show(t.size)} at index {j} does not match the "
                    "shape of "
                    f"the indexed tensor {show(x.size)} at index {at}",
                    IndexError,
                )
        count = fresh.size(upper=t.numel()) if fresh else 1
        out += [TensorType((count,), torch.int64, t.device)] * len(t.size)
    return out


def _common_index_size(positions: Indices) -> Sizes:
    sizes = [t.size for t in positions if t is not None]
    try:
        return broadcast_sizes(sizes) if sizes else ()
    except RuntimeError:
        shapes = ", ".join(map(show, sizes))
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


def index_result(x: TensorType, positions: Sequence[TensorType | None]) -> TensorType:
    """The result of `x[positions]`. The common size of the indices replaces the indexed dimensions:
    in their place if they are adjacent, else in front. Its layout is that of a pointwise operator
    over `x` and the indices."""
    common = _common_index_size(positions)
    positions = [*positions, *[None] * (len(x.size) - len(positions))]
    taken = [d for d, t in enumerate(positions) if t is not None]
    if common and 0 not in common and any(x.size[d] == 0 for d in taken):
        fail("index is out of bounds for dimension with size 0", IndexError)
    rest = [d for d in range(len(x.size)) if d not in taken]
    neighbours = not taken or taken[-1] - taken[0] + 1 == len(taken)
    before = taken[0] if taken and neighbours else 0
    size = (*[x.size[d] for d in rest[:before]], *common, *[x.size[d] for d in rest[before:]])
    stride = (
        *[x.stride[d] for d in rest[:before]],
        *[0] * len(common),
        *[x.stride[d] for d in rest[before:]],
    )
    operands = [TensorType(size, x.dtype, x.device, stride)]
    after = len(rest) - before
    for d in taken:
        operands.append(_broadcast_index(positions[d], common, after))
    return TensorType(size, x.dtype, x.device, elementwise_strides(size, operands))


def _broadcast_index(index: TensorType | None, common: Sizes, after: int) -> TensorType:
    """An index broadcast to the common size, with trailing 1s that align it with the result."""
    assert index is not None
    pad = len(common) - len(index.size)
    strides = [
        0 if is_one(s) and not is_one(common[pad + d]) else index.stride[d]
        for d, s in enumerate(index.size)
    ]
    size = (*common, *[1] * after)
    return TensorType(size, torch.int64, index.device, (*[0] * pad, *strides, *[1] * after))


@rule("index.Tensor", "_unsafe_index.Tensor", data=True)
def index(fresh: Fresh, self: TensorType, indices: Indices) -> TensorType:
    return index_result(self, _positions(self, indices, fresh))


mark(Trait.SIZED_BY_MASKS, "index.Tensor", "_unsafe_index.Tensor")


@rule(
    "index_put",
    "_unsafe_index_put",
)
def index_put(
    self: TensorType, indices: Indices, values: TensorType, accumulate: bool = False
) -> TensorType:
    positions = _positions(self, indices, None)
    if values.dtype is not self.dtype:
        fail(
            "Index put requires the source and destination dtypes match, got "
            f"{scalar_type(self.dtype)} for the destination and {scalar_type(values.dtype)} for "
            "the source."
        )
    if not any(t is not None and t.dtype in _MASK for t in indices):
        _check_values(values.size, index_result(self, positions).size)
    return new_like(self)


mark(Trait.AS_FIRST, "index_put")


@rule("_index_put_impl")
def index_put_impl(self: TensorType, *_: object, **__: object) -> TensorType:
    return new_like(self)


def _check_values(values: Sizes, target: Sizes) -> None:
    text = (
        f"shape mismatch: value tensor of shape {show(values)} cannot be broadcast to indexing "
        f"result of shape {show(target)}"
    )
    if len(values) > len(target):
        fail(text)
    for v, t in zip(reversed(values), reversed(target), strict=False):
        if is_one(v) or is_same(v, t) or always_broadcasts(v, t):
            continue
        # The example broadcasts a 1, which is sound only if that size is always 1.
        if not (hint(v) == 1 != hint(t) and decide(eq(v, 1))):
            require(eq(v, 1 if must_be_one(v, t) else t), text)


@rule("_unsafe_masked_index")
def unsafe_masked_index(
    self: TensorType, mask: TensorType, indices: Indices, fill: Scalar
) -> TensorType:
    return index_result(self, list(indices))


@rule("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(self: TensorType, *_: object, **__: object) -> TensorType:
    return new_like(self)


# ----------------------------------------------------------------------- one dimension, by a vector


@rule("index_select")
def index_select(self: TensorType, dim: int, index: TensorType) -> TensorType:
    d = wrap_dim(dim, len(self.size))
    if len(index.size) > 1:
        fail("index_select(): Index is supposed to be a vector", IndexError)
    if index.dtype not in _INDEX:
        fail("index_select(): Expected dtype int32 or int64 for index")
    count: Size = index.size[0] if index.size else 1
    if not self.size:
        if not is_met(eq(count, 1)):
            fail(f"index_select(): Index to scalar can have only 1 value, got {count} value(s)")
        return self.fresh()
    require_same_device((self, index), "index_select")
    return self.fresh((*self.size[:d], count, *self.size[d + 1 :]))


def _check_source(name: str, x: TensorType, d: int, index: TensorType, source: TensorType) -> None:
    """The checks that `index_add_` and `index_reduce_` share."""
    if len(index.size) > 1:
        fail(
            f"{name}: Index is supposed to be a vector, but got dim: {len(index.size)} with type: "
            f"{scalar_type(index.dtype)} and size: {show(index.size)}",
            IndexError,
        )
    if index.dtype not in _INDEX:
        fail(f"{name}: Expected dtype int32/int64 for index but got: {scalar_type(index.dtype)}")
    if source.dtype is not x.dtype:
        fail(
            f"{name}: self ({scalar_type(x.dtype)}) and source ({scalar_type(source.dtype)}) "
            "must have the same scalar type"
        )
    count: Size = index.size[0] if index.size else 1
    given: Size = source.size[d] if source.size else 1
    if not is_met(eq(count, given)):
        fail(
            f"{name}: Number of indices ({count}) should be equal to source.size(dim): ({given}), "
            f"for dim: {d}"
        )
    others = list(x.size[:d] + x.size[d + 1 :]), list(source.size[:d] + source.size[d + 1 :])
    text = (
        "source tensor shape must match self tensor shape, excluding the specified dimension. "
        f"Got self.shape = {show(x.size)} source.shape = {show(source.size)}"
    )
    require_same_sizes(*others, text)


@rule("index_add")
def index_add(
    self: TensorType, dim: int, index: TensorType, source: TensorType, *, alpha: Scalar = 1
) -> TensorType:
    _check_source("index_add_()", self, wrap_dim(dim, len(self.size)), index, source)
    return self.fresh()


@rule("index_reduce")
def index_reduce(
    self: TensorType,
    dim: int,
    index: TensorType,
    source: TensorType,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorType:
    if reduce not in ("prod", "mean", "amax", "amin"):
        fail(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin "
            f"but got {reduce}."
        )
    _check_source("index_reduce_()", self, wrap_dim(dim, len(self.size)), index, source)
    return self.fresh()


@rule("index_copy")
def index_copy(self: TensorType, dim: int, index: TensorType, source: TensorType) -> TensorType:
    d = wrap_dim(dim, len(self.size))
    if len(index.size) >= 2:
        fail(
            f"index_copy_(): Index should have dimension 1 or 0 (got {len(index.size)})", IndexError
        )
    if source.size and self.size and len(source.size) != len(self.size):
        fail(
            "index_copy_(): When source and destination are not scalars, their dimensionality "
            f"must match. Source dimensionality ({len(source.size)}), destination dimensionality "
            f"({len(self.size)})",
            IndexError,
        )
    if index.dtype is not torch.int64:
        fail(f"index_copy_(): Expected a long tensor for index, but got {scalar_type(index.dtype)}")
    if source.dtype is not self.dtype:
        fail(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{scalar_type(self.dtype)} and (source) {scalar_type(source.dtype)}"
        )
    given: Size = source.size[d] if source.size else 1
    for at, s in enumerate(self.size[:d] + self.size[d + 1 :] if source.size else ()):
        other = (source.size[:d] + source.size[d + 1 :])[at]
        if not is_met(eq(s, other)):
            fail(
                "index_copy_(): Source/destination tensor must have same slice shapes. Destination "
                f"slice shape: {s} at dimension {d} and source slice shape: {other} at dimension 0."
            )
    if not is_met(eq(index.numel(), given)):
        fail(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to "
            "source.size(dim) "
            f"({given})",
            IndexError,
        )
    return self.fresh()


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: TensorType, dim: int, index: TensorType, value: Any) -> TensorType:
    wrap_dim(dim, len(self.size))
    if isinstance(value, TensorType) and value.size:
        fail(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{len(value.size)} dimension(s)."
        )
    if index.dtype is not torch.int64:
        fail("index_fill_(): Expected dtype int64 for index.", IndexError)
    if isinstance(value, complex) and not self.dtype.is_complex:
        fail("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    if len(index.size) > 1:
        fail("Index has to be a vector/scalar")
    return new_like(self)


# ------------------------------------------------------------------------------- gather and scatter


def _demand(condition: Condition, index: TensorType, text: str) -> None:
    """Require this if the index has elements: eager takes an empty one of any shape and dtype."""
    if condition is True:
        return
    count = index.numel()
    refused = condition is False or condition.hint is False
    if refused and hint(count) == 0 and decide(eq(count, 0)):
        return
    require(condition, text)


def _demand_index(name: str, index: TensorType, rank: int, other: str) -> None:
    _demand(index.dtype in _INDEX, index, f"{name}(): Expected dtype int32/int64 for index")
    _demand(
        max(rank, 1) == max(len(index.size), 1),
        index,
        f"Index tensor must have the same number of dimensions as {other} tensor",
    )


@rule("gather")
def gather(
    self: TensorType, dim: int, index: TensorType, *, sparse_grad: bool = False
) -> TensorType:
    d = wrap_dim(dim, len(self.size))
    _demand_index("gather", index, len(self.size), "input")
    for i, (have, asked) in enumerate(zip(self.size, index.size, strict=False)):
        if i != d:
            _demand(
                asked <= have,
                index,
                f"Size does not match at dimension {i} expected index {show(index.size)} to be "
                f"no larger than self {show(self.size)} apart from dimension {d}",
            )
    return self.fresh(index.size)


def _scatter(
    name: str, x: TensorType, dim: int, index: TensorType, source: TensorType | None
) -> TensorType:
    d = wrap_dim(dim, len(x.size))
    _demand_index(name, index, len(x.size), "self")
    text = (
        f"Expected index {show(index.size)} to be no larger than self {show(x.size)} apart "
        f"from dimension {d}"
    )
    if source is not None:
        _demand(
            max(len(source.size), 1) == max(len(index.size), 1),
            index,
            "Index tensor must have the same number of dimensions as src tensor",
        )
        if source.dtype is not x.dtype:
            fail(f"{name}(): Expected self.dtype to be equal to src.dtype")
        text += f" and to be no larger size than src {show(source.size)}"
    for i, (asked, have) in enumerate(zip(index.size, x.size, strict=False)):
        if i != d:
            _demand(asked <= have, index, text)
    for asked, have in zip(index.size, source.size if source else (), strict=False):
        _demand(asked <= have, index, text)
    return x.fresh()


@rule("scatter.src")
def scatter_src(self: TensorType, dim: int, index: TensorType, src: TensorType) -> TensorType:
    return _scatter("scatter", self, dim, index, src)


@rule("scatter.value")
def scatter_value(self: TensorType, dim: int, index: TensorType, value: Scalar) -> TensorType:
    return _scatter("scatter", self, dim, index, None)


@rule("scatter.reduce")
def scatter_reduce(
    self: TensorType, dim: int, index: TensorType, src: TensorType, *, reduce: str
) -> TensorType:
    _check_reduce(reduce)
    return _scatter("scatter", self, dim, index, src)


@rule("scatter.value_reduce")
def scatter_value_reduce(
    self: TensorType, dim: int, index: TensorType, value: Scalar, *, reduce: str
) -> TensorType:
    _check_reduce(reduce)
    return _scatter("scatter", self, dim, index, None)


def _check_reduce(reduce: str) -> None:
    if reduce not in ("add", "multiply"):
        fail("reduce argument must be either add or multiply.")


@rule("scatter_add")
def scatter_add(self: TensorType, dim: int, index: TensorType, src: TensorType) -> TensorType:
    return _scatter("scatter", self, dim, index, src)


@rule("scatter_reduce.two")
def scatter_reduce_two(
    self: TensorType,
    dim: int,
    index: TensorType,
    src: TensorType,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorType:
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        fail(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    return _scatter("scatter", self, dim, index, src)


# -------------------------------------------------------------- masks, positions in the flat tensor


@rule("masked_select", data=True)
def masked_select(fresh: Fresh, self: TensorType, mask: TensorType) -> TensorType:
    if mask.dtype not in _MASK:
        fail("masked_select: expected BoolTensor for mask")
    size = broadcast_sizes((mask.size, self.size))
    return self.fresh((fresh.size(upper=product(size)),))


@rule("masked_scatter")
def masked_scatter(self: TensorType, mask: TensorType, source: TensorType) -> TensorType:
    if mask.dtype is not torch.bool:
        fail(
            "masked_scatter_ only supports boolean masks, but got mask with dtype "
            f"{scalar_type(mask.dtype)}"
        )
    size = broadcast_sizes((mask.size, self.size))
    if source.dtype is not self.dtype:
        fail(
            "masked_scatter: expected self and source to have same dtypes but got"
            f"{scalar_type(self.dtype)} and {scalar_type(source.dtype)}"
        )
    return self.fresh(size)


@rule("masked_scatter_backward")
def masked_scatter_backward(
    grad_output: TensorType, mask: TensorType, sizes: Sequence[Size]
) -> TensorType:
    return grad_output.fresh(tuple(sizes))


@rule("take")
def take(self: TensorType, index: TensorType) -> TensorType:
    if index.dtype is not torch.int64:
        fail(f"take(): Expected a long tensor for index, but got {scalar_type(index.dtype)}")
    if not is_met(ne(self.numel(), 0) | eq(index.numel(), 0)):
        fail("take(): tried to take from an empty tensor", IndexError)
    return self.fresh(index.size)


@rule("put")
def put(
    self: TensorType, index: TensorType, source: TensorType, accumulate: bool = False
) -> TensorType:
    if index.dtype is not torch.int64:
        fail(f"put_(): Expected a long tensor for index, but got {scalar_type(index.dtype)}")
    if source.dtype is not self.dtype:
        fail(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{scalar_type(self.dtype)} and source.dtype = {scalar_type(source.dtype)}"
        )
    have, want = source.numel(), index.numel()
    if not is_met(eq(have, want)):
        fail(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {have}, index.numel() = {want}",
            IndexError,
        )
    if not is_met(ne(self.numel(), 0) | eq(want, 0)):
        fail("put_(): Tried to put elements into an empty tensor", IndexError)
    return new_like(self)


@rule("nonzero", data=True)
def nonzero(fresh: Fresh, self: TensorType) -> TensorType:
    count = fresh.size(upper=self.numel())
    # Eager collects the coordinates of one dimension after the other.
    rows = maximum(count, 1) if self.device.type == "cuda" else count
    return TensorType((count, len(self.size)), torch.int64, self.device, (1, rows))


mark(Trait.COUNTS_NONZERO, "nonzero")


@rule("nonzero_static")
def nonzero_static(self: TensorType, *, size: Size, fill_value: int = -1) -> TensorType:
    require(size >= 0, "nonzero_static: 'size' must be an non-negative integer")
    if self.device.type == "cuda":  # its layout is that of `nonzero`
        return TensorType((size, len(self.size)), torch.int64, self.device, (1, maximum(size, 1)))
    return self.fresh((size, len(self.size)), torch.int64)


@rule("repeat_interleave.Tensor", data=True)
def repeat_interleave(
    fresh: Fresh, repeats: TensorType, *, output_size: Size | None = None
) -> TensorType:
    if len(repeats.size) != 1:
        fail("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in _INDEX:
        raise_not_implemented("repeat_interleave_cpu", repeats.dtype)
    count = fresh.size() if output_size is None else output_size
    return repeats.fresh((count,))


mark_writing_forms(
    Trait.READS_ELSEWHERE,
    "index index_add index_copy index_put _index_put_impl index_reduce index_select "
    "scatter scatter_add scatter_reduce gather take put take_along_dim masked_scatter "
    "masked_select",
)
mark_writing_forms(Trait.READS_NUMBER_FIRST, "index_fill index_put _index_put_impl")
mark_writing_forms(Trait.OUT_APART, "gather take masked_select")
mark_writing_forms(Trait.EXACT_OUT, "gather")


mark(Trait.FAILS, "masked_scatter")
