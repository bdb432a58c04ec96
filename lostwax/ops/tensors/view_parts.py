"""Views of parts of a dimension: select, slice, diagonal, unfold, split, unbind.

The offset of a symbolic slice is that of its first element; it is not clamped, since an empty slice
addresses nothing. What `views.py` says holds here, too. Must not know of storages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import fail, hint, is_met, require, show, wrap_dim
from lostwax.ops.tensors.views import is_zero_int, make_view
from lostwax.ops.traits import Trait
from lostwax.sym import (
    Expr,
    Size,
    ask_for_parts,
    ceildiv,
    count_parts,
    decide,
    eq,
    known,
    maximum,
    minimum,
)
from lostwax.types import TensorType

# ----------------------------------------------------------------------------------------- one part


def wrap_position(i: Size, size: Size) -> Size:
    """The position, counted from the end if it is negative. The sign of a symbolic one is a branch;
    that of an unbacked one becomes part of the expression, since nobody can decide it."""
    if isinstance(i, int):
        return i + size if i < 0 else i
    positive = i >= 0
    if i.unbacked and known(positive) is None:
        return i + size * minimum(1, maximum(0, -i))
    return i if decide(positive) else i + size


def _is_in_range(i: Size, size: Size) -> bool:
    if isinstance(i, int):
        return is_met(i < size) if i >= 0 else is_met(size >= -i)
    return is_met(i < size) and is_met(i + size >= 0)


@rule("select.int")
def select(self: TensorType, dim: int, index: Size) -> TensorType:
    size, stride = self.size, self.stride
    n = len(size)
    if n == 0:
        fail("select() cannot be applied to a 0-dim tensor.", IndexError)
    d = wrap_dim(dim, n)
    s = size[d]
    if not _is_in_range(index, s):
        fail(
            f"select(): index {index} out of range for tensor of size {show(size)} "
            f"at dimension {d}",
            IndexError,
        )
    at = wrap_position(index, s)
    offset = self.offset + at * stride[d]
    return make_view(self, size[:d] + size[d + 1 :], stride[:d] + stride[d + 1 :], offset)


def slice_bounds(s: Size, start: Size | None, end: Size | None, step: Size) -> tuple[Size, Size]:
    """(first position, number of positions) of `start:end:step` in a dimension of size `s`."""
    if isinstance(s, int) and isinstance(start, int) and isinstance(end, int):
        low, high, _ = slice(start, end).indices(s)
        return low, ceildiv(max(high - low, 0), step)
    to_end = end is None or (isinstance(end, int) and end == sys.maxsize)
    first: Size = 0 if start is None else wrap_position(start, s)
    if isinstance(start, int) and start < 0 and to_end:
        return maximum(first, 0), ceildiv(minimum(s, -start), step)
    if start is not None and not (isinstance(start, int) and start >= 0):
        first = maximum(first, 0)
    last = s
    if not to_end:
        assert end is not None
        last = minimum(wrap_position(end, s), s)
    length = maximum(last - first, 0)
    if isinstance(s, int):
        first = minimum(first, s)
    return first, length if step == 1 else ceildiv(length, step)


def slice_(
    self: TensorType,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> TensorType:
    size, stride = self.size, self.stride
    n = len(size)
    if n == 0:
        fail("slice() cannot be applied to a 0-dim tensor.", IndexError)
    d = wrap_dim(dim, n)
    if step.__class__ is not int or step <= 0:
        require(step > 0, "slice step must be positive")
    first, length = slice_bounds(size[d], start, end, step)
    return make_view(
        self,
        (*size[:d], length, *size[d + 1 :]),
        stride if step == 1 else (*stride[:d], stride[d] * step, *stride[d + 1 :]),
        self.offset + first * stride[d],
    )


rule("slice.Tensor")(slice_)


@rule("diagonal")
def diagonal(self: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorType:
    n = len(self.size)
    a, b = wrap_dim(dim1, n), wrap_dim(dim2, n)
    if a == b:
        fail(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = self.size[a], self.size[b]
    if offset >= 0:
        length, start = minimum(rows, columns - offset), offset * self.stride[b]
    else:
        length, start = minimum(rows + offset, columns), -offset * self.stride[a]
    length = maximum(length, 0)
    keep = [d for d in range(n) if d not in (a, b)]
    return make_view(
        self,
        (*[self.size[d] for d in keep], length),
        (*[self.stride[d] for d in keep], self.stride[a] + self.stride[b]),
        self.offset if is_zero_int(length) else self.offset + start,
    )


@rule("unfold")
def unfold(self: TensorType, dimension: int, size: int, step: int) -> TensorType:
    n = len(self.size)
    d = wrap_dim(dimension, n)
    have, stride = (self.size[d], self.stride[d]) if n else (1, 1)
    if size < 0:
        fail(f"size is {size} but must be >= 0")
    if not is_met(have >= size):
        fail(f"maximum size for tensor at dimension {d} is {have} but size is {size}")
    if step <= 0:
        fail(f"step is {step} but must be > 0")
    if not n:
        return make_view(self, (size,), (1,))
    return make_view(
        self,
        (*self.size[:d], (have - size) // step + 1, *self.size[d + 1 :], size),
        (*self.stride[:d], stride * step, *self.stride[d + 1 :], stride),
    )


# ------------------------------------------------------------------------------------ several parts


def _cut(x: TensorType, d: int, sizes: Sequence[Size]) -> list[TensorType]:
    """Adjacent pieces of these sizes along one dimension."""
    size, stride = x.size, x.stride
    out = []
    offset = x.offset
    for s in sizes:
        out.append(make_view(x, (*size[:d], s, *size[d + 1 :]), stride, offset))
        offset = offset + s * stride[d]
    return out


def count_pieces(size: Size, piece: Size) -> int:
    """Into how many pieces a dimension is split. The answer is an int, found by two comparisons at
    most."""
    if isinstance(size, int) and isinstance(piece, int):
        return max(-(-size // piece), 1) if piece else 1
    asks = isinstance(size, Expr) and size.env.before_hint is not None  # else at most a guard
    have, each = hint(size), hint(piece)
    if have is None or each is None:
        count = 1
        while known(size <= piece * count) is False:
            count += 1
        if asks and known(size <= piece * count) is None:
            ask_for_parts(ceildiv(size, piece))
        while not decide(size <= piece * count):
            count += 1
        return count
    count = max(-(-have // each), 1) if each else 1
    is_least = count == 1 or known(size > piece * (count - 1))
    if asks and not (is_least and known(size <= piece * count)):
        ask_for_parts(ceildiv(size, piece))
    decide(size <= piece * count)
    if count > 1:
        decide(size > piece * (count - 1))
    return count


def split(self: TensorType, split_size: Size, dim: int = 0) -> list[TensorType]:
    if not self.size:
        fail("split expects at least a 1-dimensional tensor")
    d = wrap_dim(dim, len(self.size))
    size = self.size[d]
    if not is_met(split_size >= 0):
        fail(f"split expects split_size be non-negative, but got split_size={split_size}")
    if hint(split_size) == 0 and decide(eq(split_size, 0)):
        if not is_met(eq(size, 0)):
            fail(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return [self]
    count = count_pieces(size, split_size)
    return _cut(self, d, [split_size] * (count - 1) + [size - split_size * (count - 1)])


def split_with_sizes(
    self: TensorType, split_sizes: Sequence[Size], dim: int = 0
) -> list[TensorType]:
    if not self.size:
        fail("split expects at least a 1-dimensional tensor")
    d = wrap_dim(dim, len(self.size))
    total: Size = 0
    for s in split_sizes:
        if (s.__class__ is not int or s < 0) and not is_met(s >= 0):
            fail(
                "split_with_sizes expects split_sizes have only non-negative entries, "
                f"but got split_sizes={show(split_sizes)}"
            )
        total = total + s
    if total != self.size[d] and not is_met(eq(total, self.size[d])):
        fail(
            f"split_with_sizes expects split_sizes to sum exactly to {self.size[d]} (input "
            f"tensor's size at dimension {d}), but got split_sizes={show(split_sizes)}"
        )
    return _cut(self, d, split_sizes)


rule("split.Tensor", "unsafe_split.Tensor")(split)
rule("split_with_sizes", "unsafe_split_with_sizes")(split_with_sizes)


@rule("unbind.int")
def unbind(self: TensorType, dim: int = 0) -> list[TensorType]:
    size, stride = self.size, self.stride
    if not size:
        fail(f"Dimension specified as {dim} but tensor has no dimensions", IndexError)
    d = wrap_dim(dim, len(size))
    rest, steps = size[:d] + size[d + 1 :], stride[:d] + stride[d + 1 :]
    length = count_parts(size[d])
    return [make_view(self, rest, steps, self.offset + i * stride[d]) for i in range(length)]


mark(Trait.SHARES_STORAGE, "unsafe_split.Tensor", "unsafe_split_with_sizes")
mark(Trait.SHOWS_TWICE, "unfold")
mark(
    Trait.SHOWS_PART,
    "slice.Tensor select.int diagonal as_strided split.Tensor split_with_sizes unbind.int",
    "unfold narrow",  # a `slice`, where it is kept whole
)
