"""Convolutions as matrix products, batch norms as a scale and a shift.

The runtime's `convolution` is a plain loop, about a hundred times slower than its matrix product.
So the input is padded, the windows of it are copied side by side (`as_strided_copy`), and the
weights are multiplied with them. A transposed convolution is a plain one on an input with zeros
between its elements. A batch norm with fixed statistics is folded into the weights before it. Must
not plan memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.pte.lowering.listing import Tensor
from lostwax.pte.lowering.writer import CallWriter
from lostwax.sym import Size
from lostwax.types import Sizes, contiguous_strides, product

NORM = "aten::_native_batch_norm_legit_no_training"


class Window(NamedTuple):
    """How one dimension of the input is read: the size of the kernel and of the result."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    result: Size


def select_convolution(writer: CallWriter, node: Node) -> Any:
    """A matrix product of the weights and the windows of the input."""
    args: Any = node.args
    source, weight, bias, strides, paddings, dilations, transposed, outputs, groups = args
    x, w = writer.value(source), writer.value(weight)
    b = None if bias is None else writer.value(bias)
    if w.is_dynamic:
        return None
    # One number stands for all dimensions.
    rank = len(w.size) - 2
    strides, paddings, dilations, more = (
        list(each) * rank if len(each) == 1 else list(each)
        for each in (strides, paddings, dilations, outputs)
    )
    if transposed:
        w = _turn_weight(writer, w, groups)
        x = _spread_input(
            writer, x, list(zip(strides, paddings, dilations, more, w.bound[2:], strict=True))
        )
        strides, paddings = [1] * rank, [0] * rank
    norm = _find_norm(node, writer, (w, b))
    if norm is not None:
        w, b = _fold_norm(writer, norm, w, b)
    result = node.meta["val"].fake_type.size
    windows = [
        Window(w.size[2 + i], strides[i], paddings[i], dilations[i], result[2 + i])
        for i in range(rank)
    ]
    out = _multiply(writer, x, Product(w, b, groups), windows)
    out = writer.listing.view(out, result)
    if norm is not None:
        writer.values[norm] = [out, None, None]
    return out


def _turn_weight(writer: CallWriter, w: Tensor, groups: int) -> Tensor:
    """The weight of the plain convolution that computes a transposed one, on an input spread out:
    channels exchanged in each group, and all else from its end to its start."""
    inputs, outputs, *kernel = w.bound
    rank = len(kernel)
    size = (groups, inputs // groups, outputs, *kernel)
    turned = (groups * outputs, inputs // groups, *kernel)
    order, ends = [0, 2, 1, *range(3, 3 + rank)], [*range(3, 3 + rank)]
    data = _constant(w)
    if data is not None:
        data = data.reshape(size).flip(ends).permute(order).reshape(turned)
        return writer.listing.new_constant(data, w.storage.name)
    listing = writer.listing
    flipped = listing.new_tensor(size, w.dtype)
    writer.call("aten::flip.out", listing.view(w, size), ends, outs=[flipped])
    out = listing.new_tensor([size[d] for d in order], w.dtype)
    writer.call("aten::permute_copy.out", flipped, order, outs=[out])
    return listing.view(out, turned)


def _spread_input(writer: CallWriter, x: Tensor, dims: list[tuple[int, ...]]) -> Tensor:
    """The input of a transposed convolution with zeros between its elements and around them. For
    each dimension: stride, padding, dilation, more at the end, and the size of the kernel."""
    listing = writer.listing
    around: list[int] = []
    for d, (stride, padding, dilation, more, kernel) in enumerate(dims, 2):
        border = dilation * (kernel - 1) - padding
        around[:0] = [border, border + more - (stride - 1)]
        if stride > 1:
            before, length, behind = product(x.size[:d]), x.size[d], product(x.size[d + 1 :])
            apart = listing.new_tensor((before, length, stride, behind), x.dtype)
            row = listing.view(x, (before, length, 1, behind))
            zeros = [0, 0, 0, stride - 1]
            writer.call("aten::constant_pad_nd.out", row, zeros, 0, outs=[apart])
            x = listing.view(apart, (*x.size[:d], length * stride, *x.size[d + 1 :]))
    if any(n > 0 for n in around):
        wider = [max(n, 0) for n in around]
        padded = listing.new_tensor(_widen_sizes(x.size, wider), x.dtype)
        x = writer.call("aten::constant_pad_nd.out", x, wider, 0, outs=[padded])
    for i, (low, high) in enumerate(zip(around[::2], around[1::2], strict=True)):
        if low < 0 or high < 0:
            x = _cut_ends(writer, x, len(x.size) - 1 - i, max(-low, 0), max(-high, 0))
    return x


def _widen_sizes(size: Sizes, around: list[int]) -> Sizes:
    """The sizes with a border, whose numbers begin with those of the last dimension."""
    pairs = list(zip(around[::2], around[1::2], strict=True))[::-1]
    ends = [s + low + high for s, (low, high) in zip(size[2:], pairs, strict=True)]
    return (*size[:2], *ends)


def _cut_ends(writer: CallWriter, x: Tensor, dim: int, low: int, high: int) -> Tensor:
    """The input without the first and the last elements of a dimension."""
    size = (*x.size[:dim], x.size[dim] - low - high, *x.size[dim + 1 :])
    end = writer.listing.number(x.size[dim] - high)
    out = writer.listing.new_tensor(size, x.dtype)
    return writer.call("aten::slice_copy.Tensor_out", x, dim, low, end, 1, outs=[out])


class Product(NamedTuple):
    """The weights of a convolution as matrices, and what is added."""

    weight: Tensor
    bias: Tensor | None
    groups: int


def _multiply(writer: CallWriter, x: Tensor, made_of: Product, windows: list[Window]) -> Tensor:
    """The convolution of images. Their rows are computed in bands, so that the copies of windows
    take little memory at a time."""
    listing = writer.listing
    batch, outs = x.size[0], made_of.weight.size[0]
    image = [window.result for window in windows]
    x = pad(writer, x, windows)
    bands = [
        _multiply_band(writer, x, made_of, windows, start, count)
        for start, count in _bands(x, windows)
    ]
    made = bands[0]
    if len(bands) > 1:
        joined = listing.new_tensor((outs, batch, *image), x.dtype)
        made = writer.call("aten::cat.out", bands, 2, outs=[joined])
    if batch == 1:
        return made
    turned = listing.new_tensor((batch, outs, *image), x.dtype)
    order = [1, 0, *range(2, 2 + len(image))]
    return writer.call("aten::permute_copy.out", made, order, outs=[turned])


BAND = 1 << 21
"""The bytes that the copied windows of one band may have."""


def _bands(x: Tensor, windows: list[Window]) -> list[tuple[int, Size]]:
    """The rows of the result in bands: the first row of each, and how many."""
    rows = windows[0].result
    batch, channels = x.size[:2]
    each = batch * channels * product([w.kernel for w in windows]) * x.dtype.itemsize
    each = each * product([w.result for w in windows[1:]])
    if not isinstance(each, int) or not isinstance(rows, int) or _is_view(x, windows):
        return [(0, rows)]
    count = max(1, min(rows, -(-each * rows // BAND)))
    edges = [rows * i // count for i in range(count + 1)]
    return [(a, b - a) for a, b in pairwise(edges) if b > a] or [(0, 0)]


def _multiply_band(
    writer: CallWriter,
    x: Tensor,
    made_of: Product,
    windows: list[Window],
    start: int,
    count: Size,
) -> Tensor:
    """Some rows of the result: channels, images, rows, columns."""
    listing = writer.listing
    (w, b, groups), batch = made_of, x.size[0]
    outs, inner = w.size[0], product(w.size[1:])
    columns = copy_windows(writer, x, windows, start, count)
    image = (count, *[window.result for window in windows[1:]])
    points = batch * product(image)
    if groups == 1:
        columns = listing.view(columns, (inner, points))
        made = listing.new_tensor((outs, points), x.dtype)
        writer.call("aten::mm.out", listing.view(w, (outs, inner)), columns, outs=[made])
    else:
        each = outs // groups
        columns = listing.view(columns, (groups, inner, points))
        made = listing.new_tensor((groups, each, points), x.dtype)
        parts = listing.view(w, (groups, each, inner))
        writer.call("aten::bmm.out", parts, columns, outs=[made])
        made = listing.view(made, (outs, points))
    if b is not None:
        total = listing.new_tensor((outs, points), x.dtype)
        made = writer.call("aten::add.out", made, listing.view(b, (outs, 1)), 1, outs=[total])
    return listing.view(made, (outs, batch, *image))


def pad(writer: CallWriter, x: Tensor, windows: list[Window], border: float = 0) -> Tensor:
    """The input with a border around it."""
    if not any(window.padding for window in windows):
        return x
    sizes = [s + 2 * w.padding for s, w in zip(x.size[2:], windows, strict=True)]
    padded = writer.listing.new_tensor((*x.size[:2], *sizes), x.dtype)
    around = [window.padding for window in reversed(windows) for _ in range(2)]
    return writer.call("aten::constant_pad_nd.out", x, around, border, outs=[padded])


def _is_view(x: Tensor, windows: list[Window]) -> bool:
    """Are the windows single places, side by side in the input as it is?"""
    return x.size[0] == 1 and all(w[:3] == (1, 1, 0) for w in windows)


def copy_windows(
    writer: CallWriter, x: Tensor, windows: list[Window], start: int, count: Size
) -> Tensor:
    """What each weight is multiplied with: channels, the places in a window, then the images and
    the places of some rows of the result. The input is padded already."""
    if _is_view(x, windows):
        return x
    listing = writer.listing
    batch, channels = x.size[:2]
    steps = contiguous_strides(x.size)
    pairs = list(zip(windows, steps[2:], strict=True))
    size = (
        channels,
        *(w.kernel for w in windows),
        batch,
        count,
        *(w.result for w in windows[1:]),
    )
    stride = (
        steps[1],
        *(w.dilation * step for w, step in pairs),
        steps[0],
        *(w.stride * step for w, step in pairs),
    )
    columns = listing.new_tensor(size, x.dtype)
    where = [[listing.number(n) for n in numbers] for numbers in (size, stride)]
    first = listing.number(start * windows[0].stride * steps[2])
    return writer.call("aten::as_strided_copy.out", x, *where, first, outs=[columns])


# ------------------------------------------------------------------------------- batch norms


def select_norm(writer: CallWriter, node: Node) -> Any:
    """A scale and a shift, if the statistics are constants."""
    scale_and_shift = _norm_constants(writer, node)
    if scale_and_shift is None or any(user.args[1] != 0 for user in node.users):
        return None
    args: Any = node.args
    x = writer.value(args[0])
    shape = (-1, *[1] * (len(x.size) - 2))
    scale, shift = (
        writer.listing.new_constant(t.to(x.dtype).reshape(shape)) for t in scale_and_shift
    )
    scaled = writer.listing.new_tensor(x.size, x.dtype)
    writer.call("aten::mul.out", x, scale, outs=[scaled])
    out = writer.listing.new_tensor(x.size, x.dtype)
    return [writer.call("aten::add.out", scaled, shift, 1, outs=[out]), None, None]


def _norm_constants(writer: CallWriter, node: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The scale and the shift of a batch norm, in double precision."""
    args: Any = node.args
    state = [None if a is None else _constant(writer.value(a)) for a in args[1:5]]
    if any(s is None and a is not None for s, a in zip(state, args[1:5], strict=True)):
        return None
    weight, bias, mean, var = state
    assert mean is not None
    assert var is not None
    scale = (var.double() + args[6]).rsqrt()
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    return scale, shift if bias is None else shift + bias.double()


def _constant(value: Any) -> torch.Tensor | None:
    """The data of a constant, in the sizes that it is seen with."""
    if not isinstance(value, Tensor) or not value.storage.is_constant:
        return None
    data = value.storage.data
    return None if data is None else data.reshape([int(s) for s in value.size])


def _find_norm(
    node: Node, writer: CallWriter, weights: tuple[Tensor, Tensor | None]
) -> Node | None:
    """The batch norm that alone reads a convolution, if all of its state is constant."""
    if len(node.users) != 1 or any(w is not None and _constant(w) is None for w in weights):
        return None
    (norm,) = node.users
    target = norm.target
    if not isinstance(target, EdgeOperator) or target.name() != NORM or norm.args[0] is not node:
        return None
    if any(user.args[1] != 0 for user in norm.users):
        return None
    if norm.meta["val"][0].dtype is not node.meta["val"].dtype:
        return None
    placeholders = [a for a in norm.args[1:5] if isinstance(a, Node)]
    if any(a.op != "placeholder" for a in placeholders):
        return None
    return norm if _norm_constants(writer, norm) is not None else None


def _fold_norm(
    writer: CallWriter, norm: Node, w: Tensor, b: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights and the bias of a convolution with the norm after it."""
    found = _norm_constants(writer, norm)
    data, added = _constant(w), _constant(b)
    assert found is not None
    assert data is not None
    scale, shift = found
    if added is not None:
        shift = shift + added.double() * scale
    folded = data * scale.to(data.dtype).reshape(-1, *[1] * (data.ndim - 1))
    new = writer.listing.new_constant
    return new(folded, w.storage.name), new(shift.to(data.dtype))


CONVOLUTIONS = {"aten::convolution": select_convolution, NORM: select_norm}
"""The selections by the name of the operator."""
