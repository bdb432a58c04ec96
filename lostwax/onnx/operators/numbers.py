"""Numbers that programs compute beside tensors: items of data, floats of sizes, conditions; and
parts of results. Sizes themselves are expressions, which `sizes.py` writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.operators.pointwise import _remainder, divide_down, trunc
from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.sym import BoolExpr, Expr


@translation("python::getitem")
def getitem(on: OnnxWriter, values: Any, index: int) -> Any:
    return values[index]


@translation("item", "_local_scalar_dense")
def item(on: OnnxWriter, self: OnnxTensor) -> OnnxTensor:
    kind = self.dtype
    wide = torch.float64 if kind.is_floating_point else torch.int64
    x = self if kind is torch.bool else on.cast(self, wide)
    return on.Reshape(x, on.constant(torch.empty(0, dtype=torch.int64)))


def number(on: OnnxWriter, value: Any) -> OnnxTensor:
    """A number as a tensor without dimensions: int64, float64 or bool."""
    if isinstance(value, OnnxTensor):
        return value
    if isinstance(value, BoolExpr):
        return on.condition(value)
    if isinstance(value, Expr):
        return on.scalar(value)
    kinds = {bool: torch.bool, float: torch.float64}
    return on.constant(value, kinds.get(type(value), torch.int64))


def _pair(on: OnnxWriter, a: Any, b: Any) -> tuple[OnnxTensor, OnnxTensor]:
    x, y = number(on, a), number(on, b)
    dtype = torch.promote_types(x.dtype, y.dtype)
    dtype = torch.int64 if dtype is torch.bool else dtype
    return on.cast(x, dtype), on.cast(y, dtype)


def _arithmetic(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
        made: OnnxTensor = on.write(op, _pair(on, a, b))
        return made

    return write


for _name, _op in {
    "add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow", "sym_max": "Max", "sym_min": "Min",
    "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal",
}.items():  # fmt: skip
    translation(f"python::{_name}")(_arithmetic(_op))


@translation("python::ne")
def ne(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    return on.Not(on.Equal(*_pair(on, a, b)))


@translation("python::truediv")
def truediv(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    x, y = (on.cast(number(on, each), torch.float64) for each in (a, b))
    return on.Div(x, y)


@translation("python::floordiv")
def floordiv(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    return divide_down(on, *_pair(on, a, b))


@translation("python::mod")
def mod(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    return _remainder(on, *_pair(on, a, b))


@translation("python::neg")
def neg(on: OnnxWriter, a: Any) -> OnnxTensor:
    return on.Neg(number(on, a))


@translation("python::abs")
def absolute(on: OnnxWriter, a: Any) -> OnnxTensor:
    return on.Abs(number(on, a))


@translation("python::and_")
def both(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    return on.And(on.condition(a), on.condition(b))


@translation("python::or_")
def either(on: OnnxWriter, a: Any, b: Any) -> OnnxTensor:
    return on.Or(on.condition(a), on.condition(b))


@translation("python::sym_not")
def sym_not(on: OnnxWriter, a: Any) -> OnnxTensor:
    return on.Not(on.condition(a))


@translation("python::sym_float")
def sym_float(on: OnnxWriter, a: Any) -> OnnxTensor:
    return on.cast(number(on, a), torch.float64)


@translation("python::sym_int", "python::trunc")
def sym_int(on: OnnxWriter, a: Any) -> OnnxTensor:
    return on.cast(trunc(on, number(on, a)), torch.int64)


def _rounding(op: str) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, a: Any) -> OnnxTensor:
        x = number(on, a)
        return on.cast(on.write(op, [x]) if x.dtype.is_floating_point else x, torch.int64)

    return write


for _name, _op in {"floor": "Floor", "ceil": "Ceil", "round": "Round"}.items():
    translation(f"python::{_name}")(_rounding(_op))


def _function(op: str) -> Callable[..., OnnxTensor]:
    return lambda on, a: on.write(op, [on.cast(number(on, a), torch.float64)])


for _op in (
    "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Tanh", "Sinh", "Cosh", "Asin", "Acos", "Atan",
):  # fmt: skip
    translation(f"python::_sym_{_op.lower()}")(_function(_op))
