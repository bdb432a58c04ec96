"""Weights of few bits that a program widens by itself, as torchao's do, as `DequantizeLinear`, from
opset 21 on: runtimes compute with them as they are. Groups of up to four bits are held as int4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from lostwax.onnx.patterns.fusions import Attributes, Given, find_maker, read_constant
from lostwax.onnx.table import simplification
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter

_LEAST = 1024
"""Elements of a weight; of fewer it does not matter."""
_VIEWS = ("Reshape", "Unsqueeze", "Cast")


class Weight(NamedTuple):
    """`(data - zero) * scale`, with scales of a row, or of groups in a row."""

    name: str
    data: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None


@simplification("Mul", since=21)
def dequantize(on: OnnxWriter, given: Given, _: Attributes) -> OnnxTensor | None:
    for scales, moved in (given, given[::-1]):
        found = _find_weight(scales, moved)
        if found is not None:
            return _write(on, found)
    return None


def _find_weight(scales: OnnxTensor, moved: OnnxTensor) -> Weight | None:
    apart = find_maker(moved.value, "Sub")
    wide, zeros = (apart.inputs[0], apart.inputs[1]) if apart is not None else (moved.value, None)
    cast = find_maker(wide, "Cast")
    name = None if cast is None else _find_name(cast.inputs[0])
    if cast is None or name is None or wide is None or wide.dtype is not ir.DataType.FLOAT:
        return None
    data, scale = _compute(cast.inputs[0]), _compute(scales.value)
    zero = None if zeros is None else _compute(zeros)
    if data is None or scale is None or (zeros is not None and zero is None):
        return None
    is_whole = data.dtype is torch.int8 and data.numel() >= _LEAST and scale.dtype is torch.float32
    if (
        not is_whole
        or not _has_rows(data, scale)
        or not (zero is None or zero.shape == scale.shape)
    ):
        return None
    whole = zero is None or bool((zero == zero.to(torch.int8)).all())
    return Weight(name, data, scale, zero) if whole else None


def _has_rows(data: torch.Tensor, scale: torch.Tensor) -> bool:
    """Has each row of the last dim one scale?"""
    return data.dim() in (2, 3) and scale.shape == (*data.shape[:-1], 1)


def _find_name(value: ir.Value | None) -> str | None:
    """That of the weight which it is a view of."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type in _VIEWS:
        return _find_name(node.inputs[0])
    return None if read_constant(value) is None or value is None else value.name


def _compute(value: ir.Value | None) -> torch.Tensor | None:
    """The data of a view of what the model holds."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return read_constant(value)
    source = _compute(node.inputs[0]) if node.op_type in _VIEWS else None
    if source is None:
        return None
    if node.op_type == "Cast":
        return source.to(torch.float32) if value.dtype is ir.DataType.FLOAT else None
    sizes = (
        None
        if value.shape is None
        else list(value.shape.numpy())
        if value.shape.is_static()
        else None
    )
    return None if sizes is None else source.reshape(sizes)


def _write(on: OnnxWriter, found: Weight) -> OnnxTensor:
    """As a matrix; a program that has groups as a dim of their own joins them again."""
    rows, size = found.data.shape[0], found.data.shape
    data = found.data.reshape(rows, -1)
    is_grouped = len(size) == 3
    scale = found.scale.reshape(rows, -1) if is_grouped else found.scale.reshape(rows)
    zero = torch.zeros_like(scale) if found.zero is None else found.zero.reshape(scale.shape)
    made = write_dequantized(
        on, found.name, data, scale, zero.to(torch.int8), 1 if is_grouped else 0
    )
    return on.Reshape(made, on.ints(*size)) if is_grouped else made


def write_dequantized(
    on: OnnxWriter,
    name: str,
    data: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    axis: int,
) -> OnnxTensor:
    """A matrix of which each row, or column, or each group along an axis, has a scale."""
    is_grouped = scale.dim() == 2
    least, most = (int(f(each)) for f, each in ((torch.min, data), (torch.max, data)))
    fits = is_grouped and least >= -8 and most <= 7 and bool(((zero >= -8) & (zero <= 7)).all())
    hold = on.hold_int4 if fits else on.hold
    held = hold(on.free_name(name), data)
    factor = on.hold(on.free_name(f"{name}.scale"), scale)
    return on.DequantizeLinear(
        held,
        factor,
        hold(on.free_name(f"{name}.zero_point"), zero),
        axis=axis,
        block_size=data.shape[axis] // scale.shape[axis] if is_grouped else None,
        dtype=torch.float32,
    )


@simplification("Transpose", since=21)
def dequantize_transposed(
    on: OnnxWriter, given: Given, attributes: Attributes
) -> OnnxTensor | None:
    """The weights themselves are turned, so that a product reads them as they lie."""
    node = find_maker(given[0].value, "DequantizeLinear")
    if node is None or list(attributes["perm"]) != [1, 0]:
        return None
    data, scale, zero = (_read_held(each) for each in node.inputs)
    if data is None or scale is None or zero is None or data.dim() != 2:
        return None
    axis = node.attributes["axis"].as_int()
    source = node.inputs[0]
    assert source is not None
    return write_dequantized(
        on,
        f"{source.name}.turned",
        data.t().contiguous(),
        scale.t().contiguous() if scale.dim() == 2 else scale,
        zero.t().contiguous() if zero.dim() == 2 else zero,
        1 - axis,
    )


def _read_held(value: ir.Value | None) -> torch.Tensor | None:
    """Also of int4, which is there as int8."""
    held: Any = None if value is None else value.const_value
    return None if held is None else getattr(held, "wide", held.raw)
