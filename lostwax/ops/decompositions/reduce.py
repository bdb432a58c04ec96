"""Sums, norms and extremes over dimensions. Half precision is computed in float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.pointwise import scalar_like
from lostwax.ops.decompositions.precision import as_float, cast, compute_in_float32
from lostwax.ops.registry import aten, decomposition


@decomposition("sum")
def total(self: Tensor, *, dtype: Any = None) -> Any:
    return aten.sum.dim_IntList(self, [], False, **({} if dtype is None else {"dtype": dtype}))


@decomposition("max")
def largest(self: Tensor) -> Any:
    return aten.amax.default(self, [])


@decomposition("min")
def smallest(self: Tensor) -> Any:
    return aten.amin.default(self, [])


@decomposition("aminmax")
def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = [] if dim is None else [dim]
    if self.dim() == 0:
        dims = []
    return aten.amin.default(self, dims, keepdim), aten.amax.default(self, dims, keepdim)


def _to_bool(x: Tensor) -> Any:
    return x if x.dtype is torch.bool else aten.ne.Scalar(x, 0)


def _cast_answer(out: Tensor, x: Tensor) -> Any:
    """`all` and `any` return uint8 for uint8."""
    return cast(out, torch.uint8) if x.dtype is torch.uint8 else out


@decomposition("all")
def every(self: Tensor) -> Any:
    some_not = aten.any.default(aten.logical_not.default(_to_bool(self)))
    return _cast_answer(aten.logical_not.default(some_not), self)


@decomposition("all.dim")
def every_along(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    some_not = aten.any.dim(aten.logical_not.default(_to_bool(self)), dim, keepdim)
    return _cast_answer(aten.logical_not.default(some_not), self)


@decomposition("all.dims")
def every_of(self: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    some_not = aten.any.dims(aten.logical_not.default(_to_bool(self)), dim, keepdim)
    return _cast_answer(aten.logical_not.default(some_not), self)


@decomposition("_is_all_true")
def is_all_true(self: Tensor) -> Any:
    return every(self)


@decomposition("_is_any_true")
def is_any_true(self: Tensor) -> Any:
    return aten.any.default(self)


@decomposition("std.correction")
@compute_in_float32
def std(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return aten.sqrt.default(aten.var.correction(self, dim, correction=correction, keepdim=keepdim))


@decomposition("var_mean.correction")
def var_mean(
    self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    mean = aten.mean.dim(self, [] if dim is None else dim, keepdim)
    return aten.var.correction(self, dim, correction=correction, keepdim=keepdim), mean


@decomposition("std_mean.correction")
def std_mean(
    self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    mean = aten.mean.dim(self, [] if dim is None else dim, keepdim)
    return std(self, dim, correction=correction, keepdim=keepdim), mean


@decomposition("logsumexp")
def logsumexp(self: Tensor, dim: Any, keepdim: bool = False) -> Any:
    """Computed relative to the largest (unless infinite), so that no exponential overflows."""
    if self.dtype.is_complex or any(s.__class__ is int and s == 0 for s in self.shape):
        raise NotImplementedError("there is no largest")
    return _logsumexp(as_float(self), [dim] if isinstance(dim, int) else dim, keepdim)


@compute_in_float32
def _logsumexp(x: Tensor, dims: Any, keepdim: bool) -> Any:
    top = aten.amax.default(x, dims, True)
    is_far = aten.eq.Scalar(aten.abs.default(top), math.inf)
    top = aten.where.self(is_far, scalar_like(0.0, top), top)
    powers = aten.exp.default(aten.sub.Tensor(x, top))
    out = aten.log.default(aten.sum.dim_IntList(powers, dims, keepdim))
    return aten.add.Tensor(out, top if keepdim else _squeeze_dims(top, dims))


def _squeeze_dims(x: Tensor, dims: Any) -> Any:
    everywhere = list(range(x.dim()))
    return aten.squeeze.dims(x, list(dims) or everywhere) if x.dim() else x


@decomposition("linalg_vector_norm")
def vector_norm(
    self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if self.dtype.is_complex or (dtype is not None and dtype.is_complex):
        raise NotImplementedError("complex numbers have few core operators")
    x = self if dtype is None else cast(self, dtype)
    return _norm(x, float(ord), [] if dim is None else dim, keepdim)


@compute_in_float32
def _norm(x: Tensor, order: float, dims: Any, keepdim: bool) -> Any:
    if order == 0.0:
        return aten.sum.dim_IntList(cast(aten.ne.Scalar(x, 0), x.dtype), dims, keepdim)
    if order == 2.0:
        return aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(x, x), dims, keepdim))
    size = aten.abs.default(x)
    if math.isinf(order):
        extreme = aten.amax.default if order > 0 else aten.amin.default
        return extreme(size, dims, keepdim)
    if order == 1.0:
        return aten.sum.dim_IntList(size, dims, keepdim)
    powers = aten.sum.dim_IntList(aten.pow.Tensor_Scalar(size, order), dims, keepdim)
    return aten.pow.Tensor_Scalar(powers, 1 / order)


@decomposition("_safe_softmax")
def safe_softmax(self: Tensor, dim: int, dtype: Any = None) -> Any:
    """A row that is all -inf gets 0 instead of 0 / 0."""
    x = self if dtype is None else cast(self, dtype)
    seen = aten.any.dim(aten.ne.Scalar(self, -math.inf), dim, True)
    out = aten._softmax.default(x, dim, False)
    return aten.where.self(seen, out, scalar_like(0.0, out))
