"""Type rules of the three Fourier transforms under `torch.fft`: complex, real-to-complex, complex-
to-real.

On a CPU with MKL the transformed dimensions come out innermost and the others keep their order;
elsewhere results are row-major. Padding, trimming and normalisation have been done before these
arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cmp_to_key

import torch

from lostwax.ops.registry import aten, rule
from lostwax.ops.shapes import compare_strides, fail, preserved_strides, require, wrap_dim
from lostwax.ops.spelling import scalar_type
from lostwax.sym import Size
from lostwax.types import Sizes, TensorType

_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL = {c: r for r, c in _COMPLEX.items()}


@cache
def _has_mkl() -> bool:
    return bool(torch.backends.mkl.is_available())


def _outermost_first(x: TensorType, dims: Sequence[int]) -> list[int]:
    def order(a: int, b: int) -> int:
        return compare_strides(x.stride[b], x.stride[a])

    return sorted(dims, key=cmp_to_key(order))


def _transformed(
    x: TensorType, size: Sizes, dtype: torch.dtype, inner: Sequence[int]
) -> TensorType:
    """The result of a transform whose innermost dimensions are these, in this order."""
    if x.device.type != "cpu" or not _has_mkl():
        return TensorType(size, dtype, x.device)
    for s in x.size:
        require(
            s >= 1, "MKL FFT error: Intel oneMKL DFTI ERROR: Inconsistent configuration parameters"
        )
    outer = _outermost_first(x, [d for d in range(len(size)) if d not in inner])
    stride: list[Size] = [0] * len(size)
    step: Size = 1
    for d in reversed([*outer, *inner]):
        stride[d] = step
        step = step * size[d]
    return TensorType(size, dtype, x.device, tuple(stride))


def _require_complex(x: TensorType) -> None:
    if not x.dtype.is_complex:
        fail(f"Only supports complex dtypes, but found: {scalar_type(x.dtype)}")


@rule(aten._fft_c2c.default)
def fft_c2c(self: TensorType, dim: Sequence[int], normalization: int, forward: bool) -> TensorType:
    _require_complex(self)
    if not dim:
        return TensorType(self.size, self.dtype, self.device, preserved_strides(self))
    dims = [wrap_dim(d, len(self.size)) for d in dim]
    return _transformed(self, self.size, self.dtype, _outermost_first(self, dims))


@rule(aten._fft_r2c.default)
def fft_r2c(self: TensorType, dim: Sequence[int], normalization: int, onesided: bool) -> TensorType:
    if self.dtype not in _COMPLEX:
        fail(f"Only supports floating-point dtypes, but found: {scalar_type(self.dtype)}")
    *first, last = [wrap_dim(d, len(self.size)) for d in dim]
    size = list(self.size)
    if onesided:
        size[last] = size[last] // 2 + 1
    inner = [*_outermost_first(self, first), last]
    return _transformed(self, tuple(size), _COMPLEX[self.dtype], inner)


@rule(aten._fft_c2r.default)
def fft_c2r(
    self: TensorType, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> TensorType:
    """All but the last dimension are transformed first, complex to complex."""
    _require_complex(self)
    *first, last = [wrap_dim(d, len(self.size)) for d in dim]
    x = fft_c2c(self, first, normalization, False) if first else self
    size = list(x.size)
    size[last] = last_dim_size
    return _transformed(x, tuple(size), _REAL[self.dtype], [last])
