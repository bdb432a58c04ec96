"""Pools of volumes, which the runtime has no kernels for.

The windows of a volume are copied side by side, as for convolutions, and reduced. Only what is
computed exactly so is selected; all else is refused where the kernel is missed. Must not plan
memory.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from lostwax.pte.lowering.convolution import Window, copy_windows, pad
from lostwax.pte.lowering.listing import Tensor
from lostwax.pte.lowering.writer import CallWriter


def select_average(writer: CallWriter, node: Node) -> Any:
    """The mean of each window, if all of it counts."""
    kernel, stride, padding, ceil, whole, divisor = _fill(node, [(), 0, False, True, None])
    if ceil or divisor is not None or (any(padding) and not whole):
        return None
    if not node.meta["val"].dtype.is_floating_point:
        return None
    windows = _windows(node, kernel, stride or kernel, padding, [1] * 3)
    return _reduce(writer, node, windows, "aten::mean.out", 0)


def select_adaptive(writer: CallWriter, node: Node) -> Any:
    """The mean of each window, if all are of one size."""
    args: Any = node.args
    sizes, wanted = writer.value(args[0]).size[-3:], list(args[1])
    if any(not isinstance(s, int) or s % w for s, w in zip(sizes, wanted, strict=True)):
        return None
    kernel = [s // w for s, w in zip(sizes, wanted, strict=True)]
    windows = _windows(node, kernel, kernel, [0] * 3, [1] * 3)
    return _reduce(writer, node, windows, "aten::mean.out", 0)


def select_maximum(writer: CallWriter, node: Node) -> Any:
    """The maximum of each window, if nobody asks where it is."""
    if any(user.args[1] != 0 for user in node.users):
        return None
    kernel, stride, padding, dilation, ceil = _fill(node, [(), 0, 1, False])
    value = node.meta["val"][0]
    if ceil or not value.dtype.is_floating_point:
        return None
    windows = _windows(node, kernel, stride or kernel, padding, dilation, value)
    return [_reduce(writer, node, windows, "aten::amax.out", -math.inf, value), None]


def _fill(node: Node, defaults: list[Any]) -> list[Any]:
    """The arguments after the input, with their defaults; what is one number for all dimensions is
    three."""
    args: Any = node.args[1:]
    filled = [*args, *defaults[len(args) - 1 :]]
    places = [i for i, d in enumerate([(), *defaults]) if not isinstance(d, bool) and d is not None]
    for i in places:
        value = filled[i] if isinstance(filled[i], (list, tuple)) else [filled[i]]
        filled[i] = list(value) * 3 if len(value) == 1 else list(value)
    return filled


def _windows(
    node: Node, kernel: Any, stride: Any, padding: Any, dilation: Any, value: Any = None
) -> list[Window]:
    sizes = (node.meta["val"] if value is None else value).fake_type.size[-3:]
    return [Window(*each) for each in zip(kernel, stride, padding, dilation, sizes, strict=True)]


def _reduce(
    writer: CallWriter,
    node: Node,
    windows: list[Window],
    kernel: str,
    border: float,
    value: Any = None,
) -> Tensor:
    value = node.meta["val"] if value is None else value
    listing = writer.listing
    x = writer.value(node.args[0])
    result = value.fake_type.size
    if len(x.size) == 4:  # no batch
        x = listing.view(x, (1, *x.size))
    x = pad(writer, x, windows, border)
    batch, channels = x.size[:2]
    columns = copy_windows(writer, x, windows, 0, windows[0].result)
    image = [w.result for w in windows]
    columns = listing.view(columns, (channels, *(w.kernel for w in windows), batch, *image))
    made = listing.new_tensor((channels, batch, *image), x.dtype)
    writer.call(kernel, columns, [1, 2, 3], False, outs=[made])
    turned = listing.new_tensor((batch, channels, *image), x.dtype)
    writer.call("aten::permute_copy.out", made, [1, 0, 2, 3, 4], outs=[turned])
    return listing.view(turned, result)


POOLS = {
    "aten::_adaptive_avg_pool3d": select_adaptive,
    "aten::avg_pool3d": select_average,
    "aten::max_pool3d_with_indices": select_maximum,
}
"""The selections by the name of the operator."""
