"""Views and rearrangements: ONNX has no memory, so all of them are about sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import Expr, Size, known, maximum, ne
from lostwax.types import product

Sizes = Sequence[Size]


@translation("view", "_unsafe_view", "reshape", "flatten.using_ints", "unflatten.int", "view_copy",
             "_reshape_copy", "view_as", "reshape_as", "_reshape_alias")  # fmt: skip
def view(on: OnnxWriter, self: OnnxTensor, *_: Any, **__: Any) -> OnnxTensor:
    return reshape(on, self, on.out.size)


def reshape(on: OnnxWriter, self: OnnxTensor, size: Sizes) -> OnnxTensor:
    """With 0 where a size stays, and -1 for one that follows from the others, no size that varies
    need be computed."""
    size = tuple(size)
    if self.type is not None and self.size == size:
        return self
    whole = _find_product(on, self, size)
    if whole is not None:
        return whole
    if 0 in size:  # it would mean "as it is"
        return on.Reshape(self, on.shape(size), allowzero=1)
    before = self.size if self.type is not None else ()
    short: list[Size] = [
        0 if isinstance(n, Expr) and i < len(before) and before[i] == n else n
        for i, n in enumerate(size)
    ]
    open_places = [i for i, n in enumerate(short) if isinstance(n, Expr)]
    if len(open_places) == 1:
        others = product([n for i, n in enumerate(size) if i != open_places[0]])
        if known(ne(others, 0)) is True:
            short[open_places[0]] = -1
    if any(isinstance(n, Expr) for n in short):
        # A size of 0 at run time must not be taken for "as it is".
        return on.Reshape(self, on.shape(size), allowzero=1)
    return on.Reshape(self, on.shape(short))


def _find_product(on: OnnxWriter, self: OnnxTensor, size: Sizes) -> OnnxTensor | None:
    """The product of a matrix with all rows of a tensor, which the program lays in one dim for it
    and parts again: `MatMul` takes them as they are."""
    product = self.value.producer()
    if product is None or product.op_type not in ("MatMul", "Gemm"):
        return None
    rows, matrix, *more = product.inputs
    laid = None if rows is None else rows.producer()
    if laid is None or laid.op_type != "Reshape" or matrix is None or laid.inputs[0] is None:
        return None
    source, second = on.types.get(laid.inputs[0]), on.types.get(matrix)
    first = on.types.get(rows) if rows is not None else None
    if source is None or first is None or second is None or len(first.size) != 2:
        return None
    same = (*source.size[:-1], *size[-1:]) == tuple(size) and source.size[-1] == first.size[-1]
    if not same or len(second.size) != 2 or len(size) < 2:
        return None
    x = OnnxTensor(laid.inputs[0], self.dtype, source)
    by = OnnxTensor(matrix, self.dtype, second)
    if product.op_type == "MatMul":
        return on.MatMul(x, by)
    options = product.attributes
    if options.keys() - {"transB"} or len(more) != 1 or more[0] is None:
        return None
    made = on.MatMul(x, on.Transpose(by, perm=[1, 0]) if "transB" in options else by)
    return on.Add(made, OnnxTensor(more[0], self.dtype, on.types.get(more[0])))


@translation("permute", "permute_copy")
def permute(on: OnnxWriter, self: OnnxTensor, dims: list[int]) -> OnnxTensor:
    perm = [d % self.rank for d in dims]
    return self if perm == sorted(perm) else on.Transpose(self, perm=perm)


@translation("transpose.int", "transpose_copy.int")
def transpose(on: OnnxWriter, self: OnnxTensor, dim0: int, dim1: int) -> OnnxTensor:
    order = list(range(self.rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(on, self, order)


@translation("t", "numpy_T", "t_copy")
def t(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return permute(on, self, list(range(self.rank))[::-1])


@translation("unsqueeze", "unsqueeze_copy")
def unsqueeze(on: OnnxWriter, self: OnnxTensor, dim: int) -> OnnxTensor:
    return on.Unsqueeze(self, on.ints(dim % (self.rank + 1)))


@translation("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze(on: OnnxWriter, self: OnnxTensor, dim: Any = None) -> OnnxTensor:
    """The dims that are gone in the result: those of size 1, as the program knows it."""
    dims = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = sorted(d % self.rank for d in dims if self.rank and self.size[d] == 1)
    if self.rank - len(gone) != len(on.out.size):
        raise NotWritten("whether a size is 1 is not known", "name dims whose size is 1")
    return on.Squeeze(self, on.ints(*gone)) if gone else self


@translation("expand", "expand_copy", "expand_as", "broadcast_to")
def expand(on: OnnxWriter, self: OnnxTensor, *_: Any, **__: Any) -> OnnxTensor:
    return broadcast(on, self, on.out.size)


def broadcast(on: OnnxWriter, self: OnnxTensor, size: Sizes) -> OnnxTensor:
    """1 stands for a size that stays."""
    size = tuple(size)
    if self.type is not None and self.size == size:
        return self
    if self.type is not None:
        lead = len(size) - self.rank
        short = [1 if i >= lead and n == self.size[i - lead] else n for i, n in enumerate(size)]
        if short == [1] * len(size):
            new = on.ints(*range(lead))
            return on.Unsqueeze(self, new)
        return on.Expand(self, on.shape(short))
    return on.Expand(self, on.shape(size))


@translation("cat", "concat", "concatenate")
def cat(on: OnnxWriter, tensors: list[OnnxTensor], dim: int = 0) -> OnnxTensor:
    dtype, rank = on.out.dtype, len(on.out.size)
    # eager takes tensors of no elements and one dim for nothing
    given = [x for x in tensors if not (x.size == (0,) and rank > 1)]
    if len(given) == 1:
        return on.cast(given[0], dtype)
    return on.Concat(*[on.cast(x, dtype) for x in given], axis=dim % rank)


@translation("stack")
def stack(on: OnnxWriter, tensors: list[OnnxTensor], dim: int = 0) -> OnnxTensor:
    dtype, at = on.out.dtype, on.ints(dim % len(on.out.size))
    rows = [on.Unsqueeze(on.cast(x, dtype), at) for x in tensors]
    return rows[0] if len(rows) == 1 else on.Concat(*rows, axis=dim % len(on.out.size))


@translation("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "chunk", "split.sizes",
             "unsafe_chunk", "tensor_split.sections", "unsafe_split_with_sizes")  # fmt: skip
def split(on: OnnxWriter, self: OnnxTensor, _: Any, dim: int = 0) -> list[OnnxTensor]:
    dim = dim % self.rank
    sizes = [each.size[dim] for each in on.out]
    if len(sizes) == 1:
        return [self]
    return on.several("Split", self, on.shape(sizes), axis=dim, outputs=len(sizes))


@translation("unbind.int")
def unbind(on: OnnxWriter, self: OnnxTensor, dim: int = 0) -> list[OnnxTensor]:
    dim = dim % self.rank
    if not on.out:
        return []
    if len(on.out) == 1:
        return [on.Squeeze(self, on.ints(dim))]
    return [on.Gather(self, on.constant(i, torch.int64), axis=dim) for i in range(len(on.out))]


@translation("repeat", "tile")
def repeat(on: OnnxWriter, self: OnnxTensor, repeats: list[Size]) -> OnnxTensor:
    lead = max(len(repeats) - self.rank, 0)
    x = on.Unsqueeze(self, on.ints(*range(lead))) if lead else self
    times = [1] * (self.rank - len(repeats)) + list(repeats)
    return on.Tile(x, on.shape(times)) if any(n != 1 for n in times) else x


@translation("constant_pad_nd")
def constant_pad(on: OnnxWriter, self: OnnxTensor, pad: list[Size], value: Any = 0) -> OnnxTensor:
    return _pad(on, self, pad, "constant", value or 0)


def _pad(
    on: OnnxWriter, self: OnnxTensor, pad: list[Size], mode: str, value: Any = None
) -> OnnxTensor:
    """torch names the last dim first, and both ends together."""
    if self.dtype is torch.bool or (mode != "constant" and not self.dtype.is_floating_point):
        wide = torch.int32 if self.dtype is torch.bool else self.dtype
        if wide is not self.dtype:
            x = on.cast(self, wide)
            return on.cast(_pad(on, x, pad, mode, int(value or 0)), torch.bool)
    before, after = list(pad[::2])[::-1], list(pad[1::2])[::-1]
    if not any(n != 0 for n in pad):
        return self
    lead = [0] * (self.rank - len(before))
    if mode == "edge" and any(
        known(n >= 0) is not True if isinstance(n, Expr) else n < 0 for n in pad
    ):
        return _repeat_edges(on, self, [*lead, *before], [*lead, *after])
    if mode != "constant" and any(isinstance(n, int) and n < 0 for n in pad):
        self = _crop(on, self, [*lead, *before], [*lead, *after])
        before, after = ([maximum(n, 0) for n in each] for each in (before, after))
    pads = on.shape([*lead, *before, *lead, *after])
    filled = None if value is None else on.operand(value, self.dtype)
    return on.Pad(self, pads, filled, mode=mode)


def _repeat_edges(on: OnnxWriter, self: OnnxTensor, before: Sizes, after: Sizes) -> OnnxTensor:
    """Each place is that of the tensor which is nearest; some ends are cut off."""
    x = self
    for d, (first, last) in enumerate(zip(before, after, strict=True)):
        if first != 0 or last != 0:
            end = on.scalar(self.size[d] + last)
            places = on.Range(on.scalar(-first), end, on.constant(1))
            most = on.Sub(on.scalar(self.size[d]), on.constant(1))
            x = on.Gather(x, on.Min(on.Max(places, on.constant(0)), most), axis=d)
    return x


def _crop(on: OnnxWriter, self: OnnxTensor, before: Sizes, after: Sizes) -> OnnxTensor:
    """Without what negative numbers take away."""
    dims = range(self.rank)
    first = [-n if isinstance(n, int) and n < 0 else 0 for n in before]
    last = [n if isinstance(n, int) and n < 0 else _LAST for n in after]
    made: OnnxTensor = on.Slice(self, on.ints(*first), on.ints(*last), on.ints(*dims))
    assert self.type is not None
    return OnnxTensor(made.value, self.dtype, self.type)


for _n in (1, 2, 3):
    translation(f"reflection_pad{_n}d")(
        lambda on, self, padding: _pad(on, self, padding, "reflect")
    )
    translation(f"replication_pad{_n}d")(lambda on, self, padding: _pad(on, self, padding, "edge"))


@translation("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> OnnxTensor:
    dim = dim % self.rank
    start = 0 if start is None else start
    end = _LAST if end is None else end
    if (
        step == 1
        and start == 0
        and (end == self.size[dim] or (isinstance(end, int) and end >= _LAST))
    ):
        return self
    return on.Slice(
        self, on.size(start), on.size(end), on.ints(dim), None if step == 1 else on.ints(step)
    )


_LAST = 2**63 - 1


@translation("select.int", "select_copy.int")
def select(on: OnnxWriter, self: OnnxTensor, dim: int, index: Size) -> OnnxTensor:
    return on.Gather(self, on.scalar(index), axis=dim % self.rank)


@translation("narrow", "narrow_copy")
def narrow(on: OnnxWriter, self: OnnxTensor, dim: int, start: Any, length: Size) -> OnnxTensor:
    return slice_tensor(on, self, dim, start, start + length)


@translation("flip")
def flip(on: OnnxWriter, self: OnnxTensor, dims: list[int]) -> OnnxTensor:
    if not dims or not self.rank:
        return self
    n = len(dims)
    axes = on.ints(*[d % self.rank for d in dims])
    return on.Slice(self, on.ints(*[-1] * n), on.ints(*[-_LAST] * n), axes, on.ints(*[-1] * n))


@translation("pixel_shuffle")
def pixel_shuffle(on: OnnxWriter, self: OnnxTensor, upscale_factor: int) -> OnnxTensor:
    if self.rank == 4 and self.dtype.is_floating_point:
        return on.DepthToSpace(self, blocksize=upscale_factor, mode="CRD")
    *lead, _, height, width = self.size
    count, n = len(lead), upscale_factor
    apart = on.Reshape(self, on.shape([*lead, on.out.size[-3], n, n, height, width]), allowzero=1)
    order = [*range(count), *(count + d for d in (0, 3, 1, 4, 2))]
    return on.Reshape(on.Transpose(apart, perm=order), on.shape(on.out.size), allowzero=1)


def _make_triangle(upper: bool) -> Any:
    def write(on: OnnxWriter, self: OnnxTensor, diagonal: Size = 0) -> OnnxTensor:
        narrow = self.dtype not in (torch.float32, torch.float64, torch.float16, torch.bool)
        x = on.cast(self, torch.int64) if narrow and not self.dtype.is_floating_point else self
        at = None if isinstance(diagonal, int) and diagonal == 0 else on.scalar(diagonal)
        return on.cast(on.Trilu(x, at, upper=int(upper)), self.dtype)

    return write


translation("tril")(_make_triangle(upper=False))
translation("triu")(_make_triangle(upper=True))


@translation("diagonal", "diagonal_copy")
def diagonal(
    on: OnnxWriter, self: OnnxTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> OnnxTensor:
    """The rows and columns of the two dims as one list, and of it every (columns + 1)th element."""
    rest = [d for d in range(self.rank) if d not in (dim1 % self.rank, dim2 % self.rank)]
    x = permute(on, self, [*rest, dim1 % self.rank, dim2 % self.rank])
    columns, length = self.size[dim2], on.out.size[-1]
    kept = [self.size[d] for d in rest]
    flat = on.Reshape(x, on.shape([*kept, self.size[dim1] * columns]), allowzero=1)
    first = offset if offset >= 0 else -offset * columns
    if isinstance(columns, int) and isinstance(length, int) and isinstance(first, int):
        places = on.ints(*[first + i * (columns + 1) for i in range(length)])
    else:
        steps = on.Range(on.constant(0), on.scalar(length), on.constant(1))
        places = on.Add(on.Mul(steps, on.scalar(columns + 1)), on.scalar(first))
    return on.Gather(flat, places, axis=len(rest))


@translation("unfold")
def unfold(on: OnnxWriter, self: OnnxTensor, dimension: int, size: int, step: int) -> OnnxTensor:
    """Windows as a new last dim: each place of a window is a slice."""
    if not self.rank:
        return on.Unsqueeze(self, on.ints(0))
    dim = dimension % self.rank
    count = on.out.size[dim]
    places = on.Range(on.constant(0), on.scalar(count), on.constant(1))
    first = on.Mul(places, on.constant(step, torch.int64))
    index = on.Add(on.Unsqueeze(first, on.ints(1)), on.constant(list(range(size)), torch.int64))
    made = on.Gather(self, index, axis=dim)  # [..., count, size, ...]
    order = [d for d in range(self.rank + 1) if d != dim + 1] + [dim + 1]
    return on.Transpose(made, perm=order)


@translation("as_strided", "as_strided_copy", "as_strided_scatter")
def as_strided(on: OnnxWriter, self: OnnxTensor, *_: Any, **__: Any) -> OnnxTensor:
    raise NotWritten("ONNX has no memory to walk through by strides", "use views and indexing")
