"""Activations and arithmetic of single elements. Half precision is computed in float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.precision import as_float, cast, cast_to_common, compute_in_float32
from lostwax.ops.registry import aten, decomposition


def scalar_like(value: Any, like: Tensor) -> Any:
    """A number as a tensor without dimensions, of this dtype."""
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


# -------------------------------------------------------------------------------------- activations


@decomposition("silu")
@compute_in_float32
def silu(self: Tensor) -> Any:
    return aten.mul.Tensor(self, aten.sigmoid.default(self))


@decomposition("mish")
@compute_in_float32
def mish(self: Tensor) -> Any:
    return aten.mul.Tensor(self, aten.tanh.default(_softplus(self)))


def _softplus(x: Tensor) -> Any:
    """log(1 + exp(x)) without overflow."""
    small = aten.log1p.default(aten.exp.default(aten.neg.default(aten.abs.default(x))))
    return aten.add.Tensor(aten.relu.default(x), small)


@decomposition("softplus")
@compute_in_float32
def softplus(self: Tensor, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = self if beta == 1 else aten.mul.Scalar(self, beta)
    curve = aten.log1p.default(aten.exp.default(scaled))
    curve = curve if beta == 1 else aten.div.Scalar(curve, beta)
    return aten.where.self(aten.gt.Scalar(scaled, threshold), self, curve)


@decomposition("hardsigmoid")
@compute_in_float32
def hardsigmoid(self: Tensor) -> Any:
    return aten.div.Scalar(aten.clamp.default(aten.add.Scalar(self, 3), 0, 6), 6)


@decomposition("hardswish")
@compute_in_float32
def hardswish(self: Tensor) -> Any:
    gate = aten.clamp.default(aten.add.Scalar(self, 3), 0, 6)
    return aten.div.Scalar(aten.mul.Tensor(self, gate), 6)


@decomposition("_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Any:
    return aten.where.self(aten.gt.Scalar(self, 0), self, aten.mul.Tensor(weight, self))


@decomposition("glu")
def glu(self: Tensor, dim: int = -1) -> Any:
    half = self.shape[dim] // 2
    value = aten.slice.Tensor(self, dim, 0, half)
    return aten.mul.Tensor(
        value, aten.sigmoid.default(aten.slice.Tensor(self, dim, half, 2 * half))
    )


@decomposition("log_sigmoid_forward")
def log_sigmoid(self: Tensor) -> Any:
    buffer = aten.exp.default(aten.neg.default(aten.abs.default(self)))
    lowest = aten.minimum.default(self, scalar_like(0.0, self))
    out = aten.sub.Tensor(lowest, aten.log1p.default(buffer))
    return out, buffer if self.is_cpu else aten.full.default([0], 0.0, dtype=self.dtype)


@decomposition("threshold")
def threshold(self: Tensor, threshold: Any, value: Any) -> Any:
    return aten.where.self(aten.le.Scalar(self, threshold), scalar_like(value, self), self)


# --------------------------------------------------------------------------------------- arithmetic


@decomposition("rsub.Scalar")
def rsub_scalar(self: Tensor, other: Any, alpha: Any = 1) -> Any:
    wide = cast(self, torch.result_type(self, other))
    negative = aten.mul.Tensor(wide, -alpha) if alpha != 1 else aten.neg.default(wide)
    return aten.add.Tensor(negative, other)


@decomposition("rsub.Tensor")
def rsub(self: Tensor, other: Tensor, *, alpha: Any = 1) -> Any:
    return aten.sub.Tensor(other, self, alpha=alpha)


@decomposition("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Any:
    return _add_product(*cast_to_common(self, tensor1, tensor2), value)


@compute_in_float32
def _add_product(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any) -> Any:
    product = aten.mul.Tensor(tensor1, tensor2)
    return aten.add.Tensor(self, product if value == 1 else aten.mul.Tensor(product, value))


@decomposition("addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Any:
    return _add_quotient(*cast_to_common(self, tensor1, tensor2), value)


@compute_in_float32
def _add_quotient(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any) -> Any:
    quotient = aten.div.Tensor(tensor1, tensor2)
    return aten.add.Tensor(self, quotient if value == 1 else aten.mul.Tensor(quotient, value))


@decomposition("lerp.Scalar")
@compute_in_float32
def lerp_scalar(self: Tensor, end: Tensor, weight: Any) -> Any:
    way = aten.sub.Tensor(end, self)
    if abs(weight) < 0.5:  # from the nearer end, so that both ends are exact
        return aten.add.Tensor(self, aten.mul.Tensor(way, weight))
    return aten.sub.Tensor(end, aten.mul.Tensor(way, 1 - weight))


@decomposition("clamp_min")
def clamp_min(self: Tensor, min: Any) -> Any:
    return aten.clamp.default(self, min)


@decomposition("clamp_max")
def clamp_max(self: Tensor, max: Any) -> Any:
    return aten.clamp.default(self, None, max)


@decomposition("clamp_min.Tensor")
def clamp_min_tensor(self: Tensor, min: Tensor) -> Any:
    return aten.maximum.default(self, min)


@decomposition("clamp_max.Tensor")
def clamp_max_tensor(self: Tensor, max: Tensor) -> Any:
    return aten.minimum.default(self, max)


@decomposition("floor_divide")
def floor_divide(self: Tensor, other: Tensor) -> Any:
    return aten.div.Tensor_mode(self, other, rounding_mode="floor")


@decomposition("floor_divide.Scalar")
def floor_divide_scalar(self: Tensor, other: Any) -> Any:
    return aten.div.Scalar_mode(self, other, rounding_mode="floor")


@decomposition("square")
def square(self: Tensor) -> Any:
    return aten.pow.Tensor_Scalar(self, 2)


@decomposition("frac")
def frac(self: Tensor) -> Any:
    return aten.sub.Tensor(self, aten.trunc.default(self))


@decomposition("exp2")
def exp2(self: Tensor) -> Any:
    return aten.pow.Scalar(2.0, as_float(self))


@decomposition("deg2rad")
def deg2rad(self: Tensor) -> Any:
    return aten.mul.Tensor(as_float(self), math.pi / 180)


@decomposition("rad2deg")
def rad2deg(self: Tensor) -> Any:
    return aten.mul.Tensor(as_float(self), 180 / math.pi)


@decomposition("hypot")
def hypot(self: Tensor, other: Tensor) -> Any:
    """It scales by the larger of the two, so that no square overflows."""
    a, b = aten.abs.default(self), aten.abs.default(other)
    large, small = aten.maximum.default(a, b), aten.minimum.default(a, b)
    is_zero = aten.logical_or.default(aten.eq.Scalar(large, 0), aten.isinf.default(large))
    safe = aten.where.self(is_zero, scalar_like(1, large), large)
    slope = aten.div.Tensor(aten.where.self(is_zero, scalar_like(0, small), small), safe)
    root = aten.sqrt.default(aten.add.Scalar(aten.mul.Tensor(slope, slope), 1))
    is_infinite = aten.logical_or.default(aten.isinf.default(a), aten.isinf.default(b))
    out = aten.mul.Tensor(large, root)
    return aten.where.self(is_infinite, scalar_like(math.inf, out), out)  # also beside NaN


@decomposition("fmax")
def fmax(self: Tensor, other: Tensor) -> Any:
    return _choose_unless_nan(aten.maximum.default, self, other)


@decomposition("fmin")
def fmin(self: Tensor, other: Tensor) -> Any:
    return _choose_unless_nan(aten.minimum.default, self, other)


def _choose_unless_nan(choice: Any, a: Tensor, b: Tensor) -> Any:
    """The choice between two numbers; if one of them is NaN, the other."""
    dtype = torch.result_type(a, b)
    a, b = cast(a, dtype), cast(b, dtype)
    if not dtype.is_floating_point:
        return choice(a, b)
    with_a = aten.where.self(aten.isnan.default(b), a, choice(a, b))
    return aten.where.self(aten.isnan.default(a), b, with_a)


@decomposition("angle")
def angle(self: Tensor) -> Any:
    if self.dtype.is_complex:
        raise NotImplementedError("complex numbers have no core operators")
    x = as_float(self)
    out = aten.where.self(aten.lt.Scalar(x, 0), scalar_like(math.pi, x), scalar_like(0.0, x))
    return aten.where.self(aten.isnan.default(x), x, out)


# ------------------------------------------------------------------------------------------ choices


@decomposition("zero")
def zero(self: Tensor) -> Any:
    """Not by `full_like`, since autograd gives `zero` a gradient, of zeros."""
    return aten.fill.Scalar(self, 0)


@decomposition("fill.Tensor")
def fill(self: Tensor, value: Tensor) -> Any:
    """Not by `copy`, which is core and has no derivative."""
    return aten.expand.default(cast(value, self.dtype).to(self.device), self.shape)


@decomposition("masked_fill.Scalar")
def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Any:
    return aten.where.self(mask, scalar_like(value, self), self)


@decomposition("masked_fill.Tensor")
def masked_fill_tensor(self: Tensor, mask: Tensor, value: Tensor) -> Any:
    return aten.where.self(mask, cast(value, self.dtype), self)


@decomposition("isposinf")
def isposinf(self: Tensor) -> Any:
    return aten.eq.Scalar(self, math.inf)


@decomposition("isneginf")
def isneginf(self: Tensor) -> Any:
    return aten.eq.Scalar(self, -math.inf)
