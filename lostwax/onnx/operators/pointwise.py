"""Operators that compute each element by itself. Operands are cast to the dtype in which torch
computes: ONNX promotes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter, Operand

# ------------------------------------------------------------------------------- of one tensor


def _unary(op: str, **attributes: Any) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
        made: OnnxTensor = on.write(op, [on.cast(self, on.out.dtype)], **attributes)
        return made

    return write


for _name, _op in {
    "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "log": "Log",
    "reciprocal": "Reciprocal", "sigmoid": "Sigmoid", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh", "abs": "Abs", "hardswish": "HardSwish", "mish": "Mish",
}.items():  # fmt: skip
    translation(_name)(_unary(_op))
translation("hardsigmoid")(_unary("HardSigmoid", alpha=1 / 6, beta=0.5))


def _round(op: str) -> Callable[..., OnnxTensor]:
    """Integers are rounded already."""

    def write(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
        return on.write(op, [self]) if self.dtype.is_floating_point else self

    return write


for _name, _op in {"ceil": "Ceil", "floor": "Floor", "round": "Round"}.items():
    translation(_name)(_round(_op))


@translation("trunc", "fix")
def trunc(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    if not self.dtype.is_floating_point:
        return self
    made: OnnxTensor = on.Where(
        on.Less(self, on.constant(0, self.dtype)), on.Ceil(self), on.Floor(self)
    )
    return made


@translation("neg")
def neg(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    is_signed = self.dtype.is_signed
    made: OnnxTensor = on.Neg(self) if is_signed else on.Sub(on.constant(0, self.dtype), self)
    return made


@translation("sign", "sgn")
def sign(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    if self.dtype is torch.bool:
        return self
    made: OnnxTensor = on.Sign(self)
    if self.dtype.is_floating_point:  # of NaN it is 0
        made = on.Where(on.IsNaN(self), on.constant(0, self.dtype), made)
    return made


@translation("relu")
def relu(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    if self.dtype.is_floating_point:
        return on.Relu(self)
    return on.Max(self, on.constant(0, self.dtype))


@translation("rsqrt")
def rsqrt(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.Reciprocal(on.Sqrt(on.cast(self, on.out.dtype)))


@translation("isnan")
def isnan(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.IsNaN(on.cast(self, _as_float(self)))


@translation("isinf")
def isinf(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.IsInf(on.cast(self, _as_float(self)))


def _as_float(x: OnnxTensor) -> torch.dtype:
    return x.dtype if x.dtype.is_floating_point else torch.float32


def _times_log(base: float) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
        dtype = on.out.dtype
        logarithm = on.Log(on.cast(self, dtype))
        return on.Mul(logarithm, on.constant(1 / math.log(base), dtype))

    return write


translation("log2")(_times_log(2))
translation("log10")(_times_log(10))


@translation("log1p")
def log1p(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    """As exact for small numbers as for others (Kahan)."""
    x = on.cast(self, on.out.dtype)
    one = on.constant(1, x.dtype)
    more = on.Add(x, one)
    near = on.Mul(on.Log(more), on.Div(x, on.Sub(more, one)))
    is_far = on.Or(on.Equal(more, one), on.IsInf(more))
    plain = on.Where(on.Equal(more, one), x, on.Log(more))
    return on.Where(is_far, plain, near)


@translation("expm1")
def expm1(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    x = on.cast(self, on.out.dtype)
    one = on.constant(1, x.dtype)
    power = on.Exp(x)
    less = on.Sub(power, one)
    near = on.Mul(less, on.Div(x, on.Log(power)))
    is_far = on.Or(
        on.Or(on.Equal(power, one), on.IsInf(power)), on.Equal(less, on.constant(-1, x.dtype))
    )
    plain = on.Where(on.Equal(power, one), x, less)
    return on.Where(is_far, plain, near)


@translation("exp2")
def exp2(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    dtype = on.out.dtype
    return on.Pow(on.constant(2, dtype), on.cast(self, dtype))


@translation("erfc")
def erfc(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    dtype = on.out.dtype
    return on.Sub(on.constant(1, dtype), on.Erf(on.cast(self, dtype)))


@translation("logical_not")
def logical_not(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.Not(on.cast(self, torch.bool))


@translation("bitwise_not")
def bitwise_not(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    made: OnnxTensor = on.Not(self) if self.dtype is torch.bool else on.BitwiseNot(self)
    return made


@translation("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "positive",
             "alias_copy", "detach_copy")  # fmt: skip
def same(on: OnnxWriter, self: OnnxTensor, **_: Any) -> OnnxTensor:
    return self


@translation("dropout", "alpha_dropout", "feature_dropout")
def dropout(on: OnnxWriter, self: OnnxTensor, p: float, train: bool) -> OnnxTensor:
    if train and p > 0:
        return on.Dropout(self, on.constant(p, torch.float32), on.constant(True))
    return self


# ------------------------------------------------------------------------------- dtypes


@translation("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as",
             "prims::convert_element_type", "prims::device_put", "_to_cpu")  # fmt: skip
def to_copy(on: OnnxWriter, self: OnnxTensor, *_: Any, **__: Any) -> OnnxTensor:
    return on.cast(self, on.out.dtype)


# ------------------------------------------------------------------------------- of two


def _binary(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
        dtype = on.out.dtype
        made: OnnxTensor = on.write(op, [on.operand(self, dtype), on.operand(other, dtype)])
        return made

    return write


for _name, _op in {
    "div.Tensor": "Div", "div.Scalar": "Div", "true_divide.Tensor": "Div",
    "maximum": "Max", "minimum": "Min",
}.items():  # fmt: skip
    translation(_name)(_binary(_op))


@translation("mul.Tensor", "mul.Scalar")
def mul(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    op = "And" if dtype is torch.bool else "Mul"
    made: OnnxTensor = on.write(op, [on.operand(self, dtype), on.operand(other, dtype)])
    return made


@translation("add.Tensor", "add.Scalar")
def add(on: OnnxWriter, self: Operand, other: Operand, alpha: Any = 1) -> OnnxTensor:
    dtype = on.out.dtype
    x, y = on.operand(self, dtype), _scale(on, on.operand(other, dtype), alpha)
    return on.Or(x, y) if dtype is torch.bool else on.Add(x, y)


@translation("sub.Tensor", "sub.Scalar")
def sub(on: OnnxWriter, self: Operand, other: Operand, alpha: Any = 1) -> OnnxTensor:
    dtype = on.out.dtype
    x, y = on.operand(self, dtype), _scale(on, on.operand(other, dtype), alpha)
    return on.Sub(x, y)


@translation("rsub.Tensor", "rsub.Scalar")
def rsub(on: OnnxWriter, self: Operand, other: Operand, alpha: Any = 1) -> OnnxTensor:
    return sub(on, other, self, alpha)


def _scale(on: OnnxWriter, x: OnnxTensor, by: Any) -> OnnxTensor:
    if isinstance(by, (bool, int, float)) and by == 1:
        return x
    return on.Mul(x, on.operand(by, x.dtype))


def _compare(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
        dtype = on.promote(self, other)
        x, y = on.operand(self, dtype), on.operand(other, dtype)
        if dtype is torch.bool and op not in ("Equal", "NotEqual"):
            x, y = on.cast(x, torch.int32), on.cast(y, torch.int32)
        if op == "NotEqual":
            return on.Not(on.Equal(x, y))
        made: OnnxTensor = on.write(op, [x, y])
        return made

    return write


for _name, _op in {
    "eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    translation(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_op))


def _logical(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
        made: OnnxTensor = on.write(op, [on.operand(x, torch.bool) for x in (self, other)])
        return made

    return write


def _bitwise(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
        dtype = on.out.dtype
        name = op if dtype is torch.bool else f"Bitwise{op}"
        made: OnnxTensor = on.write(name, [on.operand(x, dtype) for x in (self, other)])
        return made

    return write


for _name, _op in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    translation(f"logical_{_name}")(_logical(_op))
    translation(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")(_bitwise(_op))
    translation(f"__{_name}__.Tensor", f"__{_name}__.Scalar")(_bitwise(_op))


# ------------------------------------------------------------------------------- quotients


@translation("div.Tensor_mode", "div.Scalar_mode")
def div_mode(
    on: OnnxWriter, self: Operand, other: Operand, *, rounding_mode: str | None
) -> OnnxTensor:
    dtype = on.out.dtype
    x, y = on.operand(self, dtype), on.operand(other, dtype)
    if rounding_mode == "floor":
        return divide_down(on, x, y)
    made: OnnxTensor = on.Div(x, y)  # of integers it is rounded to zero
    return trunc(on, made) if rounding_mode == "trunc" else made


@translation("floor_divide", "floor_divide.Scalar")
def floor_divide(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    return div_mode(on, self, other, rounding_mode="floor")


def divide_down(on: OnnxWriter, x: OnnxTensor, y: OnnxTensor) -> OnnxTensor:
    if not x.dtype.is_floating_point:
        return on.Div(on.Sub(x, on.Mod(x, y)), y)
    # As eager: the quotient of what is left without the remainder, and not that of the numbers,
    # which may be rounded up to the next integer.
    quotient = on.Round(on.Div(on.Sub(x, _remainder(on, x, y)), y))
    is_zero = on.Equal(y, on.constant(0, y.dtype))
    if y.constant is not None and bool(y.constant.all()):
        return quotient
    return on.Where(is_zero, on.Div(x, y), quotient)


def _remainder(on: OnnxWriter, x: OnnxTensor, y: OnnxTensor) -> OnnxTensor:
    """With the sign of the divisor, as in Python."""
    if not x.dtype.is_floating_point:
        return on.Mod(x, y)
    rest = on.Mod(x, y, fmod=1)
    zero = on.constant(0, x.dtype)
    differ = on.Xor(on.Less(rest, zero), on.Less(y, zero))
    moves = on.And(differ, on.Not(on.Equal(rest, zero)))
    return on.Where(moves, on.Add(rest, y), rest)


@translation("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    return _remainder(on, on.operand(self, dtype), on.operand(other, dtype))


@translation("fmod.Tensor", "fmod.Scalar")
def fmod(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    return on.Mod(on.operand(self, dtype), on.operand(other, dtype), fmod=1)


@translation("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar",
             "__lshift__.Tensor", "__lshift__.Scalar")  # fmt: skip
def shift_left(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    return on.Mul(on.operand(self, on.out.dtype), _power_of_two(on, other))


@translation("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
             "__rshift__.Tensor", "__rshift__.Scalar")  # fmt: skip
def shift_right(on: OnnxWriter, self: Operand, other: Operand) -> OnnxTensor:
    return divide_down(on, on.operand(self, on.out.dtype), _power_of_two(on, other))


def _power_of_two(on: OnnxWriter, exponent: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    power = on.Pow(on.constant(2, torch.int64), on.operand(exponent, torch.int64))
    return on.cast(power, dtype)


# ------------------------------------------------------------------------------- powers


@translation("pow.Tensor_Scalar")
def pow_scalar(on: OnnxWriter, self: OnnxTensor, exponent: Any) -> OnnxTensor:
    dtype = on.out.dtype
    x = on.cast(self, dtype)
    if isinstance(exponent, (int, float)):
        if dtype.is_floating_point and exponent == 0.5:
            return on.Sqrt(x)
        if dtype.is_floating_point and exponent == -0.5:
            return on.Reciprocal(on.Sqrt(x))
        if dtype.is_floating_point and exponent == -1:
            return on.Reciprocal(x)
        if exponent == 1:
            return x
        most = 3 if dtype.is_floating_point else 64
        if 2 <= exponent <= most and exponent == int(exponent):
            return _multiply(on, x, int(exponent))
    return _pow(on, x, on.operand(exponent, dtype))


def _multiply(on: OnnxWriter, x: OnnxTensor, times: int) -> OnnxTensor:
    """Products: powers of integers go by way of doubles, which do not hold all of them."""
    made, power = None, x
    while times:
        if times % 2:
            made = power if made is None else on.Mul(made, power)
        times //= 2
        power = on.Mul(power, power) if times else power
    assert made is not None
    return made


@translation("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(on: OnnxWriter, self: Operand, exponent: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    return _pow(on, on.operand(self, dtype), on.operand(exponent, dtype))


def _pow(on: OnnxWriter, x: OnnxTensor, y: OnnxTensor) -> OnnxTensor:
    wide = x.dtype if x.dtype.is_floating_point else torch.int64
    return on.cast(on.Pow(on.cast(x, wide), on.cast(y, wide)), x.dtype)


# ------------------------------------------------------------------------------- angles


@translation("atan2")
def atan2(on: OnnxWriter, self: OnnxTensor, other: OnnxTensor) -> OnnxTensor:
    dtype = on.out.dtype
    y, x = on.cast(self, dtype), on.cast(other, dtype)
    zero, pi = on.constant(0, dtype), on.constant(math.pi, dtype)
    is_left, is_below = on.Less(x, zero), on.Less(y, zero)
    turn = on.Where(is_left, on.Where(is_below, on.Neg(pi), pi), zero)
    plain = on.Add(on.Atan(on.Div(y, x)), turn)
    is_nowhere = on.And(on.Equal(x, zero), on.Equal(y, zero))
    return on.Where(is_nowhere, zero, plain)


# ------------------------------------------------------------------------------- choices


@translation("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(on: OnnxWriter, condition: OnnxTensor, self: Operand, other: Operand) -> OnnxTensor:
    dtype = on.out.dtype
    return on.Where(
        on.cast(condition, torch.bool), on.operand(self, dtype), on.operand(other, dtype)
    )


@translation("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(on: OnnxWriter, self: OnnxTensor, mask: OnnxTensor, value: Operand) -> OnnxTensor:
    return on.Where(mask, on.operand(value, on.out.dtype), self)


@translation("clamp", "clamp.Tensor")
def clamp(on: OnnxWriter, self: OnnxTensor, min: Any = None, max: Any = None) -> OnnxTensor:
    dtype = on.out.dtype
    x = on.cast(self, dtype)
    if dtype.is_floating_point and not any(isinstance(each, OnnxTensor) for each in (min, max)):
        bounds = [None if each is None else on.operand(each, dtype) for each in (min, max)]
        return on.Clip(x, *bounds)
    x = x if min is None else on.Max(x, on.operand(min, dtype))
    return x if max is None else on.Min(x, on.operand(max, dtype))


translation("hardtanh")(lambda on, self, min_val=-1, max_val=1: clamp(on, self, min_val, max_val))
translation("relu6")(lambda on, self: clamp(on, self, 0, 6))
translation("clamp_min", "clamp_min.Tensor")(lambda on, self, min: clamp(on, self, min))
translation("clamp_max", "clamp_max.Tensor")(lambda on, self, max: clamp(on, self, None, max))


# ------------------------------------------------------------------------------- activations


@translation("gelu", since=20)
def gelu(on: OnnxWriter, self: OnnxTensor, *, approximate: str = "none") -> OnnxTensor:
    return on.Gelu(self, approximate=approximate)


@translation("gelu")
def gelu_by_erf(on: OnnxWriter, self: OnnxTensor, *, approximate: str = "none") -> OnnxTensor:
    dtype = self.dtype
    half, one = on.constant(0.5, dtype), on.constant(1, dtype)
    if approximate == "tanh":
        cube = on.Mul(on.Mul(self, self), self)
        inner = on.Add(self, on.Mul(cube, on.constant(0.044715, dtype)))
        bent = on.Tanh(on.Mul(inner, on.constant(math.sqrt(2 / math.pi), dtype)))
    else:
        bent = on.Erf(on.Div(self, on.constant(math.sqrt(2), dtype)))
    return on.Mul(on.Mul(self, on.Add(bent, one)), half)


@translation("signbit")
def signbit(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    """Of 0 it is that of one over it."""
    zero = on.constant(0, self.dtype)
    below = on.Less(self, zero)
    if not self.dtype.is_floating_point:
        return below
    return on.Or(below, on.And(on.Equal(self, zero), on.Less(on.Reciprocal(self), zero)))


@translation("silu", since=24)
def swish(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.Swish(self)


@translation("silu")
def silu(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    return on.Mul(self, on.Sigmoid(self))


@translation("leaky_relu")
def leaky_relu(on: OnnxWriter, self: OnnxTensor, negative_slope: float = 0.01) -> OnnxTensor:
    return on.LeakyRelu(self, alpha=float(negative_slope))


@translation("prelu", "_prelu_kernel")
def prelu(on: OnnxWriter, self: OnnxTensor, weight: OnnxTensor) -> OnnxTensor:
    if weight.rank == 1 and self.rank > 2:
        weight = on.Unsqueeze(weight, on.ints(*range(1, self.rank - 1)))
    return on.PRelu(self, weight)


@translation("elu")
def elu(
    on: OnnxWriter, self: OnnxTensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> OnnxTensor:
    if (scale, input_scale) == (1, 1):
        return on.Elu(self, alpha=float(alpha))
    dtype = self.dtype
    zero = on.constant(0, dtype)
    power = expm1(on, _scale(on, self, input_scale))
    below = on.Mul(power, on.constant(alpha, dtype))
    chosen = on.Where(on.Greater(self, zero), self, below)
    return on.Mul(chosen, on.constant(scale, dtype))


@translation("celu")
def celu(on: OnnxWriter, self: OnnxTensor, alpha: float = 1.0) -> OnnxTensor:
    return on.Celu(self, alpha=float(alpha))


@translation("softplus")
def softplus(on: OnnxWriter, self: OnnxTensor, beta: Any = 1, threshold: Any = 20) -> OnnxTensor:
    inner = _scale(on, self, beta)
    made = on.Softplus(inner)
    if beta != 1:
        made = on.Div(made, on.operand(beta, self.dtype))
    if threshold == 20:
        return made
    return on.Where(on.Greater(inner, on.operand(threshold, self.dtype)), self, made)


@translation("hardshrink")
def hardshrink(on: OnnxWriter, self: OnnxTensor, lambd: Any = 0.5) -> OnnxTensor:
    is_small = on.LessOrEqual(on.Abs(self), on.constant(lambd, self.dtype))
    return on.Where(is_small, on.constant(0, self.dtype), self)
