"""Softmax, means, batch and layer norms.

XNNPACK has no reductions along rows; a mean is a fully connected layer whose weights are all alike.
Must not know of other families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import is_static, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.quantized.match import can_average, match_call
from lostwax.backends.xnnpack.schema import KEEP_DIMS, NO_VALUE
from lostwax.backends.xnnpack.shapes import explain_reshape, write_reshape
from lostwax.backends.xnnpack.writer import LAST, PartWriter, permute
from lostwax.sym import Size

# ------------------------------------------------------------------------------- softmax


def write_softmax(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    last = given.dim % len(size_of(node)) != len(size_of(node)) - 1
    source = writer.read(given.self, last)
    writer.add("XNNSoftmax", input_id=source, output_id=writer.define(node, last))


def explain_softmax(node: Node, facts: ProgramFacts) -> str:
    given, rank = read_arguments(node), len(size_of(node))
    dim = given.dim % rank
    if given.half_to_float:
        return "it casts"
    if dim == rank - 1 or (dim == 1 and rank in LAST):
        return ""
    return "XNNPACK's softmax is along the last dimension, or that of channels"


# ------------------------------------------------------------------------------- means


def write_mean(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    size = size_of(given.self)
    dims, rank = _list_dims(given, len(size)), len(size)
    if rank == 4 and dims == [2, 3] and given.keepdim:
        write_image_mean(writer, node, given.self)
        return
    last = dims in _WITH_CHANNELS_LAST.get(rank, ())
    source = writer.read(given.self, last)
    kept: list[Size] = [1 if d in dims else s for d, s in enumerate(size)]
    shape = permute(kept, LAST[rank]) if last else kept
    made = writer.define(node, last) if given.keepdim else writer.new(shape)
    if len(dims) == 2:
        writer.add("XNNGlobalAvgPooling2d", input_id=source, output_id=made, flags=KEEP_DIMS)
    else:
        write_row_mean(writer, source, made, int(size[dims[0]]))
    if not given.keepdim:
        write_reshape(writer, made, writer.define(node), size_of(node))


def write_image_mean(writer: PartWriter, node: Node, source: Any) -> None:
    """The mean of each channel of an image."""
    found = match_call(writer, node, [source], can_average)
    (source,), result = found or ([source], writer.find_result(node))
    given = writer.read(source, True)
    made = writer.define(result.node, True)
    fields = {"input_id": given, "output_id": made, "flags": KEEP_DIMS}
    writer.add("XNNGlobalAvgPooling2d", result.clamp, **fields)


_WITH_CHANNELS_LAST = {3: [[1]], 4: [[2, 3]]}
"""The dimensions whose mean is that of rows or of an image if channels are last."""


def write_row_mean(
    writer: PartWriter, source: int, made: int, length: int, more: float = 0.0
) -> None:
    """The mean of each row, and a number more, as a fully connected layer."""
    weight = writer.add_constant(torch.full((1, length), 1.0 / length))
    bias = writer.add_constant(torch.tensor([more])) if more else NO_VALUE
    writer.add(
        "XNNFullyConnected", input1_id=source, filter_id=weight, bias_id=bias, output_id=made
    )


def _list_dims(given: Any, rank: int) -> list[int]:
    return sorted(d % rank for d in given.dim or range(rank))


def explain_mean(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    size = size_of(given.self)
    dims = _list_dims(given, len(size))
    if not given.keepdim and (reason := explain_reshape(size_of(node))):
        return reason
    if dims in ([1, 2], [2, 3]) and len(size) == 4:
        return ""
    is_row = dims == [len(size) - 1] or dims in _WITH_CHANNELS_LAST.get(len(size), ())
    if is_row and len(size) > 1 and is_static(size[dims[0]]):
        return ""
    return "XNNPACK's means are of images and of rows"


# ------------------------------------------------------------------------------- norms


def find_factors(writer: PartWriter, node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """What a batch norm multiplies its channels by, and what it adds to them."""
    given = read_arguments(node)
    mean, var = writer.constants[given.running_mean], writer.constants[given.running_var]
    scale = (var.double() + given.eps).rsqrt()
    if given.weight is not None:
        scale = scale * writer.constants[given.weight].double()
    more = -mean.double() * scale
    if given.bias is not None:
        more = more + writer.constants[given.bias].double()
    return scale, more


def write_batch_norm(writer: PartWriter, node: Node) -> None:
    """A multiplication and an addition; one that follows a convolution is part of it."""
    source: Any = node.args[0]
    (reader,) = node.users
    size = size_of(source)
    last = writer.is_last(source)
    given = writer.read(source, last)
    shape = [1, -1] + [1] * (len(size) - 2)
    scale, more = (
        each.float().reshape(-1) if last else each.float().reshape(shape)
        for each in find_factors(writer, node)
    )
    scaled = writer.new(permute(size, LAST[len(size)]) if last else size)
    factor, term = writer.add_constant(scale), writer.add_constant(more)
    writer.add("XNNMultiply", input1_id=given, input2_id=factor, output_id=scaled)
    result = writer.find_result(reader)
    made = writer.define(result.node, last)
    writer.add("XNNAdd", result.clamp, input1_id=scaled, input2_id=term, output_id=made)


def explain_batch_norm(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    parts = (given.weight, given.bias, given.running_mean, given.running_var)
    if any(p is not None and not facts.is_constant(p) for p in parts):
        return "its statistics are no constants"
    return explain_first(node)


def explain_first(node: Node) -> str:
    """Why a call of several results is not taken, of which XNNPACK computes the first."""
    readers = [n.args[1] for n in node.users]
    return "" if readers == [0] else "XNNPACK computes the first of its results alone"


def write_layer_norm(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    (reader,) = node.users
    size = size_of(given.input)
    length, kept = int(size[-1]), (*size[:-1], 1)
    source = writer.read(given.input)
    mean, centered, squares = writer.new(kept), writer.new(size), writer.new(size)
    write_row_mean(writer, source, mean, length)
    writer.add("XNNSubtract", input1_id=source, input2_id=mean, output_id=centered)
    writer.add("XNNSquare", input_id=centered, output_id=squares)
    var, scale = writer.new(kept), writer.new(kept)
    write_row_mean(writer, squares, var, length, given.eps)
    writer.add("XNNReciprocalSquareRoot", input_id=var, output_id=scale)
    steps = [("XNNMultiply", scale)]
    for kind, weight in (("XNNMultiply", given.weight), ("XNNAdd", given.bias)):
        if weight is not None:
            steps.append((kind, writer.add_constant(writer.constants[weight])))
    current = centered
    for i, (kind, other) in enumerate(steps):
        made = writer.define(reader) if i == len(steps) - 1 else writer.new(size)
        writer.add(kind, input1_id=current, input2_id=other, output_id=made)
        current = made


def explain_layer_norm(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if any(p is not None and not facts.is_constant(p) for p in (given.weight, given.bias)):
        return "its weights are no constants"
    if len(given.normalized_shape) != 1 or not is_static(size_of(given.input)[-1]):
        return "XNNPACK's means are of rows of a fixed length"
    if len(size_of(given.input)) < 2:
        return "it is of one row alone"
    return explain_first(node)


NORMALIZATION = {
    "aten::_softmax": OperatorEntry(write_softmax, explain_softmax),
    "aten::mean.dim": OperatorEntry(write_mean, explain_mean),
    "aten::_native_batch_norm_legit_no_training": OperatorEntry(
        write_batch_norm, explain_batch_norm
    ),
    "aten::native_layer_norm": OperatorEntry(write_layer_norm, explain_layer_norm),
}
"""The operators of this family, by name."""
