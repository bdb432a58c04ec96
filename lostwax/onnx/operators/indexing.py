"""Reading and writing by indices, and sizes that data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.operators.shapes import broadcast, permute
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


@translation("index_select")
def index_select(on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor) -> OnnxTensor:
    if not self.rank:
        return self
    if not index.rank:
        index = on.Unsqueeze(index, on.ints(0))
    return on.Gather(self, index, axis=dim % self.rank)


@translation("gather")
def gather(on: OnnxWriter, self: OnnxTensor, dim: int, index: OnnxTensor, **_: Any) -> OnnxTensor:
    if not self.rank or not index.rank:
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
    made = on.ScatterND(
        front, joined, on.Expand(values, wanted), reduction="add" if accumulate else None
    )
    back = [order.index(d) for d in range(self.rank)]
    return made if back == sorted(back) else on.Transpose(made, perm=back)


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
    made = on.ScatterElements(x, places, updates, axis=dim % max(self.rank, 1), reduction=reduction)
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
    kinds = {
        "sum": "add",
        "add": "add",
        "prod": "mul",
        "multiply": "mul",
        "amax": "max",
        "amin": "min",
    }
    if reduce not in kinds or not include_self:
        raise NotWritten(
            "ScatterElements reduces by sums, products and extrema, with the tensor's own elements",
            "use include_self=True and another reduce",
        )
    return _write_elements(on, self, dim, index, src, kinds[reduce])


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
) -> OnnxTensor:
    if not self.rank:
        raise NotWritten("it has no dims", "use torch.where")
    dim = dim % self.rank
    order = [dim, *(d for d in range(self.rank) if d != dim)]
    places = on.Reshape(index, on.ints(-1, 1))
    front, rows = (permute_all(on, x, order) for x in (self, source))
    made = on.ScatterND(front, places, rows, reduction=reduction)
    back = [order.index(d) for d in range(self.rank)]
    return made if back == sorted(back) else on.Transpose(made, perm=back)


def permute_all(on: OnnxWriter, x: OnnxTensor, order: list[int]) -> OnnxTensor:
    return x if order == sorted(order) else on.Transpose(x, perm=order)


@translation("select_scatter")
def select_scatter(
    on: OnnxWriter, self: OnnxTensor, src: OnnxTensor, dim: int, index: Size
) -> OnnxTensor:
    dim = dim % self.rank
    row = on.Unsqueeze(on.cast(src, self.dtype), on.ints(dim))
    if isinstance(index, int) and index < 0:
        index = self.size[dim] + index
    return _put_slice(on, self, row, dim, index, index + 1)


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
        return _put_slice(on, self, src, dim, begin, stop)
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
