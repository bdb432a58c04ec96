"""Weights of eight bits: found behind the calls that make floats of them, and written as they are.

Must not know which operators have weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lostwax.backends.xnnpack.calls import read_arguments
from lostwax.backends.xnnpack.payload import Form
from lostwax.backends.xnnpack.quantized.quantum import DEQUANTIZE, SMALLEST, get_name
from lostwax.backends.xnnpack.schema import INT8_BY_CHANNEL, INT32_BY_CHANNEL
from lostwax.backends.xnnpack.writer import PartWriter

BY_CHANNEL = "quantized_decomposed::dequantize_per_channel"


@dataclass(frozen=True)
class Weights:
    """Integers of int8, each of which stands for itself times the scale of its place in `dim`."""

    data: torch.Tensor
    scales: torch.Tensor
    dim: int

    def permute(self, order: tuple[int, ...]) -> Weights:
        return replace(self, data=self.data.permute(order), dim=order.index(self.dim))

    def write(self, writer: PartWriter) -> int:
        return _write(writer, self.data, self.scales, self.dim, INT8_BY_CHANNEL)


def find_weights(writer: PartWriter, node: Any) -> Weights | None:
    """The integers that a constant is made of, if XNNPACK takes them so."""
    if get_name(node) == "aten::permute_copy":
        found = find_weights(writer, node.args[0])
        order = [d % len(node.args[1]) for d in node.args[1]]
        return None if found is None else found.permute(tuple(order))
    if get_name(node) not in (DEQUANTIZE, BY_CHANNEL):
        return None
    given = read_arguments(node)
    zeros: torch.Tensor | None
    data = writer.constants[given.input]
    if get_name(node) == DEQUANTIZE:
        dim, zeros = 0, torch.tensor(given.zero_point)
        scales = torch.full((data.shape[0] if data.ndim else 1,), float(given.scale))
    else:
        dim, zeros = given.axis % data.ndim, writer.constants.get(given.zero_points)
        scales = writer.constants[given.scales].to(torch.float32)
    is_symmetric = zeros is None or not bool(zeros.any())
    if data.dtype is not torch.int8 or data.ndim < 2 or not is_symmetric:
        return None
    if bool((data == -128).any()):  # two products of them are more than XNNPACK's kernels can hold
        return None
    if not bool(((scales >= SMALLEST) & scales.isfinite()).all()):
        return None
    return Weights(data, scales, dim)


def find_bias(bias: torch.Tensor, scales: torch.Tensor) -> torch.Tensor | None:
    """A bias as integers of int32, of these scales; None if they cannot hold it."""
    found = (bias.double() / scales.double()).round()
    return found.to(torch.int32) if bool((found.abs() < 2**31).all()) else None


def write_bias(writer: PartWriter, bias: torch.Tensor, scales: torch.Tensor) -> int:
    return _write(writer, bias, scales, 0, INT32_BY_CHANNEL)


def _write(
    writer: PartWriter, data: torch.Tensor, scales: torch.Tensor, dim: int, datatype: int
) -> int:
    listed = tuple(scales.tolist())
    fields = (("scale", listed), ("channel_dim", dim), ("num_scales", len(listed)))
    form = Form(datatype, "PerChannelQuant", fields)
    return writer.payload.add_data(data, tuple(data.shape), form)
