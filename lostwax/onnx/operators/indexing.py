"""Reading and writing by indices, and sizes that data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from lostwax.onnx.operators.pointwise import divide_down
from lostwax.onnx.operators.shapes import broadcast, permute
from lostwax.onnx.patterns.fusions import find_maker, is_number, read_constant
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter, Operand
from lostwax.ops.shapes import broadcast_sizes
from lostwax.sym import Size, known


@translation("embedding")
def embedding(
    on: OnnxWriter, weight: OnnxTensor, indices: OnnxTensor, *_: Any, **__: Any
) -> OnnxTensor:
    return on.Gather(weight, indices, axis=0)


@translation("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    on: OnnxWriter,
    weight: OnnxTensor,
    indices: OnnxTensor,
    offsets: OnnxTensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: OnnxTensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Any]:
    """Rows of the table are added to those of their bags: sums, means (1), the largest (2)."""
    out, dtype = on.out[0], weight.dtype
    at, one = on.ints(1), on.constant(1, torch.int64)
    starts = on.cast(offsets, torch.int64)
    count, width = out.size
    bag_count = count + 1 if include_last_offset else count  # what comes after the last one
    places = on.Range(on.constant(0), on.scalar(indices.size[0]), one)
    begun = on.cast(on.LessOrEqual(starts, on.Unsqueeze(places, at)), torch.int64)
    bags = on.Sub(on.ReduceSum(begun, at, keepdims=1), one)
    rows = on.Gather(weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = on.Mul(rows, on.Unsqueeze(per_sample_weights, at))
    counts = on.Expand(on.constant(1, dtype), on.Shape(indices))
    if padding_idx >= 0:
        is_read = on.Not(on.Equal(indices, on.constant(padding_idx, indices.dtype)))
        counts = on.cast(is_read, dtype)
        rest = on.constant(float("-inf") if mode == 2 else 0.0, dtype)
        rows = on.Where(on.Unsqueeze(is_read, at), rows, rest)
    first = torch.full((1,), float("-inf") if mode == 2 else 0.0, dtype=dtype)
    blank = on.ConstantOfShape(on.shape((bag_count, width)), value=first, dtype=dtype)
    made = _write_reduced(on, "ScatterND", blank, bags, rows, "max" if mode == 2 else "add")
    if mode:
        none = torch.zeros(1, dtype=dtype)
        blank = on.ConstantOfShape(on.size(bag_count), value=none, dtype=dtype)
        total = on.Unsqueeze(_write_reduced(on, "ScatterND", blank, bags, counts, "add"), at)
        if mode == 1:
            made = on.Div(made, on.Max(total, on.constant(1, dtype)))
        else:
            made = on.Where(on.Greater(total, on.constant(0, dtype)), made, on.constant(0, dtype))
    if include_last_offset:
        made = on.Slice(made, on.ints(0), on.ints(-1), on.ints(0))
    return [made, None, None, None]


@translation("index_select")
def index_select(on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor) -> OnnxTensor:
    if not self.rank:
        return self
    if not index.rank:
        index = on.Unsqueeze(index, on.ints(0))
    return on.Gather(self, index, axis=dim % self.rank)


@translation("gather")
def gather(on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor, **_: Any) -> OnnxTensor:
    if not self.rank:
        return broadcast(on, self, index.size)
    if not index.rank:
        return self
    return on.GatherElements(self, index, axis=dim % self.rank)


@translation("nonzero")
def nonzero(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    if not self.rank:  # ONNX takes it for a list of one
        x = on.NonZero(on.Unsqueeze(on.cast(self, torch.bool), on.ints(0)))
        return on.Slice(on.Transpose(x, perm=[1, 0]), on.ints(0), on.ints(0), on.ints(1))
    return on.Transpose(on.NonZero(on.cast(self, torch.bool)), perm=[1, 0])


@translation("masked_select")
def masked_select(on: OnnxWriter, self: OnnxTensor, mask: OnnxTensor) -> OnnxTensor:
    size = broadcast_sizes([self.size, mask.size])
    flat = [on.Reshape(broadcast(on, x, size), on.ints(-1)) for x in (self, mask)]
    return on.Compress(flat[0], flat[1], axis=0)


@translation("repeat_interleave.Tensor")
def repeat_interleave(
    on: OnnxWriter, repeats: OnnxTensor, *, output_size: Any = None
) -> OnnxTensor:
    """At each place how many of the parts end at or before it."""
    counts = on.cast(repeats, torch.int64)
    ends = on.CumSum(counts, on.constant(0, torch.int64))
    total = on.ReduceSum(counts, on.ints(0), keepdims=0)
    places = on.Range(on.constant(0), total, on.constant(1))
    is_over = on.LessOrEqual(ends, on.Unsqueeze(places, on.ints(1)))
    made = on.ReduceSum(on.cast(is_over, torch.int64), on.ints(1), keepdims=0)
    return on.cast(made, on.out.dtype)


# ------------------------------------------------------------------------------- index


@translation("index.Tensor", "_unsafe_index.Tensor")
def index(on: OnnxWriter, self: OnnxTensor, indices: list[OnnxTensor | None]) -> OnnxTensor:
    given = _split_masks(on, self, indices)
    dims = [d for d, each in enumerate(given) if each is not None]
    tensors = [each for each in given if each is not None]
    if len(dims) == 1 and tensors[0].type is not None:
        return on.Gather(self, tensors[0], axis=dims[0])
    rest = [d for d in range(self.rank) if d not in dims]
    front = permute(on, self, [*dims, *rest])
    joined, rank = _join(on, tensors)
    made = on.GatherND(front, joined)
    if dims == list(range(dims[0], dims[-1] + 1)) and dims[0] > 0:  # they stay where they were
        before = dims[0]
        order = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(rest))]
        made = on.Transpose(made, perm=order)
    return made


def _split_masks(
    on: OnnxWriter, self: OnnxTensor, indices: list[OnnxTensor | None]
) -> list[OnnxTensor | None]:
    """A mask is as many lists of integers as it has dims."""
    found: list[OnnxTensor | None] = []
    for each in indices:
        if each is None or each.dtype not in (torch.bool, torch.uint8):
            found.append(each)
            continue
        places = on.NonZero(on.cast(each, torch.bool))
        rows = (
            on.several("Split", places, on.ints(*[1] * each.rank), axis=0, outputs=each.rank)
            if each.rank > 1
            else [places]
        )
        for row in rows:
            made = on.Squeeze(row, on.ints(0))
            found.append(OnnxTensor(made.value, torch.int64))
    return found


def _join(on: OnnxWriter, tensors: list[OnnxTensor]) -> tuple[OnnxTensor, int]:
    """Lists of indices as one tensor, whose rows say where; and of how many dims rows there are."""
    wide = [on.cast(x, torch.int64) for x in tensors]
    if any(x.type is None for x in wide):  # of masks: lists of one length, or numbers
        rank, spread = 1, [on.Unsqueeze(x, on.ints(-1)) for x in wide]
        known = [x for x in wide if x.type is not None]
        if any(x.size not in ((), (1,)) for x in known):
            raise NotWritten("it indexes by a mask and by a list together", "use mask.nonzero()")
        if known:
            like = next(x for x in wide if x.type is None)
            length = on.Shape(like)
            spread = [
                on.Unsqueeze(x if x.type is None else on.Expand(x, length), on.ints(-1))
                for x in wide
            ]
    else:
        size = broadcast_sizes([x.size for x in wide])
        rank = len(size)
        spread = [on.Unsqueeze(broadcast(on, x, size), on.ints(-1)) for x in wide]
    return (spread[0] if len(spread) == 1 else on.Concat(*spread, axis=-1)), rank


@translation("index_put", "_unsafe_index_put")
def index_put(
    on: OnnxWriter,
    self: OnnxTensor,
    indices: list[OnnxTensor | None],
    values: OnnxTensor,
    accumulate: bool = False,
) -> OnnxTensor:
    if len(indices) == 1 and _is_mask(indices[0], self) and not values.rank and not accumulate:
        return on.Where(indices[0], values, self)
    given = _split_masks(on, self, indices)
    dims = [d for d, each in enumerate(given) if each is not None]
    places = given[dims[0]]
    if len(dims) == 1 and places is not None and places.type is not None and places.rank < 2:
        rows = _lay_rows(on, self, dims[0], places, values)
        return _write_rows(
            on, self, dims[0], places, rows, "add" if accumulate else None, from_end=True
        )
    rest = [d for d in range(self.rank) if d not in dims]
    order = [*dims, *rest]
    front = permute(on, self, order)
    joined, rank = _join(on, [each for each in given if each is not None])
    kept = [self.size[d] for d in rest]
    rows = on.Shape(joined, start=0, end=-1)
    wanted = on.Concat(rows, on.shape(kept), axis=0) if kept else rows
    is_inside = dims == list(range(dims[0], dims[-1] + 1)) and dims[0] > 0
    if is_inside and values.rank > len(rest) - dims[0]:
        values = _move_rows(on, values, rank, dims[0], len(rest))
    added = "add" if accumulate else None
    made = _write_reduced(on, "ScatterND", front, joined, on.Expand(values, wanted), added)
    back = [order.index(d) for d in range(self.rank)]
    return made if back == sorted(back) else on.Transpose(made, perm=back)


def _lay_rows(
    on: OnnxWriter, self: OnnxTensor, dim: int, places: OnnxTensor, values: OnnxTensor
) -> OnnxTensor:
    """Values for rows of a dim, for each place one."""
    before, after = self.size[:dim], self.size[dim + 1 :]
    rows = broadcast(on, values, (*before, *places.size, *after))
    return rows if places.rank else on.Unsqueeze(rows, on.ints(dim))


def _is_mask(each: OnnxTensor | None, self: OnnxTensor) -> bool:
    return each is not None and each.dtype is torch.bool and each.size == self.size


def _move_rows(on: OnnxWriter, values: OnnxTensor, rank: int, before: int, rest: int) -> OnnxTensor:
    """Values of `x[:, i, :]` with the dims of the indices first, as `ScatterND` takes them."""
    total = rank + rest
    lead = total - values.rank
    full = on.Unsqueeze(values, on.ints(*range(lead))) if lead else values
    order = [*range(before, before + rank), *range(before), *range(before + rank, total)]
    return on.Transpose(full, perm=order)


# ------------------------------------------------------------------------------- scatter


def _scatter(reduction: str | None) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor, src: Operand, **_: Any
    ) -> OnnxTensor:
        return _write_elements(on, self, dim, index, src, reduction)

    return write


def _write_elements(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int,
    index: OnnxTensor,
    src: Operand,
    reduction: str | None,
) -> OnnxTensor:
    is_scalar = not self.rank
    x = on.Unsqueeze(self, on.ints(0)) if is_scalar else self
    places = index if index.rank else on.Unsqueeze(index, on.ints(0))
    if isinstance(src, OnnxTensor) and src.rank:
        updates = src
        if src.size != index.size:  # only so much of it is read
            axes = list(range(src.rank))
            zeros = on.ints(*[0] * src.rank)
            updates = on.Slice(src, zeros, on.Shape(index), on.ints(*axes))
    elif isinstance(src, OnnxTensor) and src.type is not None and index.rank == 0:
        updates = on.Unsqueeze(src, on.ints(0))
    else:
        updates = on.Expand(on.operand(src, self.dtype), on.Shape(places))
    made = _write_reduced(
        on, "ScatterElements", x, places, updates, reduction, dim % max(self.rank, 1)
    )
    return on.Squeeze(made, on.ints(0)) if is_scalar else made


translation("scatter.src", "scatter.value")(_scatter(None))
translation("scatter_add")(_scatter("add"))


@translation("scatter_reduce.two", "scatter.reduce", "scatter.value_reduce")
def scatter_reduce(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int,
    index: OnnxTensor,
    src: Operand,
    reduce: str = "",
    include_self: bool = True,
    **_: Any,
) -> OnnxTensor:
    reduction, start = _REDUCTIONS.get(reduce, ("", 0))
    if not reduction:
        raise NotWritten(f"it reduces by {reduce!r}", f"use one of {', '.join(_REDUCTIONS)}")
    if reduce in ("amax", "amin"):
        start = _find_least(self.dtype, reduce == "amax")
    if not include_self:
        self = _like(_write_elements(on, self, dim, index, start, None), self)
    made = _write_elements(on, self, dim, index, src, reduction)
    if reduce != "mean":
        return made
    ones = on.ConstantOfShape(
        on.Shape(self), value=torch.ones(1, dtype=self.dtype), dtype=self.dtype
    )
    counts = _like(ones, self)
    if not include_self:
        counts = _like(_write_elements(on, counts, dim, index, 0, None), self)
    counts = _write_elements(on, counts, dim, index, 1, "add")
    return on.Div(made, counts) if self.dtype.is_floating_point else divide_down(on, made, counts)


_REDUCTIONS = {
    "sum": ("add", 0), "add": ("add", 0), "prod": ("mul", 1), "multiply": ("mul", 1),
    "amax": ("max", 0), "amin": ("min", 0), "mean": ("add", 0),
}  # fmt: skip
"""How ONNX calls a reduction, and what changes nothing in it."""


def _find_least(dtype: torch.dtype, is_least: bool) -> Any:
    """What is below, or above, all others."""
    if dtype is torch.bool:
        return not is_least
    if dtype.is_floating_point:
        return float("-inf") if is_least else float("inf")
    return torch.iinfo(dtype).min if is_least else torch.iinfo(dtype).max


def _like(x: OnnxTensor, other: OnnxTensor) -> OnnxTensor:
    """With the type of another."""
    return OnnxTensor(x.value, x.dtype, other.type)


@translation("index_copy")
def index_copy(
    on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor, source: OnnxTensor
) -> OnnxTensor:
    return _write_rows(on, self, dim, index, source, None)


@translation("index_add")
def index_add(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int,
    index: OnnxTensor,
    source: OnnxTensor,
    *,
    alpha: Any = 1,
) -> OnnxTensor:
    if alpha != 1:
        source = on.Mul(source, on.operand(alpha, source.dtype))
    return _write_rows(on, self, dim, index, source, "add")


def _write_rows(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int,
    index: OnnxTensor,
    source: OnnxTensor,
    reduction: str | None,
    from_end: bool = False,
) -> OnnxTensor:
    """Rows of a dim, of which only those that the index names are written; it may count some from
    the end."""
    if not self.rank:
        x, rows = (on.Reshape(each, on.ints(-1)) for each in (self, source))
        made = _write_reduced(
            on, "ScatterND", x, on.Reshape(index, on.ints(-1, 1)), rows, reduction
        )
        return on.Squeeze(made, on.ints(0))
    dim = dim % self.rank
    start = None if reduction or on.opset < _WITH_CACHES else _find_first(on, index.value)
    if start is not None and (start.constant is not None or not from_end):
        at = on.ints(int(start.constant)) if start.constant is not None else None
        return write_from(on, self, source, dim, at or on.Reshape(start, on.ints(1)))
    if dim == 0:
        return _write_reduced(
            on, "ScatterND", self, on.Reshape(index, on.ints(-1, 1)), source, reduction
        )
    shape = [-1 if d == dim else 1 for d in range(self.rank)]
    places = on.Expand(on.Reshape(index, on.ints(*shape)), on.Shape(source))
    return _write_reduced(on, "ScatterElements", self, places, source, reduction, dim)


def _write_reduced(
    on: OnnxWriter,
    op: str,
    x: OnnxTensor,
    places: OnnxTensor,
    updates: OnnxTensor,
    reduction: str | None,
    axis: int | None = None,
) -> OnnxTensor:
    """`ScatterElements` or `ScatterND`. Sums and the like of half precision in single: runtimes
    have no others."""
    is_half = reduction is not None and x.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if is_half else x.dtype
    wide = on.cast(x, dtype), places, on.cast(updates, dtype)
    return on.cast(on.write(op, wide, axis=axis, reduction=reduction), x.dtype)


_WITH_CACHES = 24
"""The opset from which on `TensorScatter` is there."""


def write_from(
    on: OnnxWriter, self: OnnxTensor, rows: OnnxTensor, dim: int, start: OnnxTensor
) -> OnnxTensor:
    """Rows of a dim, one behind the other from a place on, a list of one number. Runtimes write
    them where the tensor lies if nobody else reads it."""
    first = None if start.constant is not None and not start.constant.any() else start
    if dim == 0:  # the first dim of the operator is a batch
        x, y = (on.Unsqueeze(each, on.ints(0)) for each in (self, rows))
        return on.Squeeze(on.TensorScatter(x, y, first, axis=1), on.ints(0))
    if first is not None:
        first = on.Expand(first, on.shape(self.size[:1]))
    return on.TensorScatter(self, rows, first, axis=dim)


def _find_first(on: OnnxWriter, value: ir.Value | None) -> OnnxTensor | None:
    """The first of places that lie one behind the other; None if they do not."""
    data = read_constant(value)
    if data is not None:
        first = int(data[0]) if data.dim() == 1 and data.numel() else -1
        steps = torch.arange(first, first + data.numel(), dtype=data.dtype)
        return on.constant(first, torch.int64) if first >= 0 and data.equal(steps) else None
    places = find_maker(value, "Range")
    if places is not None and is_number(places.inputs[2], 1):
        return _take(on, places.inputs[0])
    total = find_maker(value, "Add")
    for x, y in () if total is None else (total.inputs, total.inputs[::-1]):
        begin, added = _find_first(on, x), _take(on, y)
        is_alone = added is not None and added.type is not None and not added.type.size
        if begin is not None and added is not None and is_alone:
            return added if is_number(begin, 0) else on.Add(begin, added)
    return None


def _take(on: OnnxWriter, value: ir.Value | None) -> OnnxTensor | None:
    if value is None or value.dtype is not ir.DataType.INT64:
        return None
    data = read_constant(value)
    return (
        on.constant(data)
        if data is not None
        else OnnxTensor(value, torch.int64, on.types.get(value))
    )


@translation("select_scatter")
def select_scatter(
    on: OnnxWriter, self: OnnxTensor, src: OnnxTensor, dim: int, index: Size
) -> OnnxTensor:
    dim = dim % self.rank
    row = on.Unsqueeze(on.cast(src, self.dtype), on.ints(dim))
    if isinstance(index, int):
        index = index if index >= 0 else self.size[dim] + index
        return _put_slice(on, self, row, dim, index, index + 1)
    place = on.size(index)
    if known(index >= 0) is not True:  # it may count from the end
        place = on.Mod(place, on.size(self.size[dim]))
    if on.opset >= _WITH_CACHES:
        return write_from(on, self, row, dim, place)
    return _write_rows(on, self, dim, place, row, None)


@translation("slice_scatter")
def slice_scatter(
    on: OnnxWriter,
    self: OnnxTensor,
    src: OnnxTensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> OnnxTensor:
    dim = dim % self.rank
    size = self.size[dim]
    src = on.cast(src, self.dtype)
    first, last = 0 if start is None else start, _LAST if end is None else end
    begin, stop = _clip(first, size), _clip(last, size)
    if step == 1 and begin is not None and stop is not None:
        if begin == 0 and stop == size:
            return src
        if isinstance(begin, int) or on.opset >= _WITH_CACHES:
            return _put_slice(on, self, src, dim, begin, stop)
        rows = on.Range(on.scalar(begin), on.scalar(stop), on.constant(1))
        return _write_rows(on, self, dim, rows, src, None)
    every = on.Range(on.constant(0), on.scalar(size), on.constant(1))
    rows = on.Slice(every, on.size(first), on.size(last), on.ints(0), on.ints(step))
    return _write_rows(on, self, dim, rows, src, None)


_LAST = 2**63 - 1


def _clip(n: Size, size: Size) -> Size | None:
    """A bound of a slice as a place; None where it is not known to be one."""
    if n == size or (isinstance(n, int) and n >= _LAST):
        return size
    if isinstance(n, int) and isinstance(size, int):
        return min(max(n + size if n < 0 else n, 0), size)
    return n if known(n >= 0) is True and known(n <= size) is True else None


def _put_slice(
    on: OnnxWriter, self: OnnxTensor, src: OnnxTensor, dim: int, start: Size, end: Size
) -> OnnxTensor:
    """What is before, what is put there, what is after."""
    if on.opset >= _WITH_CACHES:
        return write_from(on, self, src, dim, on.size(start))
    axis = on.ints(dim)
    parts = [src]
    if start != 0:
        parts.insert(0, on.Slice(self, on.ints(0), on.size(start), axis))
    if end != self.size[dim]:
        parts.append(on.Slice(self, on.size(end), on.ints(_LAST), axis))
    return parts[0] if len(parts) == 1 else on.Concat(*parts, axis=dim)


@translation("masked_scatter")
def masked_scatter(
    on: OnnxWriter, self: OnnxTensor, mask: OnnxTensor, source: OnnxTensor
) -> OnnxTensor:
    spread = broadcast(on, mask, on.out.size)
    x = broadcast(on, self, on.out.size)
    places = on.Transpose(on.NonZero(spread), perm=[1, 0])
    flat = on.Reshape(source, on.ints(-1))
    taken = on.Slice(flat, on.ints(0), on.Shape(places, start=0, end=1), on.ints(0))
    return on.ScatterND(x, places, taken)
