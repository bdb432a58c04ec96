"""New tensors made of the elements of others in other places: copies, joins, pads, repeats, shifts,
triangles, and the `*_scatter` forms that write a part of a copy.

The arguments alone decide which positions are read; where data decide, see `indexing.py`. Must not
know of storages: results are always new.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.memory import expanded_sizes
from lostwax.ops.elementwise import new_like
from lostwax.ops.memory_format import fresh_like, suggested_format, suggests_channels_last
from lostwax.ops.registry import Rule, mark, mark_writing_forms, rule
from lostwax.ops.shapes import (
    Scalar,
    always_broadcasts,
    broadcast_sizes,
    copy_strides,
    fail,
    format_strides,
    hint,
    is_met,
    is_one,
    is_same,
    must_be_one,
    promote,
    require,
    require_same_device,
    require_same_sizes,
    show,
    wrap_dim,
    wrap_dims,
)
from lostwax.ops.spelling import raise_not_implemented
from lostwax.ops.tensors.view_parts import diagonal, select, slice_
from lostwax.ops.tensors.views import as_strided, transpose, unsqueeze, view_strides
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq, known, minimum
from lostwax.types import Sizes, TensorType

# ------------------------------------------------------------------------------------------- copies


@rule("clone")
def clone(self: TensorType, *, memory_format: torch.memory_format | None = None) -> TensorType:
    return TensorType(self.size, self.dtype, self.device, copy_strides(self, memory_format))


@rule("lift_fresh_copy", "_lazy_clone")
def copied(self: TensorType) -> TensorType:
    return new_like(self)


@rule("_to_copy")
def to_copy(
    self: TensorType,
    *_: object,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    memory_format: torch.memory_format | None = None,
    **__: object,
) -> TensorType:
    where = self.device if device is None else torch.device(device)
    return TensorType(self.size, dtype or self.dtype, where, copy_strides(self, memory_format))


def _storage_copy(x: TensorType) -> TensorType:
    """A copy with the strides and the offset of `x`, as of its whole storage. If `x` is expanded,
    the copy is dense."""
    return x if all(map(is_one, expanded_sizes(x))) else new_like(x)


def _check_copy(size: Sizes, src: Sizes) -> None:
    """May a tensor of size `src` be copied into one of this size?"""
    if len(src) > len(size):
        shape = broadcast_sizes((size, src))
        fail(f"output with shape {show(size)} doesn't match the broadcast shape {show(shape)}")
    for d, (have, given) in enumerate(zip(size[len(size) - len(src) :], src, strict=True)):
        if given is have or is_one(given) or is_same(have, given) or always_broadcasts(given, have):
            continue
        # The example broadcasts a 1, which is sound only if that size is always 1.
        if hint(given) == 1 != hint(have) and decide(eq(given, 1)):
            continue
        if have == 1:
            text = f"output with shape {show(size)} doesn't match the broadcast shape {show(src)}"
        else:
            text = (
                f"The size of tensor a ({have}) must match the size of tensor b ({given}) at "
                f"non-singleton dimension {d + len(size) - len(src)}"
            )
        require(eq(given, 1 if must_be_one(given, have) else have), text)


@rule("copy")
def copy(self: TensorType, src: TensorType, non_blocking: bool = False) -> TensorType:
    if src.size != self.size:
        _check_copy(self.size, src.size)
    return _storage_copy(self)


mark(Trait.COPIES_INTO, "copy_")


@rule("fill.Scalar", "fill.Tensor")
def fill(self: TensorType, value: Scalar) -> TensorType:
    if isinstance(value, TensorType) and value.size:
        fail(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{len(value.size)} dimensions."
        )
    if isinstance(value, complex) and not self.dtype.is_complex:
        fail("value cannot be converted to type float without overflow")
    return new_like(self)


@rule("zero")
def zero(self: TensorType) -> TensorType:
    return new_like(self)


mark(Trait.OVERWRITES, "zero fill.Scalar fill.Tensor")
mark(Trait.WRITES_ALIKE, "zero_ fill_.Scalar fill_.Tensor")
mark(Trait.FILLS, "fill_.Tensor")
mark(Trait.ONE_BY_ONE, "_foreach_zero_")


# ------------------------------------------------------------------- a copy with a part overwritten


def _overwrite_part(x: TensorType, src: TensorType, part: TensorType) -> TensorType:
    text = (
        "expected src to have a size equal to the slice of self. "
        f"src size = {show(src.size)}, slice size = {show(part.size)}"
    )
    require_same_sizes(src.size, part.size, text)
    require_same_device((x, src), "copy_")
    return _storage_copy(x)


@rule("slice_scatter")
def slice_scatter(
    self: TensorType,
    src: TensorType,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> TensorType:
    return _overwrite_part(self, src, slice_(self, dim, start, end, step))


@rule("select_scatter")
def select_scatter(self: TensorType, src: TensorType, dim: int, index: Size) -> TensorType:
    return _overwrite_part(self, src, select(self, dim, index))


@rule("diagonal_scatter")
def diagonal_scatter(
    self: TensorType, src: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorType:
    return _overwrite_part(self, src, diagonal(self, offset, dim1, dim2))


@rule("as_strided_scatter")
def as_strided_scatter(
    self: TensorType,
    src: TensorType,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> TensorType:
    return _overwrite_part(self, src, as_strided(self, size, stride, storage_offset))


mark(
    Trait.AS_FIRST,
    "slice_scatter select_scatter diagonal_scatter as_strided_scatter",
)


def _new_zeros(grad_output: TensorType, input_sizes: Sequence[Size], *args: object) -> TensorType:
    """The gradient of a part is made of zeros of the size of the whole."""
    return grad_output.fresh(tuple(input_sizes))


rule(
    "slice_backward select_backward diagonal_backward",
)(_new_zeros)


# ------------------------------------------------------------------------------------ cat and stack


def _is_skipped(t: TensorType, others_have: int) -> bool:
    """Is it an empty vector? For historical reasons `cat` skips these among tensors of any rank."""
    if len(t.size) != 1:
        return False
    n = t.size[0]
    if isinstance(n, int):
        return n == 0
    return others_have != 1 and is_met(eq(n, 0))


def _cat_size(tensors: Sequence[TensorType], dim: int, skipped: Sequence[bool]) -> Sizes:
    counted = [i for i, skip in enumerate(skipped) if not skip]
    if not counted:
        return (0,)
    first = tensors[counted[0]].size
    total: Size = 0
    for i in counted:
        size = tensors[i].size
        if size is not first:
            _check_joinable(first, size, dim, i)
        total = total + size[dim]
    return (*first[:dim], total, *first[dim + 1 :])


def _check_joinable(first: Sizes, size: Sizes, dim: int, at: int) -> None:
    if len(size) != len(first):
        fail(f"Tensors must have same number of dimensions: got {len(first)} and {len(size)}")
    for d, (a, b) in enumerate(zip(first, size, strict=True)):
        if d != dim and a is not b and a != b and not is_met(eq(a, b)):
            fail(
                f"Sizes of tensors must match except in dimension {dim}. Expected size {a} but "
                f"got size {b} for tensor number {at} in the list."
            )


def cat(tensors: Sequence[TensorType], dim: int = 0) -> TensorType:
    if not tensors:
        fail("torch.cat(): expected a non-empty list of Tensors", ValueError)
    for i, t in enumerate(tensors):
        if not t.size:
            fail(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    rank = max(len(t.size) for t in tensors)
    skipped = [_is_skipped(t, rank) for t in tensors]
    used = next((t for t, skip in zip(tensors, skipped, strict=True) if not skip), tensors[0])
    size = _cat_size(tensors, wrap_dim(dim, len(used.size)), skipped)
    first = tensors[0]
    dtype = first.dtype
    if any(t.dtype is not dtype for t in tensors):
        dtype = promote(*tensors)
    if any(t.device is not first.device for t in tensors):
        require_same_device(tensors, "cat")
    stride = None
    if len(size) in (4, 5) and all(suggests_channels_last(t) for t in tensors):
        stride = format_strides(size, suggested_format(first))
    return TensorType(size, dtype, first.device, stride)


rule("cat")(cat)


@rule("stack")
def stack(tensors: Sequence[TensorType], dim: int = 0) -> TensorType:
    """Eager concatenates along the dimension and then splits it, which shows in the layout if the
    parts are channels-last."""
    if not tensors:
        fail("stack expects a non-empty TensorList")
    first = tensors[0].size
    for i, t in enumerate(tensors):
        _check_equal(first, t.size, i)
    d = wrap_dim(dim, len(first) + 1)
    if d == len(first):
        return cat([unsqueeze(t, d) for t in tensors], d)
    whole = cat(tensors, d)
    size = (*first[:d], len(tensors), *first[d:])
    return TensorType(size, whole.dtype, whole.device, view_strides(whole, size))


mark(Trait.ROW_MAJOR, "cat", "stack")


def _check_equal(first: Sizes, size: Sizes, at: int) -> None:
    if size is first or size == first:
        return
    text = (
        f"stack expects each tensor to be equal size, but got {show(first)} at entry 0 and "
        f"{show(size)} at entry {at}"
    )
    require_same_sizes(first, size, text)


@rule("_stack")
def plain_stack(tensors: Sequence[TensorType], dim: int = 0) -> TensorType:
    first = tensors[0].size
    d = wrap_dim(dim, len(first) + 1)
    out = cat([unsqueeze(t, d) for t in tensors], d)
    return TensorType(out.size, out.dtype, out.device)


@rule("block_diag")
def block_diag(tensors: Sequence[TensorType]) -> TensorType:
    rows: Size = 0
    columns: Size = 0
    for i, t in enumerate(tensors):
        n = len(t.size)
        if n > 2:
            fail(
                "torch.block_diag: Input tensors must have 2 or fewer dimensions. "
                f"Input {i} has {n} dimensions"
            )
        rows = rows + (t.size[0] if n == 2 else 1)
        columns = columns + (t.size[-1] if n else 1)
    first = tensors[0]
    dtype = first.dtype
    for t in tensors:
        dtype = torch.promote_types(dtype, t.dtype)
    return first.fresh((rows, columns), dtype)


def _check_chunks(tensors: Sequence[TensorType], dim: int, num_chunks: int) -> int:
    """Check the arguments, and return the dimension along which the tensors are cut."""
    if num_chunks < 1:
        fail("_chunk_cat expects positive num_chunks")
    if not tensors:
        fail("_chunk_cat expects a non-empty input tensor list")
    first = tensors[0]
    for t in tensors:
        if not is_met(t.numel() > 0):
            fail("_chunk_cat expects non-empty tensor")
    if any(len(t.size) != len(first.size) for t in tensors):
        if dim < 0:
            fail("_chunk_cat expects non-negative dim when input tensors have different ndims")
        d = dim
    else:
        d = wrap_dim(dim, len(first.size))
    if any(d >= len(t.size) for t in tensors):
        fail("_chunk_cat expects dim < ndim for all input tensors")
    for t in tensors[1:]:
        for a, b in zip(t.size[:d], first.size[:d], strict=True):
            if not is_met(eq(a, b)):
                fail("_chunk_cat expects same sizes of 0,...,dim-1 dimensions for all tensors")
    return d


@rule("_chunk_cat")
def chunk_cat(tensors: Sequence[TensorType], dim: int, num_chunks: int) -> TensorType:
    """It cuts each tensor into chunks along `dim`, flattens them, and joins them behind `dim`."""
    d = _check_chunks(tensors, dim, num_chunks)
    first = tensors[0]
    width: Size = 0
    for t in tensors:
        rest: Size = (t.size[d] + num_chunks - 1) // num_chunks
        for s in t.size[d + 1 :]:
            rest = rest * s
        width = width + rest
    return first.fresh((*first.size[:d], num_chunks, width))


# --------------------------------------------------------------------------------------------- pads


@rule("constant_pad_nd")
def constant_pad_nd(self: TensorType, pad: Sequence[Size], value: Scalar = 0) -> TensorType:
    rank, given = len(self.size), len(pad)
    if given % 2:
        fail(f"Length of pad must be even but instead it equals {given}")
    if given > 2 * rank:
        fail(
            "Length of pad should be no more than twice the number of dimensions of the input. "
            f"Pad length is {given}while the input has {rank}dimensions."
        )
    size = list(self.size)
    for i in range(given // 2):
        d = rank - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        size[d] = self.size[d] + before + after
        left = self.size[d] + minimum(before, 0) + minimum(after, 0)
        require(left >= 0, "narrow(): length must be non-negative.")
    if all(known(p <= 0) is True for p in pad):
        part = TensorType(tuple(size), self.dtype, self.device, self.stride)
        return new_like(self if part.size == self.size else part)
    return fresh_like(self, tuple(size))


_AXES = ("W", "H", "D")


def _check_pad_input(x: TensorType, dims: int, padding: Sequence[Size]) -> None:
    if len(padding) != 2 * dims:
        fail(f"padding size is expected to be {2 * dims}, but got: {len(padding)}")
    rank = len(x.size)
    ok = rank in (dims + 1, dims + 2)
    for s in x.size[rank - dims - 1 :] if ok else ():
        ok = ok and s != 0
        if ok and s.__class__ is not int:
            require(s >= 1, "input dimensions other than the batch must not be 0")
    if not ok:
        fail(
            f"Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with possibly 0 batch size "
            f"and other non-zero dimensions for input, but got: {show(x.size)}"
        )


def padded_size(x: TensorType, dims: int, padding: Sequence[Size], reflect: bool) -> Sizes:
    _check_pad_input(x, dims, padding)
    rank = len(x.size)
    out = list(x.size)
    for i in range(dims):
        d = rank - 1 - i
        before, after = padding[2 * i], padding[2 * i + 1]
        if reflect:
            for p in (before, after):
                if not is_met(p < x.size[d]):
                    fail(
                        "Argument #4: Padding size should be less than the corresponding input "
                        f"dimension, but got: padding ({before}, {after}) at dimension {d} of "
                        "input "
                        f"{show(x.size)}"
                    )
        out[d] = x.size[d] + before + after
        if not is_met(out[d] >= 1):
            fail(
                f"input ({_AXES[i]}: {x.size[d]}) is too small. Calculated output {_AXES[i]}: "
                f"{out[d]}"
            )
    return tuple(out)


_UNPADDABLE = (torch.bool,)


def _pad_rule(name: str, dims: int) -> Rule:
    reflect = name == "reflection"

    def pad(self: TensorType, padding: Sequence[Size]) -> TensorType:
        size = padded_size(self, dims, padding, reflect)
        if self.dtype in _UNPADDABLE:
            raise_not_implemented(f"{name}_pad{dims}d", self.dtype)
        return fresh_like(self, size)

    return pad


def _pad_backward_rule(name: str, dims: int) -> Rule:
    reflect = name == "reflection"

    def pad_backward(
        grad_output: TensorType, self: TensorType, padding: Sequence[Size]
    ) -> TensorType:
        for d, s in enumerate(padded_size(self, dims, padding, reflect)):
            if d >= len(self.size) - dims:
                what = ("width", "height", "depth")[len(self.size) - 1 - d]
                if not is_met(eq(grad_output.size[d], s)):
                    fail(
                        f"grad_output {what} unexpected. Expected: {s}, Got: {grad_output.size[d]}"
                    )
        return fresh_like(self, self.size, grad_output.dtype)

    return pad_backward


for _name in ("reflection", "replication"):
    for _dims in (1, 2, 3):
        _packet = f"{_name}_pad{_dims}d"
        rule(_packet)(_pad_rule(_name, _dims))
        rule(f"{_packet}_backward")(_pad_backward_rule(_name, _dims))


# ------------------------------------------------------------------------ repeat, shift, turn, mask


@rule("repeat")
def repeat(self: TensorType, repeats: Sequence[Size]) -> TensorType:
    new = len(repeats) - len(self.size)
    if new < 0:
        fail(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor"
        )
    size = tuple([s * r for s, r in zip((*[1] * new, *self.size), repeats, strict=True)])
    for r in repeats:
        if not is_met(r >= 0):
            fail(f"Trying to create tensor with negative dimension {r}: {show(size)}")
    return self.fresh(size)


@rule("roll")
def roll(self: TensorType, shifts: Sequence[Size], dims: Sequence[int] = ()) -> TensorType:
    if not shifts:
        fail("`shifts` required")
    if not dims and len(shifts) == 1:
        return self.fresh()
    if len(shifts) != len(dims):
        fail(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if not self.size:
        fail(f"Dimension specified as {dims[0]} but tensor has no dimensions", IndexError)
    wrapped = [wrap_dim(d, len(self.size)) for d in dims]
    if 0 in self.size:
        return new_like(self)
    # Eager joins two parts. An empty part counts as row-major, and then so does the whole.
    if any(
        isinstance(n, int) and isinstance(s, int) and s % n == 0
        for n, s in zip([self.size[d] for d in wrapped], shifts, strict=True)
    ):
        return self.fresh()
    return fresh_like(self, self.size)


@rule("flip")
def flip(self: TensorType, dims: Sequence[int]) -> TensorType:
    if dims:
        wrap_dims(dims, len(self.size))
    return new_like(self)


@rule("rot90")
def rot90(self: TensorType, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorType:
    rank = len(self.size)
    if len(dims) != 2:
        fail(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if rank < 2:
        fail(f"expected total dims >= 2, but got total dims = {rank}")
    a, b = wrap_dim(dims[0], rank), wrap_dim(dims[1], rank)
    if a == b:
        fail(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    if k % 4 == 0:
        return TensorType(self.size, self.dtype, self.device)
    flipped = new_like(self)
    return flipped if k % 4 == 2 else transpose(flipped, a, b)


@rule("tril", "triu")
def triangle(self: TensorType, diagonal: Size = 0) -> TensorType:
    if len(self.size) < 2:
        fail("tril: input tensor must have at least 2 dimensions")
    return self.fresh()


@rule("diag_embed")
def diag_embed(self: TensorType, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorType:
    rank = len(self.size) + 1
    a, b = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if a == b:
        fail(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    side = self.size[-1] + abs(offset)
    rest = iter(self.size[:-1])
    return self.fresh(tuple([side if d in (a, b) else next(rest) for d in range(rank)]))


# ----------------------------------------------------------------------------------------- channels


def _check_pixels(op: str, x: TensorType, name: str, factor: int) -> None:
    if len(x.size) < 3:
        fail(
            f"{op} expects input to have at least 3 dimensions, but got input with "
            f"{len(x.size)} dimension(s)"
        )
    if factor <= 0:
        fail(f"{op} expects a positive {name}, but got {factor}")


@rule("pixel_shuffle")
def pixel_shuffle(self: TensorType, upscale_factor: int) -> TensorType:
    r = upscale_factor
    _check_pixels("pixel_shuffle", self, "upscale_factor", r)
    c, h, w = self.size[-3:]
    if not is_met(eq(c % (r * r), 0)):
        fail(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the "
            "square of "
            f"upscale_factor, but input.size(-3)={c} is not divisible by {r * r}"
        )
    return fresh_like(self, (*self.size[:-3], c // (r * r), h * r, w * r))


@rule("pixel_unshuffle")
def pixel_unshuffle(self: TensorType, downscale_factor: int) -> TensorType:
    r = downscale_factor
    _check_pixels("pixel_unshuffle", self, "downscale_factor", r)
    c, h, w = self.size[-3:]
    for what, at, s in (("height", -2, h), ("width", -1, w)):
        if not is_met(eq(s % r, 0)):
            fail(
                f"pixel_unshuffle expects {what} to be divisible by downscale_factor, but "
                f"input.size({at})={s} is not divisible by {r}"
            )
    return fresh_like(self, (*self.size[:-3], c * (r * r), h // r, w // r))


@rule("channel_shuffle")
def channel_shuffle(self: TensorType, groups: Size) -> TensorType:
    if len(self.size) <= 2:
        fail(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{show(self.size)}"
        )
    if not is_met(groups > 0):
        fail(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    c = self.size[1]
    if not is_met(eq(c % groups, 0)):
        fail(
            f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups."
        )
    return fresh_like(self, self.size)


mark_writing_forms(Trait.READS_ELSEWHERE, "cat stack")
mark_writing_forms(Trait.OUT_APART, "cat")
mark_writing_forms(Trait.READS_NUMBER_FIRST, "fill")
