"""Quantized programs of PT2E: `QuantizeLinear` and `DequantizeLinear`, which runtimes fuse."""

from __future__ import annotations

from typing import Any

import torch

from lostwax.onnx.table import translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter, Operand


def _quantize(
    on: OnnxWriter,
    input: OnnxTensor,
    scale: Operand,
    zero: Operand,
    low: int,
    high: int,
    dtype: torch.dtype,
    axis: int | None = None,
) -> OnnxTensor:
    made = on.QuantizeLinear(
        input,
        on.operand(scale, input.dtype),
        on.operand(zero, dtype),
        axis=axis,
        dtype=dtype,
    )
    info = torch.iinfo(dtype)
    if (low, high) == (info.min, info.max):
        return made
    return on.Clip(made, on.constant(low, dtype), on.constant(high, dtype))


def _dequantize(
    on: OnnxWriter, input: OnnxTensor, scale: Operand, zero: Operand, axis: int | None = None
) -> OnnxTensor:
    out = on.out.dtype
    points = None if zero is None else on.operand(zero, input.dtype)
    if input.dtype is torch.int32 and points is not None and not _is_zero(points):
        return on.Mul(on.cast(on.Sub(input, points), out), on.operand(scale, out))
    return on.DequantizeLinear(input, on.operand(scale, out), points, axis=axis, dtype=out)


@translation("_int_mm")
def multiply_integers(on: OnnxWriter, self: OnnxTensor, mat2: OnnxTensor) -> OnnxTensor:
    return on.MatMulInteger(self, mat2, dtype=torch.int32)


def _is_zero(x: OnnxTensor) -> bool:
    return x.constant is not None and not bool(x.constant.any())


@translation(
    "quantized_decomposed::quantize_per_tensor", "quantized_decomposed::quantize_per_tensor.tensor",
    "quantized_decomposed::quantize_per_tensor.tensor2",
)  # fmt: skip
def quantize_per_tensor(
    on: OnnxWriter,
    input: OnnxTensor,
    scale: Operand,
    zero_point: Operand,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> OnnxTensor:
    return _quantize(on, input, scale, zero_point, quant_min, quant_max, dtype)


@translation(
    "quantized_decomposed::dequantize_per_tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    on: OnnxWriter, input: OnnxTensor, scale: Operand, zero_point: Operand, *_: Any, **__: Any
) -> OnnxTensor:
    return _dequantize(on, input, scale, zero_point)


@translation("quantized_decomposed::quantize_per_channel")
def quantize_per_channel(
    on: OnnxWriter,
    input: OnnxTensor,
    scales: OnnxTensor,
    zero_points: OnnxTensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> OnnxTensor:
    return _quantize(on, input, scales, zero_points, quant_min, quant_max, dtype, axis)


@translation("quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(
    on: OnnxWriter,
    input: OnnxTensor,
    scales: OnnxTensor,
    zero_points: OnnxTensor,
    axis: int,
    *_: Any,
    **__: Any,
) -> OnnxTensor:
    return _dequantize(on, input, scales, zero_points, axis)
