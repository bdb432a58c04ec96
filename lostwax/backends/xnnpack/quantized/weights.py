"""Weights of eight and of four bits: found behind the calls that make floats of them, and written
as they are.

Must not know which operators have weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import read_arguments
from lostwax.backends.xnnpack.payload import ElementForm
from lostwax.backends.xnnpack.quantized.quantum import DEQUANTIZE, SMALLEST, get_name
from lostwax.backends.xnnpack.schema import (
    INT4_BY_CHANNEL,
    INT4_BY_GROUP,
    INT8_BY_CHANNEL,
    INT32_BY_CHANNEL,
)
from lostwax.backends.xnnpack.writer import PartWriter
from lostwax.checkpoints.aside import is_aside, put_aside

BY_CHANNEL = "quantized_decomposed::dequantize_per_channel"
BY_GROUP = "quantized_decomposed::dequantize_per_channel_group"
BY_BLOCK = "torchao::dequantize_affine"
CAST = "dim_order_ops::_to_dim_order_copy"

Lookup = Callable[[Node], torch.Tensor]
"""The value of a node that is a constant."""


@dataclass(frozen=True)
class Weights:
    """Integers of int8, each of which stands for itself times the scale of its place in `dim`; or,
    if they are in groups, of the group of so many neighbours in a row that it is in. `is_small`:
    four bits are enough for them."""

    data: torch.Tensor
    scales: torch.Tensor
    dim: int = 0
    group: int = 0
    is_small: bool = False

    @property
    def is_safe(self) -> bool:
        """Do all kernels compute with them? Some add two products in 16 bits, which is too much if
        both are of -128 and -128: so a row may have one such weight."""
        if self.is_small:
            return True
        others = [d for d in range(self.data.ndim) if d != self.dim]
        return int((self.data == -128).sum(others).max()) < 2

    def split(self) -> tuple[Weights, Weights]:
        """Weights without -128, and what they lack of these: products with both are to be added."""
        low = self.data == -128
        return replace(self, data=self.data + low), replace(self, data=-low.to(torch.int8))

    def permute(self, order: tuple[int, ...]) -> Weights:
        return replace(self, data=self.data.permute(order), dim=order.index(self.dim))

    def write(self, writer: PartWriter) -> int:
        """Write them as integers of eight bits."""
        assert not self.group
        return _write(writer, self.data, self.scales, self.dim, INT8_BY_CHANNEL)

    def write_small(self, writer: PartWriter) -> int:
        """Write them in four bits each, if these are enough: two neighbours are one byte, counted
        from 0 on, the second above the first. Rows of an odd length would be misread."""
        size = tuple(self.data.shape)
        if not self.is_small or size[1] % 2:
            return self.write(writer)
        packed = _pack(self.data)
        if not self.group:
            return _write(writer, packed, self.scales, self.dim, INT4_BY_CHANNEL, size)
        scales = self.scales.to(torch.bfloat16)
        index = writer.payload.add_named(scales, "scale_")
        fields = (
            ("channel_dim", 0),
            ("group_size", self.group),
            ("scale_buffer_idx", index),
            ("num_scales", scales.numel()),
        )
        form = ElementForm(INT4_BY_GROUP, "PerChannelGroupQuant", fields)
        return writer.payload.add_data(packed, size, form, is_own=True)


AT_ONCE = 1 << 20
"""So many weights are packed at a time: what lies between is not as large as all of them."""


def _pack(data: torch.Tensor) -> torch.Tensor:
    """Two neighbours in one byte, counted from 0 on, the second above the first."""
    rows = max(1, AT_ONCE // data.shape[1])
    packed = torch.empty(data.shape[0], data.shape[1] // 2, dtype=torch.uint8)
    for some, made in zip(data.split(rows), packed.split(rows), strict=True):
        pairs = (some + 8).to(torch.uint8).reshape(len(some), -1, 2)
        torch.bitwise_or(pairs[..., 0], pairs[..., 1] << 4, out=made)
    # Who had no memory for the weights has none for these.
    return put_aside({"": packed})[""] if is_aside(data) else packed


GROUPS_OF = 32
"""The sizes of XNNPACK's groups are multiples of this."""


def find_weights(lookup: Lookup, node: Any) -> Weights | None:
    """The integers that a constant is made of, if XNNPACK takes them so."""
    if get_name(node) == CAST:
        return _find_cast(lookup, node)
    if get_name(node) == "aten::permute_copy":
        found = find_weights(lookup, node.args[0])
        order = [d % len(node.args[1]) for d in node.args[1]]
        return None if found is None else found.permute(tuple(order))
    if get_name(node) not in (DEQUANTIZE, BY_CHANNEL, BY_GROUP, BY_BLOCK):
        return None
    given = read_arguments(node)
    data = lookup(given.input)
    if data.dtype is not torch.int8 or data.ndim < 2:
        return None
    scales, zeros, dim, group = _find_scales(lookup, get_name(node), given, data)
    if scales is None or (zeros is not None and bool(zeros.any())):
        return None
    if not bool(((scales >= SMALLEST) & scales.isfinite()).all()):
        return None
    is_small = data.ndim == 2 and (given.quant_min, given.quant_max) == (-8, 7)
    if is_small and not _is_within(data, -8, 7):
        return None
    if group and (not is_small or group % GROUPS_OF):
        return None
    return Weights(data, scales.float(), dim, group, is_small)


def _find_cast(lookup: Lookup, node: Node) -> Weights | None:
    """Integers that are made floats as they are: their scales are 1, and are applied elsewhere."""
    source: Any = node.args[0]
    if read_arguments(node).dtype is not torch.float32 or lookup(source).dtype is not torch.int8:
        return None
    data, order = lookup(source), tuple(range(lookup(source).ndim))
    if get_name(source) == "aten::permute_copy":
        order = tuple(d % data.ndim for d in source.args[1])
    if data.ndim != 2:
        return None
    dim = order.index(0)
    return Weights(data, torch.ones(data.shape[dim]), dim)


def _is_within(data: torch.Tensor, least: int, most: int) -> bool:
    found = torch.aminmax(data)
    return int(found.min) >= least and int(found.max) <= most


def _find_scales(
    lookup: Lookup, name: str, given: Any, data: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, int, int]:
    """The scales and zero points of weights, the dimension that they are along, and how many
    neighbours have one; 0 if all of a row."""
    if name == DEQUANTIZE:
        scales = torch.full((data.shape[0],), float(given.scale))
        return scales, torch.tensor(given.zero_point), 0, 0
    scale = lookup(given.scale if name == BY_BLOCK else given.scales)
    zero = given.zero_point if name == BY_BLOCK else given.zero_points
    zeros = None if zero is None else lookup(zero)
    if name == BY_CHANNEL:
        return scale, zeros, given.axis % data.ndim, 0
    length = data.shape[-1]
    block = [1, given.group_size] if name == BY_GROUP else list(given.block_size)
    if len(block) != data.ndim or block[0] != 1 or block[1:-1] != list(data.shape[1:-1]):
        return None, None, 0, 0
    group = block[-1]
    if group == length:
        return scale.reshape(-1), zeros, 0, 0
    is_in_groups = data.ndim == 2 and length % group == 0
    return (scale if is_in_groups else None), zeros, 0, group


def find_bias(bias: torch.Tensor, scales: torch.Tensor) -> torch.Tensor | None:
    """A bias as integers of int32, of these scales; None if they cannot hold it."""
    found = (bias.double() / scales.double()).round()
    return found.to(torch.int32) if bool((found.abs() < 2**31).all()) else None


def write_bias(writer: PartWriter, bias: torch.Tensor, scales: torch.Tensor) -> int:
    return _write(writer, bias, scales, 0, INT32_BY_CHANNEL)


def _write(
    writer: PartWriter,
    data: torch.Tensor,
    scales: torch.Tensor,
    dim: int,
    datatype: int,
    size: tuple[int, ...] = (),
) -> int:
    listed = tuple(scales.tolist())
    fields = (("scale", listed), ("channel_dim", dim), ("num_scales", len(listed)))
    form = ElementForm(datatype, "PerChannelQuant", fields)
    return writer.payload.add_data(data, size or tuple(data.shape), form, is_own=bool(size))
