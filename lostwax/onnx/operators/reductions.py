"""Operators that make one element of many: sums, extrema, means, norms, softmax, scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import known
from lostwax.types import product

Dims = Any


def _axes(on: OnnxWriter, self: OnnxTensor, dim: Dims) -> list[int]:
    """The dims that are reduced; none given are all."""
    if not self.rank:
        return []
    if dim is None or (isinstance(dim, list) and not dim):
        return list(range(self.rank))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted(d % self.rank for d in dims)


def reduce(
    on: OnnxWriter, op: str, x: OnnxTensor, axes: list[int], keepdim: bool = False
) -> OnnxTensor:
    """A reduction of some dims; of none, the tensor itself. Dims count from the first: of empty
    tensors onnxruntime reduces no others."""
    if not axes:
        return x
    assert min(axes) >= 0, axes
    if op == "ReduceMean" and x.type is not None:
        count = product([x.size[d] for d in axes])
        if known(count >= 1) is not True:  # the mean of nothing is NaN, onnxruntime gives 0
            total = reduce(on, "ReduceSum", x, axes, keepdim)
            return on.Div(total, on.operand(count, x.dtype))
    made: OnnxTensor = on.write(op, [x, on.ints(*axes)], keepdims=int(keepdim))
    return made


def _in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which runtimes reduce: they have no kernels for narrow integers."""
    return dtype if dtype.is_floating_point or dtype in (torch.int32, torch.int64) else torch.int64


def _reduction(op: str) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter, self: OnnxTensor, dim: Dims = None, keepdim: bool = False, **_: Any
    ) -> OnnxTensor:
        dtype = on.out.dtype
        x = on.cast(self, _in(dtype))
        return on.cast(reduce(on, op, x, _axes(on, self, dim), keepdim), dtype)

    return write


translation("sum.dim_IntList", "sum")(_reduction("ReduceSum"))
translation("amax", "max")(_reduction("ReduceMax"))
translation("amin", "min")(_reduction("ReduceMin"))
translation("prod", "prod.dim_int")(_reduction("ReduceProd"))
translation("logsumexp")(_reduction("ReduceLogSumExp"))
translation("mean.dim", "mean")(_reduction("ReduceMean"))


def _truth(op: str) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter, self: OnnxTensor, dim: Dims = None, keepdim: bool = False
    ) -> OnnxTensor:
        x = on.cast(on.cast(self, torch.bool), torch.int32)
        if op == "ReduceMax":  # of no elements it would be the least number, and not 0
            x = reduce(on, "ReduceSum", x, _axes(on, self, dim), keepdim)
        else:
            x = reduce(on, "ReduceMin", x, _axes(on, self, dim), keepdim)
        return on.cast(on.cast(x, torch.bool), on.out.dtype)

    return write


translation("any", "any.dim", "any.dims")(_truth("ReduceMax"))
translation("all", "all.dim", "all.dims", "_is_all_true")(_truth("ReduceMin"))


def _argument(op: str) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter, self: OnnxTensor, dim: int | None = None, keepdim: bool = False
    ) -> OnnxTensor:
        x = on.cast(self, _in(self.dtype))
        if not self.rank:
            return on.constant(0, torch.int64)
        if dim is None:
            flat = on.write(op, [on.Reshape(x, on.ints(-1))], axis=0, keepdims=0)
            return on.Reshape(flat, on.ints(*[1] * self.rank)) if keepdim else flat
        made: OnnxTensor = on.write(op, [x], axis=dim % self.rank, keepdims=int(keepdim))
        return made

    return write


translation("argmax")(_argument("ArgMax"))
translation("argmin")(_argument("ArgMin"))


def _extremum(op: str, arg: str) -> Callable[..., list[OnnxTensor]]:
    find = _argument(arg)

    def write(
        on: OnnxWriter, self: OnnxTensor, dim: int, keepdim: bool = False
    ) -> list[OnnxTensor]:
        x = on.cast(self, _in(self.dtype))
        values = reduce(on, op, x, _axes(on, self, dim), keepdim)
        return [on.cast(values, self.dtype), find(on, self, dim, keepdim)]

    return write


translation("max.dim")(_extremum("ReduceMax", "ArgMax"))
translation("min.dim")(_extremum("ReduceMin", "ArgMin"))


@translation("aminmax")
def aminmax(
    on: OnnxWriter, self: OnnxTensor, *, dim: Any = None, keepdim: bool = False
) -> list[OnnxTensor]:
    axes = _axes(on, self, dim)
    return [reduce(on, op, self, axes, keepdim) for op in ("ReduceMin", "ReduceMax")]


# ------------------------------------------------------------------------------- variance


def _variance(
    on: OnnxWriter,
    self: OnnxTensor,
    dim: Dims = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[OnnxTensor, OnnxTensor]:
    axes = _axes(on, self, dim)
    count = product([self.size[d] for d in axes])
    mean = reduce(on, "ReduceMean", self, axes, True)
    apart = on.Sub(self, mean)
    total = reduce(on, "ReduceSum", on.Mul(apart, apart), axes, keepdim)
    correction = 1 if correction is None else correction
    number: Any
    if isinstance(count, int):
        number = on.constant(max(count - correction, 0), self.dtype)
    else:
        number = on.Sub(on.operand(count, self.dtype), on.constant(correction, self.dtype))
        number = on.Max(number, on.constant(0, self.dtype))
    if not keepdim and axes:
        mean = on.Squeeze(mean, on.ints(*axes))
    return on.Div(total, number), mean


@translation("var.correction")
def var(on: OnnxWriter, self: OnnxTensor, *dim: Dims, **options: Any) -> OnnxTensor:
    return _variance(on, self, *dim, **options)[0]


@translation("std.correction")
def std(on: OnnxWriter, self: OnnxTensor, *dim: Dims, **options: Any) -> OnnxTensor:
    return on.Sqrt(_variance(on, self, *dim, **options)[0])


@translation("var_mean.correction")
def var_mean(on: OnnxWriter, self: OnnxTensor, *dim: Dims, **options: Any) -> list[OnnxTensor]:
    return list(_variance(on, self, *dim, **options))


# ------------------------------------------------------------------------------- norms


@translation("linalg_vector_norm")
def vector_norm(
    on: OnnxWriter,
    self: OnnxTensor,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    **_: Any,
) -> OnnxTensor:
    x, axes = on.cast(self, on.out.dtype), _axes(on, self, dim)
    if not axes:
        x = on.Abs(x)
        return on.cast(on.Not(on.Equal(x, on.constant(0, x.dtype))), x.dtype) if ord == 0 else x
    if ord == 2:
        return reduce(on, "ReduceL2", x, axes, keepdim)
    if ord == 1:
        return reduce(on, "ReduceL1", x, axes, keepdim)
    size = on.Abs(x)
    if ord in (float("inf"), float("-inf")):
        return reduce(on, "ReduceMax" if ord > 0 else "ReduceMin", size, axes, keepdim)
    if ord == 0:
        counted = on.cast(on.Not(on.Equal(x, on.constant(0, x.dtype))), x.dtype)
        return reduce(on, "ReduceSum", counted, axes, keepdim)
    total = reduce(on, "ReduceSum", on.Pow(size, on.constant(ord, x.dtype)), axes, keepdim)
    return on.Pow(total, on.constant(1 / ord, x.dtype))


@translation("_cdist_forward")
def cdist(on: OnnxWriter, x1: OnnxTensor, x2: OnnxTensor, p: float, *_: Any) -> OnnxTensor:
    apart = on.Sub(on.Unsqueeze(x1, on.ints(-2)), on.Unsqueeze(x2, on.ints(-3)))
    last = [max(x1.rank, x2.rank)]
    if p in (1, 2):
        return reduce(on, "ReduceL1" if p == 1 else "ReduceL2", apart, last)
    size = on.Abs(apart)
    if p == float("inf"):
        return reduce(on, "ReduceMax", size, last)
    if not p:
        is_zero = on.Equal(apart, on.constant(0, apart.dtype))
        return reduce(on, "ReduceSum", on.cast(on.Not(is_zero), apart.dtype), last)
    total = reduce(on, "ReduceSum", on.Pow(size, on.constant(p, x1.dtype)), last)
    return on.Pow(total, on.constant(1 / p, x1.dtype))


# ------------------------------------------------------------------------------- softmax, scans


@translation("_softmax", "softmax.int")
def softmax(on: OnnxWriter, self: OnnxTensor, dim: int, *_: Any, **__: Any) -> OnnxTensor:
    return _along(on, "Softmax", self, dim)


@translation("_log_softmax", "log_softmax.int")
def log_softmax(on: OnnxWriter, self: OnnxTensor, dim: int, *_: Any, **__: Any) -> OnnxTensor:
    return _along(on, "LogSoftmax", self, dim)


def _along(on: OnnxWriter, op: str, self: OnnxTensor, dim: int) -> OnnxTensor:
    x = on.cast(self, on.out.dtype)
    if not self.rank:
        return on.constant(1 if op == "Softmax" else 0, x.dtype)
    made: OnnxTensor = on.write(op, [x], axis=dim % self.rank)
    return made


@translation("_safe_softmax")
def safe_softmax(on: OnnxWriter, self: OnnxTensor, dim: int, **_: Any) -> OnnxTensor:
    """0 where all of a row is minus infinity."""
    made = _along(on, "Softmax", self, dim)
    return on.Where(on.IsNaN(made), on.constant(0, made.dtype), made)


@translation("cumsum")
def cumsum(on: OnnxWriter, self: OnnxTensor, dim: int, *, dtype: Any = None) -> OnnxTensor:
    wanted = on.out.dtype
    x = on.cast(self, _in(wanted))
    if not self.rank:
        return on.cast(x, wanted)
    return on.cast(on.CumSum(x, on.constant(dim % self.rank, torch.int64)), wanted)
