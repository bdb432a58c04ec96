"""Tensors made from nothing but sizes and numbers, and new tensors like another.

The size is an argument; the dtype is given, or the default, or follows from a number. Random
tensors are in `random.py`. Must not know of data: numbers only decide dtype and length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import get_default_dtype

from lostwax import torch_version
from lostwax.ops.registry import mark, mark_overloads, rule
from lostwax.ops.shapes import (
    Scalar,
    category,
    copy_strides,
    fail,
    format_strides,
    is_met,
    require,
    scalar_dtype,
    show,
)
from lostwax.ops.spelling import cpp_type, scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Expr, Size, ceildiv, decide, ne
from lostwax.sym.numbers.real import Real, real
from lostwax.types import Sizes, TensorType, contiguous_strides

CPU = torch.device("cpu")
Device = torch.device | str | None


def new_tensor(
    size: Sequence[Size],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Device = None,
    stride: Sizes | None = None,
    pin_memory: bool | None = None,
    generator: torch.Generator | None = None,
) -> TensorType:
    """A new tensor of this size; by default of the default dtype, on the CPU. Rules pass on the
    options that they are called with: pinning and generators do not matter to types."""
    for s in size:
        if (s.__class__ is not int or s < 0) and not is_met(s >= 0):
            fail(f"Trying to create tensor with negative dimension {s}: {show(size)}")
    where = CPU if device is None else torch.device(device)
    kind = get_default_dtype() if dtype is None else dtype
    return TensorType(tuple(size), kind, where, stride, 0, layout or torch.strided)


def new_tensor_like(
    x: TensorType,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Device = None,
    memory_format: torch.memory_format | None = None,
    pin_memory: bool | None = None,
    generator: torch.Generator | None = None,
) -> TensorType:
    """A new tensor of the size and, by default, the dtype, device and memory layout of another."""
    where = x.device if device is None else torch.device(device)
    stride = copy_strides(x, memory_format)
    return TensorType(x.size, dtype or x.dtype, where, stride, 0, layout or x.layout)


# ---------------------------------------------------------------------------------- of a given size


@rule("zeros ones _efficientzerotensor")
def zeros(size: Sequence[Size], **options: Any) -> TensorType:
    return new_tensor(size, **options)


@rule("full")
def full(
    size: Sequence[Size], fill_value: Scalar, *, dtype: torch.dtype | None = None, **options: Any
) -> TensorType:
    return new_tensor(size, dtype or scalar_dtype(fill_value), **options)


@rule("scalar_tensor")
def scalar_tensor(s: Scalar, **options: Any) -> TensorType:
    return new_tensor((), **options)


@rule("empty.memory_format")
def empty(
    size: Sequence[Size], *, memory_format: torch.memory_format | None = None, **options: Any
) -> TensorType:
    stride = None
    if memory_format is torch.preserve_format:
        fail("unsupported memory format Preserve")
    if memory_format is not None:
        stride = format_strides(tuple(size), memory_format)
    return new_tensor(size, stride=stride, **options)


def _check_strides(size: Sequence[Size], stride: Sequence[Size]) -> Sizes:
    if len(size) != len(stride):
        fail(
            f"dimensionality of sizes ({len(size)}) must match dimensionality of strides "
            f"({len(stride)})"
        )
    for step in stride:
        if not is_met(step >= 0):
            fail(
                f"Storage size calculation overflowed with sizes={show(size)} and "
                f"strides={show(stride)}"
            )
    return tuple(stride)


@rule("empty_strided")
def empty_strided(size: Sequence[Size], stride: Sequence[Size], **options: Any) -> TensorType:
    return new_tensor(size, stride=_check_strides(size, stride), **options)


@rule("empty_permuted")
def empty_permuted(
    size: Sequence[Size],
    physical_layout: Sequence[int],
    **options: Any,
) -> TensorType:
    rank = len(size)
    if len(physical_layout) != rank:
        fail(
            "Number of dimensions in size does not match the length of the physical_layout; i.e. "
            f"len(size) = {rank} is not equal to len(physical_layout) = {len(physical_layout)}"
        )
    for i, d in enumerate(physical_layout):
        if not 0 <= d < rank:
            fail(
                f"Dimension out of range (expected to be between 0 and {rank - 1}, but got {d} at "
                f"index {i}).  NB: negative dims not currently supported; file an issue if you "
                "want it."
            )
    if len(set(physical_layout)) != rank:
        fail("Duplicate dim not allowed")
    stride: list[Size] = [0] * rank
    for d, step in zip(
        physical_layout, contiguous_strides([size[d] for d in physical_layout]), strict=True
    ):
        stride[d] = step
    return new_tensor(size, stride=tuple(stride), **options)


# ------------------------------------------------------------------------------------- like another


@rule("empty_like zeros_like ones_like")
def empty_like(self: TensorType, **options: Any) -> TensorType:
    return new_tensor_like(self, **options)


@rule("full_like")
def full_like(self: TensorType, fill_value: Scalar, **options: Any) -> TensorType:
    return new_tensor_like(self, **options)


@rule("new_empty new_zeros new_ones")
def new_empty(
    self: TensorType,
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    device: Device = None,
    **options: Any,
) -> TensorType:
    where = self.device if device is None else device
    return new_tensor(size, dtype or self.dtype, device=where, **options)


@rule("new_full")
def new_full(
    self: TensorType, size: Sequence[Size], fill_value: Scalar, **options: Any
) -> TensorType:
    return new_empty(self, size, **options)  # type: ignore[no-any-return]


@rule("new_empty_strided")
def new_empty_strided(
    self: TensorType, size: Sequence[Size], stride: Sequence[Size], **options: Any
) -> TensorType:
    return new_empty(self, size, stride=_check_strides(size, stride), **options)  # type: ignore[no-any-return]


mark(
    Trait.UNINITIALIZED,
    "empty.memory_format empty_like empty_strided empty_permuted new_empty",
    "new_empty_strided",
)
mark(
    Trait.ROW_MAJOR,
    "new_zeros new_ones new_full new_empty",
)


# ---------------------------------------------------------------------------------------- sequences


def _is_whole(x: Scalar) -> bool:
    return isinstance(x, (int, Expr))


def _truncate(x: Scalar) -> Size:
    """A number as the kernel for int64 results reads it."""
    if isinstance(x, Real):
        return x.trunc()
    return x if isinstance(x, Expr) else int(x)


def _check_range(start: Scalar, end: Scalar, step: Scalar) -> None:
    for x in (start, end):
        if isinstance(x, float) and not math.isfinite(x):
            fail(f"unsupported range: {start} -> {end}")
    require(step != 0 if isinstance(step, float) else ne(step, 0), "step must be nonzero")
    ordered = end >= start if _is_positive(step) else end <= start
    require(ordered, "upper bound and lower bound inconsistent with step sign")


def _is_positive(step: Scalar) -> bool:
    return bool(step > 0) if isinstance(step, (int, float)) else decide(step > 0)


def range_length(start: Scalar, end: Scalar, step: Scalar, dtype: torch.dtype) -> Size:
    """How many numbers `arange` makes."""
    if dtype is torch.int64 and torch_version.ARANGE_TRUNCATES_BOUNDS:
        start, end, step = _truncate(start), _truncate(end), _truncate(step)
    _check_range(start, end, step)
    if _is_whole(start) and _is_whole(end) and _is_whole(step):
        if _is_positive(step):
            return ceildiv(end - start, step)
        return ceildiv(start - end, -step)
    first, last, apart = (x if isinstance(x, Real) else real(x) for x in (start, end, step))
    span = (last - first) / apart
    return span.ceil() if isinstance(span, Real) else math.ceil(span)


def _arange(
    start: Scalar,
    end: Scalar,
    step: Scalar,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> TensorType:
    for x in (start, end, step):
        if isinstance(x, complex):
            fail("value cannot be converted to type double without overflow")
    if dtype is None:
        whole = _is_whole(start) and _is_whole(end) and _is_whole(step)
        dtype = torch.int64 if whole else get_default_dtype()
    return new_tensor((range_length(start, end, step, dtype),), dtype, **options)


@rule("arange")
def arange(end: Scalar, **options: Any) -> TensorType:
    return _arange(0, end, 1, **options)


@rule("arange.start")
def arange_start(start: Scalar, end: Scalar, **options: Any) -> TensorType:
    return _arange(start, end, 1, **options)


@rule("arange.start_step")
def arange_step(start: Scalar, end: Scalar, step: Scalar = 1, **options: Any) -> TensorType:
    return _arange(start, end, step, **options)


@rule("range", "range.step")
def range_(start: Scalar, end: Scalar, step: Scalar = 1, **options: Any) -> TensorType:
    _check_range(start, end, step)
    return new_tensor((math.floor((end - start) / step) + 1,), **options)


def _linspace(
    name: str,
    start: Scalar,
    end: Scalar,
    steps: Size,
    dtype: torch.dtype | None = None,
    device: Device = None,
    **options: Any,
) -> TensorType:
    require(steps >= 0, "number of steps must be non-negative")
    ranks = [len(x.size) if isinstance(x, TensorType) else 0 for x in (start, end)]
    if any(ranks):
        fail(
            f"{name} only supports 0-dimensional start and end tensors, but got start with "
            f"{ranks[0]} dimension(s) and end with {ranks[1]} dimension(s)."
        )
    kinds = [x.dtype if isinstance(x, TensorType) else scalar_dtype(x) for x in (start, end)]
    if any(category(k) == 3 for k in kinds):
        inferred = scalar_dtype(1j)
        if dtype is not None and not dtype.is_complex:
            fail(
                f"torch.{name}(): inferred dtype {cpp_type(inferred)} can't be safely cast to "
                f"passed dtype {scalar_type(dtype)}"
            )
        dtype = dtype or inferred
    tensors = [x for x in (start, end) if isinstance(x, TensorType)]
    where = tensors[0].device if tensors and device is None else device
    return new_tensor((steps,), dtype, device=where, **options)


@rule(
    "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor",
)
def linspace(start: Scalar, end: Scalar, steps: Size, **options: Any) -> TensorType:
    return _linspace("linspace", start, end, steps, **options)


@rule(
    "logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor",
)
def logspace(
    start: Scalar, end: Scalar, steps: Size, base: float = 10.0, **options: Any
) -> TensorType:
    return _linspace("logspace", start, end, steps, **options)


@rule("fft_fftfreq")
def fftfreq(n: Size, d: float = 1.0, **options: Any) -> TensorType:
    return zeros((n,), **options)  # type: ignore[no-any-return]


@rule("fft_rfftfreq")
def rfftfreq(n: Size, d: float = 1.0, **options: Any) -> TensorType:
    return zeros((n // 2 + 1,), **options)  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------- matrices and windows


@rule("eye", "eye.m")
def eye(n: Size, m: Size | None = None, **options: Any) -> TensorType:
    columns = n if m is None else m
    if not is_met(n >= 0):
        fail(f"n must be greater or equal to 0, got {n}")
    if not is_met(columns >= 0):
        fail(f"m must be greater or equal to 0, got {columns}")
    return zeros((n, columns), **options)  # type: ignore[no-any-return]


def _below_diagonal(rows: int, columns: int, offset: int) -> int:
    """How many positions of a matrix lie on or below a diagonal."""
    return sum(min(max(i + offset + 1, 0), columns) for i in range(rows))


def _triangle(
    row: int,
    col: int,
    count: int,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    **options: Any,
) -> TensorType:
    if row < 0:
        fail(f"row must be non-negative, got{row}")
    if col < 0:
        fail(f"col must be non-negative, got{col}")
    return new_tensor((2, count), dtype or torch.int64, **options)


@rule("tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, **options: Any) -> TensorType:
    return _triangle(row, col, _below_diagonal(row, col, offset), **options)


@rule("triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, **options: Any) -> TensorType:
    count = max(row, 0) * max(col, 0) - _below_diagonal(row, col, offset - 1)
    return _triangle(row, col, count, **options)


_WINDOWS = {
    "bartlett": "default periodic",
    "blackman": "default periodic",
    "hann": "default periodic",
    "hamming": "default periodic periodic_alpha periodic_alpha_beta",
    "kaiser": "default periodic beta",
}


def _window(name: str, length: Size, dtype: torch.dtype | None, device: Device) -> TensorType:
    kind = dtype or get_default_dtype()
    if not (kind.is_floating_point or kind.is_complex):
        fail(f"{name}_window expects floating point dtypes, got: {kind}")
    if not is_met(length >= 0):
        fail(f"{name}_window requires non-negative window_length, got window_length={length}")
    return new_tensor((length,), kind, None, device)


for _name, _overloads in _WINDOWS.items():

    def _rule_of_window(
        window_length: Size,
        *shape: object,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: Device = None,
        pin_memory: bool | None = None,
        _name: str = _name,
    ) -> TensorType:
        return _window(_name, window_length, dtype, device)

    rule(*(f"{_name}_window.{overload}" for overload in _overloads.split()))(_rule_of_window)


mark(
    Trait.RANGE,
    "arange arange.start arange.start_step linspace logspace",
)
mark_overloads(
    Trait.FACTORY,
    "zeros ones full empty empty_strided zeros_like ones_like full_like empty_like "
    "arange eye linspace logspace scalar_tensor tril_indices triu_indices hann_window "
    "hamming_window bartlett_window",
)
# `x.numpy()`
mark(Trait.BEFORE_NUMPY, "to.dtype_layout")
