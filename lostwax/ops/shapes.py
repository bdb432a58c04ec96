"""The vocabulary of type rules: sizes, dimensions, broadcasting, dtypes, devices, layouts.

Every function takes `int | Expr` sizes and costs next to nothing when they are ints. A requirement
that eager checks too is stated by `require` (if symbolic, it becomes a guard or a run-time
assertion); a question that only chooses a layout asks `known`, and takes a default if that does not
know. Must not know of single operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import get_default_dtype

from lostwax.errors import DataDependentError
from lostwax.sym import Atom, BoolExpr, Expr, Size, current, decide, eq, expect, known, quotient
from lostwax.sym.expressions.terms import common_factor
from lostwax.types import (
    Sizes,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    is_same,
    product,
)

Scalar = Any
"""A Python number, or a symbolic one (`Expr`, `BoolExpr`, a symbolic float)."""


# ------------------------------------------------------------------------------------- requirements


def fail(text: str, error: type[Exception] = RuntimeError) -> NoReturn:
    raise error(text)


def require(condition: bool | BoolExpr, text: str, error: type[Exception] = RuntimeError) -> None:
    """Raise unless the condition holds. If symbolic, it becomes a guard, or a run-time assertion if
    it depends on data."""
    if condition is True:
        return
    if condition is False or not expect(condition):
        raise error(text)


def is_met(condition: bool | BoolExpr) -> bool:
    """`require` for hot paths: `if not is_met(c): fail(f"...")` makes the text only on failure."""
    return condition is True or (condition is not False and expect(condition))


def is_one(a: Size) -> bool:
    """Is it provably 1? Never a guard."""
    return a == 1 if a.__class__ is int else known(eq(a, 1)) is True


def is_zero(a: Size) -> bool:
    """Is it provably 0? Never a guard."""
    return a == 0 if a.__class__ is int else known(eq(a, 0)) is True


def show(size: Iterable[Size]) -> str:
    """Sizes as torch writes them in its messages: [2, 3]."""
    return "[" + ", ".join(map(str, size)) + "]"


# --------------------------------------------------------------------------------------- dimensions


def wrap_dim(dim: int, ndim: int) -> int:
    """The dimension as a non-negative index. A 0-d tensor counts as 1-d, as in torch."""
    if -ndim <= dim < ndim:
        return dim + ndim if dim < 0 else dim
    if ndim == 0 and dim in (0, -1):
        return 0
    low, high = (-ndim, ndim - 1) if ndim else (-1, 0)
    raise IndexError(
        f"Dimension out of range (expected to be in range of [{low}, {high}], but got {dim})"
    )


def wrap_dims(dims: Sequence[int] | int | None, ndim: int) -> tuple[int, ...]:
    """Reduction dimensions, non-negative and distinct; None or empty means all of them."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        return (wrap_dim(dims, ndim),)
    if not dims:
        return tuple(range(ndim))
    out: list[int] = []
    for d in dims:
        w = wrap_dim(d, ndim)
        if w in out:
            fail(f"dim {w} appears multiple times in the list of dims")
        out.append(w)
    return tuple(out)


def broadcast_sizes(sizes: Sequence[Sizes]) -> Sizes:
    """The size that these broadcast to. Two unknown sizes are required to be equal."""
    first = sizes[0]
    for other in sizes[1:]:
        if other != first:
            first = _broadcast_two(first, other)
    return first


def _broadcast_two(a: Sizes, b: Sizes) -> Sizes:
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + a
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + b
    return tuple(_broadcast_dim(x, y, d, a, b) for d, (x, y) in enumerate(zip(a, b, strict=True)))


def _broadcast_dim(x: Size, y: Size, dim: int, a: Sizes, b: Sizes) -> Size:
    if x is y or is_one(y):
        return x
    if is_one(x):
        return y
    if is_same(x, y):
        return x if x.__class__ is int or y.__class__ is not int else y
    if x.__class__ is not int or y.__class__ is not int:
        if always_broadcasts(x, y):
            return y
        if always_broadcasts(y, x):
            return x
        # The example broadcasts a 1, which is sound only if that size is always 1.
        if hint(x) == 1 != hint(y) and decide(eq(x, 1)):
            return y
        if hint(y) == 1 != hint(x) and decide(eq(y, 1)):
            return x
        for one, other in ((x, y), (y, x)):
            if must_be_one(one, other) and is_met(eq(one, 1)):
                return other
    if not is_met(eq(x, y)):
        text = (
            f"The size of tensor a ({x}) must match the size of tensor b ({y}) "
            f"at non-singleton dimension {dim}"
        )
        if any(isinstance(n, Expr) and n.unbacked for n in (x, y)):
            _refuse_broadcast_of_data(text, a, b)
        fail(text)
    return y if y.__class__ is int else x


def _refuse_broadcast_of_data(text: str, a: Sizes, b: Sizes) -> NoReturn:
    """Refuse two sizes that eager could broadcast, since the unknown one may be 1 at run time."""
    raise DataDependentError.here(
        f"sizes {show(a)} and {show(b)} are broadcast, and one of them depends on data",
        why="a size that is not known is taken to be the other one, not 1, which cannot be in all "
        f"places: {text}",
        instead="if it is always 1, state it before that line, torch._check(n == 1)",
    )


def always_broadcasts(have: Size, want: Size) -> bool:
    """Does a dimension of size `have` provably broadcast to `want`? `x[:1]` does to `x`, even if
    `x` is empty. Never a guard."""
    return known(eq(have, 1) | eq(have, want)) is True


def must_be_one(have: Size, want: Size) -> bool:
    """Can `have` broadcast to `want` only if it is 1? So it is for `x[:1]` (0 or 1) and 4."""
    return known(eq(have, want)) is False and known(eq(want, 1)) is False


def hint(a: Size) -> int | None:
    """The example's value; None for an unbacked expression, and in a branch that the example does
    not take, unless it is known there."""
    if a.__class__ is Expr:
        a = current(a)
    if isinstance(a, int):
        return a
    return a.hint if a.env.facts.fits_example else None


# ------------------------------------------------------------------------------------------- dtypes


def scalar_dtype(value: Scalar) -> torch.dtype:
    """The dtype a Python (or symbolic) scalar has in type promotion."""
    if isinstance(value, (bool, BoolExpr)):
        return torch.bool
    if isinstance(value, (int, Expr)):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex128 if get_default_dtype() is torch.float64 else torch.complex64
    return get_default_dtype()


def category(dtype: torch.dtype) -> int:
    """0 bool, 1 integer, 2 floating, 3 complex."""
    return _CATEGORY[dtype]


_CATEGORY = {
    dtype: 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype is not torch.bool)
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def promote(*operands: TensorType | Scalar) -> torch.dtype:
    """The dtype in which torch computes these tensors and scalars. Tensors with dimensions rank
    first, then 0-d tensors, then scalars; a lower rank matters only if its category is higher."""
    first = operands[0]
    if first.__class__ is TensorType and first.size:
        dtype: torch.dtype = first.dtype
        for o in operands[1:]:
            if o.__class__ is TensorType and o.size and o.dtype is dtype:
                continue
            break
        else:
            return dtype
    return _promote(operands)


def _promote(operands: Sequence[TensorType | Scalar]) -> torch.dtype:
    best: list[torch.dtype | None] = [None, None, None]
    for o in operands:
        if o is None:
            continue
        if isinstance(o, TensorType):
            rank, dtype = (0 if o.size else 1), o.dtype
        else:
            rank, dtype = 2, scalar_dtype(o)
        b = best[rank]
        best[rank] = dtype if b is None else torch.promote_types(b, dtype)
    high: torch.dtype | None = None
    for dtype in best:  # type: ignore[assignment]
        if dtype is None:
            continue
        high = dtype if high is None else _combine(high, dtype)
    assert high is not None
    return high


def _combine(high: torch.dtype, low: torch.dtype) -> torch.dtype:
    if category(low) <= category(high):
        return high
    if high.is_floating_point:  # the precision stays that of the higher rank
        return high.to_complex()
    return torch.promote_types(high, low)


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself if it is floating or complex, else the default float dtype."""
    return dtype if dtype.is_floating_point or dtype.is_complex else get_default_dtype()


_REAL = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.complex32: torch.float16,
}


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of a complex one; itself otherwise."""
    return _REAL.get(dtype, dtype)


# ------------------------------------------------------------------------------------------ devices


def common_device(operands: Sequence[TensorType]) -> torch.device:
    """The device of the result. 0-d CPU tensors follow the others; else two devices raise."""
    device = operands[0].device
    scalar = not operands[0].size and device.type == "cpu"
    for o in operands[1:]:
        if o.device is device or o.device == device:
            scalar = scalar and not o.size
        elif not o.size and o.device.type == "cpu":
            continue
        elif scalar:
            device, scalar = o.device, False
        else:
            fail(
                "Expected all tensors to be on the same device, "
                f"but found at least two devices, {device} and {o.device}!"
            )
    return device


def require_same_sizes(one: Sequence[Size], other: Sequence[Size], text: str) -> None:
    if len(one) != len(other):
        fail(text)
    for a, b in zip(one, other, strict=True):
        require(eq(a, b), text)


def require_same_device(operands: Sequence[TensorType], op: str) -> torch.device:
    """The one device of all operands, for operators that do not move 0-d tensors of the CPU."""
    device = operands[0].device
    for o in operands[1:]:
        if o.device is not device and o.device != device:
            fail(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {o.device}! (when checking arguments of {op})"
            )
    return device


# ------------------------------------------------------------------------------------------ layouts


def elementwise(
    operands: Sequence[TensorType], dtype: torch.dtype, device: torch.device | None = None
) -> TensorType:
    """The result of a pointwise operator over these operands: broadcast size, and the strides eager
    gives it."""
    if device is None:
        device = operands[0].device if len(operands) == 1 else common_device(operands)
    size = operands[0].size
    if len(operands) > 1:
        size = broadcast_sizes([o.size for o in operands])
    for o in operands:
        if o._contiguous is not True or o.size != size:
            return TensorType(size, dtype, device, elementwise_strides(size, operands))
    return TensorType(size, dtype, device)


def elementwise_strides(size: Sizes, operands: Sequence[TensorType]) -> Sizes | None:
    """Strides of a pointwise result; None for row-major.

    Where all operands have the result's size and agree on a layout, the result has that layout.
    Else its dimensions are sorted by the strides of the first operand that tells them apart.
    """
    if all(are_same_sizes(o.size, size) for o in operands):
        if all(o.is_contiguous for o in operands):
            return None
        if len(size) == 4 and all(o.is_channels_last for o in operands):
            return channels_last_strides(size)
        first = operands[0]
        if first.is_dense and all(are_same_sizes(o.stride, first.stride) for o in operands[1:]):
            return first.stride
    order = _stride_order(size, [_aligned_strides(o, size) for o in operands])
    return strides_in_order(size, order)


def strides_in_order(size: Sizes, order: Sequence[int]) -> Sizes | None:
    """Dense strides whose dimensions run in this order, innermost first; None for row-major."""
    if list(order) == list(range(len(size) - 1, -1, -1)):
        return None
    out: list[Size] = [0] * len(size)
    step: Size = 1
    for d in order:
        out[d] = step
        step = step * size[d]
    return tuple(out)


def are_same_sizes(a: Sizes, b: Sizes) -> bool:
    """Are two tuples of sizes, or of strides, provably equal? Never a guard."""
    return a == b or (len(a) == len(b) and all(is_same(x, y) for x, y in zip(a, b, strict=True)))


def _aligned_strides(o: TensorType, size: Sizes) -> list[Size]:
    """Strides aligned to the result's dimensions; broadcast dimensions have stride 0."""
    pad = len(size) - len(o.size)
    out: list[Size] = [0] * pad
    for d, s in enumerate(o.size):
        expanded = is_one(s) and not is_one(size[pad + d])
        out.append(0 if expanded else o.stride[d])
    return out


def _stride_order(size: Sizes, strides: Sequence[Sequence[Size]]) -> list[int]:
    """The dimensions, innermost first. An insertion sort, since a comparison may be undecided."""
    order = list(range(len(size) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            swap = _should_swap(order[j], order[at], size, strides)
            if swap > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif swap < 0:
                break
    return order


def _should_swap(a: int, b: int, size: Sizes, strides: Sequence[Sequence[Size]]) -> int:
    for s in strides:
        x, y = s[a], s[b]
        if is_zero(x) or is_zero(y):
            continue
        c = compare_strides(x, y, (size[a], size[b]))
        if c:
            return c
        if compare_strides(size[a], size[b]) > 0:
            return 1
    return 0


def compare_strides(x: Size, y: Size, sizes: tuple[Size, Size] | None = None) -> int:
    """-1, 0 or 1. A symbolic size that multiplies a stride counts as at least 1, since the layout
    of an empty tensor addresses nothing. If the sizes of the two dimensions are given, a dimension
    whose stride spans the whole other one is the outer one."""
    if x.__class__ is int and y.__class__ is int:
        return (x > y) - (x < y)
    if is_same(x, y):
        return 0
    for a, b, sign in ((x, y, 1), (y, x, -1)):
        q = quotient(a, b)
        if q is not None and (q.__class__ is not int or q > 1):
            return sign
        if _is_larger_product(a, b):
            return sign
        if known(a >= b) is True:  # if they are equal, the order hardly matters
            return sign
    if sizes is not None:
        for a, b, count, sign in ((x, y, sizes[1], 1), (y, x, sizes[0], -1)):
            rows = quotient(a, count)
            if known(a >= b * count) is True or (rows is not None and _is_larger_product(rows, b)):
                return sign
    return -1 if decide(x < y) else 1


def _is_larger_product(a: Size, b: Size) -> bool:
    """Is `a` at least `b` if the sizes that multiply all of it, and are not in `b`, are 1, `24*n`
    beside 23, `s*n` beside `n - 1`?"""
    if not isinstance(a, Expr):
        return False
    terms: Mapping[tuple[Atom, ...], int] = b.terms if isinstance(b, Expr) else {(): b}
    _, shared = common_factor(a.terms, terms)
    a = a.divide_terms(1, shared)
    b = b.divide_terms(1, shared) if isinstance(b, Expr) else b
    inside = b.atoms() if isinstance(b, Expr) else ()
    _, factors = common_factor(a.terms)
    sizes = tuple(atom for atom in factors if atom not in inside)
    return known(a.divide_terms(1, sizes) >= b) is True


def preserved_strides(x: TensorType) -> Sizes | None:
    """Strides of a copy that keeps the layout (`clone`, `empty_like`): the same if dense, else
    dense in the same order."""
    if x.is_contiguous and 1 not in x.size and 0 not in x.size:
        return None
    if x.is_dense:
        return x.stride
    return strides_in_order(x.size, _stride_order(x.size, [x.stride]))


def format_strides(size: Sizes, memory_format: torch.memory_format) -> Sizes | None:
    """Strides of a new tensor in a memory format; None for row-major."""
    if memory_format is torch.contiguous_format:
        return None
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        want = 4 if memory_format is torch.channels_last else 5
        if len(size) != want:
            fail(
                f"required rank {want} tensor to use "
                f"{'channels_last' if want == 4 else 'channels_last_3d'} format"
            )
        return channels_last_strides(size)
    raise RuntimeError(f"unsupported memory format {memory_format}")


def copy_strides(x: TensorType, memory_format: torch.memory_format | None) -> Sizes | None:
    """Strides of a copy of `x` in this memory format; preserving is the default."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(x)
    return format_strides(x.size, memory_format)


__all__ = [
    "Scalar",
    "Sizes",
    "TensorType",
    "broadcast_sizes",
    "category",
    "channels_last_strides",
    "common_device",
    "compare_strides",
    "contiguous_strides",
    "copy_strides",
    "elementwise",
    "elementwise_strides",
    "fail",
    "float_dtype",
    "format_strides",
    "hint",
    "is_met",
    "is_one",
    "is_same",
    "is_zero",
    "preserved_strides",
    "product",
    "promote",
    "real_dtype",
    "require",
    "require_same_device",
    "require_same_sizes",
    "scalar_dtype",
    "show",
    "strides_in_order",
    "wrap_dim",
    "wrap_dims",
]
