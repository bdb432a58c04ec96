"""Operators that make tensors: filled ones, ranges, random numbers."""

from __future__ import annotations

from typing import Any

import torch

from lostwax.onnx.operators.shapes import broadcast
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter, Operand
from lostwax.sym import Expr

_MOST = 1024
"""Elements of a constant; a larger one is computed."""


def fill(on: OnnxWriter, value: Operand) -> OnnxTensor:
    """A tensor of the result's type with this value everywhere."""
    size, dtype = on.out.size, on.out.dtype
    if not size:
        return on.operand(value, dtype)
    if isinstance(value, (bool, int, float)):
        data = torch.full((1,), value, dtype=dtype)
        if all(isinstance(n, int) for n in size) and _count(size) <= _MOST:
            return on.constant(data.expand(size))
        made: OnnxTensor = on.ConstantOfShape(on.shape(size), value=data, dtype=dtype)
        return made
    return broadcast(on, on.operand(value, dtype), size)


def _count(size: Any) -> int:
    count = 1
    for n in size:
        count *= n
    return count


@translation("full", "full_like", "new_full")
def full(on: OnnxWriter, _: Any, *rest: Any, **__: Any) -> OnnxTensor:
    return fill(on, rest[-1] if rest else __["fill_value"])


@translation("fill.Scalar", "fill.Tensor")
def fill_other(on: OnnxWriter, _: OnnxTensor, value: Operand) -> OnnxTensor:
    return fill(on, value)


@translation("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty",
             "empty_strided", "new_empty_strided", "empty_permuted", "zero")  # fmt: skip
def zeros(on: OnnxWriter, *_: Any, **__: Any) -> OnnxTensor:
    return fill(on, 0)


@translation("ones", "ones_like", "new_ones")
def ones(on: OnnxWriter, *_: Any, **__: Any) -> OnnxTensor:
    return fill(on, 1)


@translation("scalar_tensor")
def scalar_tensor(on: OnnxWriter, s: Operand, **_: Any) -> OnnxTensor:
    return on.operand(s, on.out.dtype)


@translation("arange.start_step")
def arange(on: OnnxWriter, start: Any, end: Any, step: Any = 1, **_: Any) -> OnnxTensor:
    dtype = on.out.dtype
    numbers = [_as_int(n) for n in (start, end, step)]
    if not dtype.is_floating_point:
        if all(isinstance(n, (int, float)) for n in numbers):
            data = torch.arange(*numbers, dtype=dtype)
            if data.numel() <= _MOST:
                return on.constant(data)
        if not all(isinstance(n, (int, Expr)) for n in numbers):
            raise NotWritten("its numbers are floats", "give it integers")
        return on.cast(on.Range(*[on.scalar(n) for n in numbers]), dtype)
    count = on.out.size[0]
    places = on.cast(on.Range(on.constant(0), on.scalar(count), on.constant(1)), dtype)
    # start + i * step, as eager has it: sums of steps drift
    made = places if step == 1 else on.Mul(places, on.operand(step, dtype))
    return (
        made
        if isinstance(start, (int, float)) and start == 0
        else on.Add(made, on.operand(start, dtype))
    )


def _as_int(n: Any) -> Any:
    return int(n) if isinstance(n, float) and n.is_integer() else n


translation("arange")(lambda on, end, **_: arange(on, 0, end))
translation("arange.start")(lambda on, start, end, **_: arange(on, start, end))


@translation("linspace")
def linspace(on: OnnxWriter, start: Any, end: Any, steps: Any, **_: Any) -> OnnxTensor:
    dtype = on.out.dtype
    if all(isinstance(n, (int, float)) for n in (start, end, steps)):
        return on.constant(torch.linspace(start, end, steps, dtype=dtype))
    if not isinstance(steps, int) or not dtype.is_floating_point:
        raise NotWritten("how many numbers it has varies, or they are integers", "use torch.arange")
    first, last = on.operand(start, dtype), on.operand(end, dtype)
    if steps < 2:
        return on.Expand(first, on.ints(steps))
    step = on.Div(on.Sub(last, first), on.constant(steps - 1, dtype))
    places = torch.arange(steps, dtype=dtype)
    up = on.Add(first, on.Mul(step, on.constant(places)))
    down = on.Sub(last, on.Mul(step, on.constant(places.flip(0))))
    is_first_half = on.constant(torch.arange(steps) < steps // 2)
    return on.Where(is_first_half, up, down)


@translation("eye", "eye.m")
def eye(on: OnnxWriter, *_: Any, **__: Any) -> OnnxTensor:
    size, dtype = on.out.size, on.out.dtype
    if all(isinstance(n, int) for n in size):
        return on.constant(torch.eye(*size, dtype=dtype))
    blank = on.ConstantOfShape(on.shape(size), value=torch.zeros(1), dtype=torch.float32)
    return on.cast(on.EyeLike(blank), dtype)


# ------------------------------------------------------------------------------- random numbers


def _draw(on: OnnxWriter, op: str) -> OnnxTensor:
    dtype = on.out.dtype
    blank = fill(on, 0) if dtype.is_floating_point else None
    if blank is None:
        raise NotWritten("random integers have no form in ONNX", "draw floats, and round them")
    made: OnnxTensor = on.write(op, [blank])
    return made


translation("randn", "randn_like")(lambda on, *_, **__: _draw(on, "RandomNormalLike"))
translation("rand", "rand_like")(lambda on, *_, **__: _draw(on, "RandomUniformLike"))


@translation("bernoulli")
def bernoulli(on: OnnxWriter, self: OnnxTensor, **_: Any) -> OnnxTensor:
    return on.Bernoulli(self)


@translation("bernoulli.p")
def bernoulli_p(on: OnnxWriter, self: OnnxTensor, p: float = 0.5, **_: Any) -> OnnxTensor:
    return on.Bernoulli(fill(on, p))
