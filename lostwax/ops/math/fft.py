"""Type rules of the three Fourier transforms under `torch.fft`: complex, real-to-complex, complex-
to-real.

MKL (on the CPU) and cuFFT put the transformed dimensions innermost and keep the order of the
others; elsewhere results are row-major. cuFFT transforms three dimensions at once; of a real tensor
it transforms the last one alone if the other two are the first. torch pads, trims and normalises
before it calls these operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

import torch

from lostwax.cache import cached
from lostwax.ops.elementwise import new_like
from lostwax.ops.registry import mark_writing_forms, rule
from lostwax.ops.shapes import compare_strides, fail, is_same, require, wrap_dim
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Size
from lostwax.torch_version import FFT_DTYPE_ERROR, FFT_TAKES_EMPTY
from lostwax.types import Sizes, TensorType

_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL = {c: r for r, c in _COMPLEX.items()}


@cached()
def _has_mkl() -> bool:
    return bool(torch.backends.mkl.is_available())


def _sort_outermost_first(x: TensorType, dims: Sequence[int]) -> list[int]:
    def order(a: int, b: int) -> int:
        return compare_strides(x.stride[b], x.stride[a])

    return sorted(dims, key=cmp_to_key(order))


def _transform_dims(
    x: TensorType, size: Sizes, dtype: torch.dtype, inner: Sequence[int]
) -> TensorType:
    """The result of a transform that puts these dimensions innermost, in this order."""
    is_cpu = x.device.type == "cpu"
    if x.device.type != "cuda" and not (is_cpu and _has_mkl()):
        return TensorType(size, dtype, x.device)
    for s in x.size if is_cpu and not FFT_TAKES_EMPTY else ():
        require(
            s >= 1, "MKL FFT error: Intel oneMKL DFTI ERROR: Inconsistent configuration parameters"
        )
    outer = _sort_outermost_first(x, [d for d in range(len(size)) if d not in inner])
    stride: list[Size] = [0] * len(size)
    step: Size = 1
    for d in reversed([*outer, *inner]):
        stride[d] = step
        step = step * size[d]
    return TensorType(size, dtype, x.device, tuple(stride))


_AT_ONCE = 3
"""Dimensions that cuFFT transforms."""


def _transforms_at_once(x: TensorType, dims: Sequence[int]) -> bool:
    """Does cuFFT transform these dimensions together, in the order given? For speed, torch does not
    let it if they are the first two."""
    return x.device.type == "cuda" and len(dims) <= _AT_ONCE and list(dims[:2]) != [0, 1]


def _transform_one_by_one(x: TensorType, dims: Sequence[int]) -> TensorType:
    """The result of transforming many dimensions of complex numbers, the innermost first."""
    dims = _sort_outermost_first(x, dims)
    while dims:
        last = dims[-_AT_ONCE:] if x.device.type == "cuda" else dims
        x = _transform_dims(x, x.size, x.dtype, last)
        dims = _sort_outermost_first(x, dims[: len(dims) - len(last)])
    return x


def _require_complex(x: TensorType) -> None:
    if not x.dtype.is_complex:
        fail(f"Only supports complex dtypes, but found: {scalar_type(x.dtype)}")


@rule("_fft_c2c")
def fft_c2c(self: TensorType, dim: Sequence[int], normalization: int, forward: bool) -> TensorType:
    _require_complex(self)
    if not dim:
        return new_like(self)
    dims = [wrap_dim(d, len(self.size)) for d in dim]
    return _transform_one_by_one(self, dims)


@rule("_fft_r2c")
def fft_r2c(self: TensorType, dim: Sequence[int], normalization: int, onesided: bool) -> TensorType:
    if self.dtype not in _COMPLEX:
        dtype_found = scalar_type(self.dtype)
        fail(f"Only supports floating-point dtypes, but found: {dtype_found}", FFT_DTYPE_ERROR)
    dims = [wrap_dim(d, len(self.size)) for d in dim]
    *first, last = dims
    dtype, size = _COMPLEX[self.dtype], list(self.size)
    half = size[last] // 2 + 1
    if onesided:
        size[last] = half
    if self.device.type != "cuda":
        inner = [*_sort_outermost_first(self, first), last]
        return _transform_dims(self, tuple(size), dtype, inner)
    if _transforms_at_once(self, dims):
        return _transform_dims(self, tuple(size), dtype, dims)
    if not onesided and first and not is_same(size[last], half):  # torch fills a new tensor up
        return TensorType(tuple(size), dtype, self.device)
    return _transform_one_by_one(_transform_dims(self, tuple(size), dtype, [last]), first)


@rule("_fft_c2r")
def fft_c2r(
    self: TensorType, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> TensorType:
    """torch first transforms all dimensions but the last, complex to complex."""
    _require_complex(self)
    dims = [wrap_dim(d, len(self.size)) for d in dim]
    *first, last = dims
    if _transforms_at_once(self, dims):
        size = list(self.size)
        size[last] = last_dim_size
        x = TensorType(self.size, self.dtype, self.device)  # torch copies it
        return _transform_dims(x, tuple(size), _REAL[self.dtype], dims)
    x = fft_c2c(self, first, normalization, False) if first else self
    size = list(x.size)
    size[last] = last_dim_size
    return _transform_dims(x, tuple(size), _REAL[self.dtype], [last])


mark_writing_forms(Trait.ROW_MAJOR_OUT, "fft_fft fft_fftfreq fft_rfftfreq")
mark_writing_forms(
    Trait.ROW_MAJOR_OUT_ON_CPU,
    "_fft_c2c _fft_r2c _fft_c2r fft_ifft fft_rfft "
    "fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 "
    "fft_ihfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn fft_ihfftn",
)
