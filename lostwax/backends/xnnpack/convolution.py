"""Convolutions of images and signals. Channels are last in them.

A batch norm that alone reads a convolution is folded into its weights. Signals are images of one
row. Must not know of other families.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import (
    count_dynamic,
    list_pair,
    read_arguments,
    size_of,
)
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.normalization import find_factors
from lostwax.backends.xnnpack.quantized.layers import Layer, write_weights
from lostwax.backends.xnnpack.quantized.weights import Weights, find_weights
from lostwax.backends.xnnpack.schema import NO_VALUE
from lostwax.backends.xnnpack.shapes import write_reshape
from lostwax.backends.xnnpack.writer import PartWriter, Result
from lostwax.sym import Size

# ------------------------------------------------------------------------------- convolutions


def write_convolution(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    weight, bias, result = _fold_norm(writer, node, given)
    if weight.ndim == 3:
        weight = weight.unsqueeze(2)
    stride, dilation = _list_numbers(given.stride, 1), _list_numbers(given.dilation, 1)
    padding, more = _list_numbers(given.padding, 0), _list_numbers(given.output_padding, 0)
    groups = given.groups
    if given.transposed:
        kind, inputs, outputs = "XNNConvTranspose2d", weight.shape[0] // groups, weight.shape[1]
    else:
        kind, inputs, outputs = "XNNConv2d", weight.shape[1], weight.shape[0] // groups
        if inputs == 1 and groups > 1:
            kind = "XNNDepthwiseConv2d"
    layer = _find_integers(writer, node, kind, given, bias)
    if layer is None:
        bias_id = NO_VALUE if bias is None else writer.add_constant(bias)
        filters = _order_filters(kind, weight, groups)
        layer = Layer(given.input, result, writer.add_constant(filters), bias_id)
    source = _read_image(writer, layer.source)
    made, finish = _define_image(writer, layer.result.node)
    writer.add(
        kind,
        layer.result.clamp,
        padding_top=padding[0],
        padding_right=padding[1],
        padding_bottom=padding[0],
        padding_left=padding[1],
        kernel_height=weight.shape[2],
        kernel_width=weight.shape[3],
        subsampling_height=stride[0],
        subsampling_width=stride[1],
        dilation_height=dilation[0],
        dilation_width=dilation[1],
        group_input_channels=inputs,
        group_output_channels=outputs,
        groups=groups,
        adjustment_height=more[0],
        adjustment_width=more[1],
        input1_id=source,
        filter_id=layer.filter_id,
        bias_id=layer.bias_id,
        output_id=made,
    )
    finish()


def _order_filters(kind: str, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """The weights of a convolution as XNNPACK wants them."""
    if kind == "XNNDepthwiseConv2d":
        return weight.permute(1, 2, 3, 0)
    if kind == "XNNConv2d":
        return weight.permute(0, 2, 3, 1)
    parts = weight.reshape(groups, -1, *weight.shape[1:]).permute(0, 2, 3, 4, 1)
    return parts.reshape(-1, *parts.shape[2:])


def _find_integers(
    writer: PartWriter, node: Node, kind: str, given: Any, bias: torch.Tensor | None
) -> Layer | None:
    """The convolution in eight bits, if it is computed so."""
    weights = find_weights(writer.constants.__getitem__, given.weight)
    if weights is None or weights.group:
        return None
    data, dim = weights.data, weights.dim
    if data.ndim == 3:
        data = data.unsqueeze(2)
    if dim != (1 if given.transposed else 0) or (given.transposed and given.groups > 1):
        return None  # scales are of other things than of results
    ordered = _order_filters(kind, data, given.groups)
    last = 3 if kind == "XNNDepthwiseConv2d" else 0
    return write_weights(writer, node, given.input, Weights(ordered, weights.scales, last), bias)


def _fold_norm(
    writer: PartWriter, node: Node, given: Any
) -> tuple[torch.Tensor, torch.Tensor | None, Result]:
    """The weights of a convolution with those of the norm that alone reads it, and the result."""
    weight = writer.constants[given.weight].detach()
    bias = None if given.bias is None else writer.constants[given.bias].detach()
    norm = writer.find_only_reader(node)
    if norm is None or not _is_norm(norm) or norm.args[0] is not node:
        return weight, bias, writer.find_result(node)
    scale, more = find_factors(writer, norm)
    if bias is not None:
        more = more + bias.double() * scale
    if given.transposed:  # [inputs, outputs of a group, ...]
        parts = weight.double().reshape(given.groups, -1, *weight.shape[1:])
        by = scale.reshape(given.groups, 1, -1, *[1] * (weight.ndim - 2))
        weight = (parts * by).reshape(weight.shape).float()
    else:
        weight = (weight.double() * scale.reshape(-1, *[1] * (weight.ndim - 1))).float()
    (reader,) = norm.users
    writer.written.add(norm)
    return weight, more.float(), writer.find_result(reader)


def _is_norm(node: Node) -> bool:
    name = getattr(node.target, "name", str)()
    return name == "aten::_native_batch_norm_legit_no_training"


def explain_convolution(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if not facts.is_constant(given.weight):
        return "its weight is no constant"
    if given.bias is not None and not facts.is_constant(given.bias):
        return "its bias is no constant"
    size = size_of(given.input)
    if len(size_of(given.weight)) not in (3, 4) or len(size) != len(size_of(given.weight)):
        return "XNNPACK's convolutions are of images and signals, in batches"
    if len(size) == 3 and max(count_dynamic(size), count_dynamic(size_of(node))) > 1:
        return "a signal is reshaped, to at most one size that varies"
    if given.transposed and any(_list_numbers(given.dilation, 1)[i] != 1 for i in (0, 1)):
        return "XNNPACK's transposed convolutions have no dilation"
    return ""


def _list_numbers(values: Sequence[int], first: int) -> list[int]:
    """The numbers of a convolution of images; that of a signal is the second."""
    return list_pair(values) if len(values) != 1 else [first, values[0]]


def _read_image(writer: PartWriter, node: Node) -> int:
    """An image with channels last; a signal is one of one row."""
    source = writer.read(node, True)
    size = size_of(node)
    if len(size) == 4:
        return source
    made = writer.new([size[0], 1, size[2], size[1]])
    write_reshape(writer, source, made, [size[0], 1, size[2], size[1]])
    return made


def _define_image(writer: PartWriter, node: Node) -> tuple[int, Any]:
    """The number of the image that is computed, and what makes a signal of it, if it is one."""
    size = size_of(node)
    if len(size) == 4:
        return writer.define(node, True), lambda: None
    image: list[Size] = [size[0], 1, size[2], size[1]]
    made = writer.new(image)

    def finish() -> None:
        signal = writer.define(node, True)
        write_reshape(writer, made, signal, [size[0], size[2], size[1]])

    return made, finish


CONVOLUTIONS = {
    "aten::convolution": OperatorEntry(write_convolution, explain_convolution, windows=True)
}
"""The operators of this family, by name."""
