"""Operators on images beside convolutions: pools and resizing. Channels are last in all of them.

Must not know of other families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import is_static, list_pair, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.normalization import explain_first, write_image_mean
from lostwax.backends.xnnpack.quantized.match import is_alike, match_call
from lostwax.backends.xnnpack.schema import ALIGN_CORNERS, KEEP_DIMS
from lostwax.backends.xnnpack.shapes import write_reshape
from lostwax.backends.xnnpack.writer import LAST, PartWriter, permute
from lostwax.sym import Size

# ------------------------------------------------------------------------------- pools


def write_max_pool(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    (reader,) = node.users
    fields = _window(given.kernel_size, given.stride, given.padding)
    dilation = list_pair(given.dilation)
    down, right = _count_beyond(node, given) if given.ceil_mode else (0, 0)
    fields["padding_bottom"] += down
    fields["padding_right"] += right
    fields |= {"dilation_height": dilation[0], "dilation_width": dilation[1]}
    found = match_call(writer, node, [given.self], is_alike, reader)
    (source,), result = found or ([given.self], writer.find_result(reader))
    source = writer.read(source, True)
    made = writer.define(result.node, True)
    writer.add("XNNMaxPooling2d", result.clamp, input_id=source, output_id=made, **fields)


def explain_max_pool(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    kernel = list_pair(given.kernel_size)
    if kernel == [1, 1]:
        return "XNNPACK has no pools of single pixels"
    return _explain_ceil(node, given) or _explain_image(given.self) or explain_first(node)


def _explain_ceil(node: Node, given: Any) -> str:
    is_fixed = is_static(*size_of(given.self)[2:])
    return "XNNPACK needs fixed sizes for ceil_mode" if given.ceil_mode and not is_fixed else ""


def _count_beyond(node: Node, given: Any) -> list[int]:
    """How far the last windows reach beyond the image and its padding, with `ceil_mode`."""
    old, new = size_of(given.self)[2:], size_of(node)[2:]
    window = [list_pair(v) for v in (given.kernel_size, given.stride or given.kernel_size)]
    padding, dilation = list_pair(given.padding), list_pair(getattr(given, "dilation", 1))
    each = zip(old, new, *window, padding, dilation, strict=True)
    return [
        max(0, (int(n) - 1) * step + d * (k - 1) + 1 - int(o) - 2 * p)
        for o, n, k, step, p, d in each
    ]


def _explain_image(source: Node) -> str:
    return "" if len(size_of(source)) == 4 else "XNNPACK's pools are of images, in batches"


def _window(kernel: Any, stride: Any, padding: Any) -> dict[str, int]:
    (height, width), (down, right) = list_pair(kernel), list_pair(stride or kernel)
    top, left = list_pair(padding)
    return {
        "padding_top": top,
        "padding_right": left,
        "padding_bottom": top,
        "padding_left": left,
        "pooling_height": height,
        "pooling_width": width,
        "stride_height": down,
        "stride_width": right,
        "flags": KEEP_DIMS,
    }


def write_average_pool(writer: PartWriter, node: Node) -> None:
    """XNNPACK's does not count what is padded; if that is to count, zeros are put there before."""
    given = read_arguments(node)
    fields = _window(given.kernel_size, given.stride, given.padding)
    source = writer.read(given.self, True)
    top, left = list_pair(given.padding)
    if given.count_include_pad and (top or left):
        size = size_of(given.self)
        wide = writer.new([size[0], size[2] + 2 * top, size[3] + 2 * left, size[1]])
        amounts = [0, top, left, 0]
        fields = _window(given.kernel_size, given.stride, 0)
        writer.add(
            "XNNStaticConstantPad",
            pre_paddings=amounts,
            post_paddings=amounts,
            input_id=source,
            output_id=wide,
        )
        source = wide
    elif given.ceil_mode:
        down, right = _count_beyond(node, given)
        fields["padding_bottom"] += down
        fields["padding_right"] += right
    _write_average(writer, node, source, fields)


def _write_average(writer: PartWriter, node: Node, source: int, fields: dict[str, int]) -> None:
    result = writer.find_result(node)
    made = writer.define(result.node, True)
    writer.add("XNNAvgPooling2d", result.clamp, input_id=source, output_id=made, **fields)


def explain_average_pool(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if reason := _explain_ceil(node, given):
        return reason
    is_padded = any(list_pair(given.padding)) and given.count_include_pad
    if given.ceil_mode and is_padded and any(_count_beyond(node, given)):
        return "XNNPACK's pools count all of what is padded, or nothing (ceil_mode)"
    if given.divisor_override is not None:
        return "XNNPACK's pools divide by the size of their windows"
    if list_pair(given.kernel_size) == [1, 1]:
        return "XNNPACK has no pools of single pixels"
    return _explain_image(given.self)


def write_adaptive_pool(writer: PartWriter, node: Node) -> None:
    """The mean of the image, or of windows that are all alike."""
    given = read_arguments(node)
    wanted = list_pair(given.output_size)
    if wanted == [1, 1]:
        write_image_mean(writer, node, given.self)
    else:
        size = size_of(given.self)[2:]
        kernel = [int(s) // w for s, w in zip(size, wanted, strict=True)]
        source = writer.read(given.self, True)
        _write_average(writer, node, source, _window(kernel, kernel, 0))


def explain_adaptive_pool(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    wanted, size = list_pair(given.output_size), size_of(given.self)[-2:]
    if wanted == [1, 1]:
        return _explain_image(given.self)
    if not is_static(*size) or any(int(s) % w for s, w in zip(size, wanted, strict=True)):
        return f"its windows are not all alike: {list(size)} to {wanted}"
    if list(size) == wanted:
        return "XNNPACK has no pools of single pixels"
    return _explain_image(given.self)


# ------------------------------------------------------------------------------- resizing


def write_bilinear(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    height, width = size_of(node)[2:]
    source = writer.read(node.args[0], True)  # type: ignore[arg-type]
    writer.add(
        "XNNStaticResizeBilinear2D",
        new_height=height,
        new_width=width,
        input_id=source,
        output_id=writer.define(node, True),
        flags=ALIGN_CORNERS if given.align_corners else 0,
    )


def explain_bilinear(node: Node, facts: ProgramFacts) -> str:
    source: Any = node.args[0]
    if not is_static(*size_of(node)[2:], *size_of(source)[2:]):
        return "XNNPACK resizes to sizes that are fixed"
    given = read_arguments(node)
    new = size_of(node)[2:]
    if given.align_corners and 1 in new:
        return "XNNPACK puts no corners into one pixel"
    return explain_factors(node)


def explain_factors(node: Node) -> str:
    """Why an image is not resized, if it is so by factors that are not those of its sizes."""
    given, source = read_arguments(node), node.args[0]
    old, new = size_of(source)[2:], size_of(node)[2:]  # type: ignore[arg-type]
    factors = getattr(given, "scale_factors", None) or (
        getattr(given, "scales_h", None),
        getattr(given, "scales_w", None),
    )
    if any(f is not None and f * s != n for f, s, n in zip(factors, old, new, strict=True)):
        return "XNNPACK resizes to a size, not by factors"
    return ""


def write_nearest(writer: PartWriter, node: Node) -> None:
    """Each pixel several times: a product with ones, between reshapings."""
    source: Any = node.args[0]
    (batch, channels, height, width), new = size_of(source), size_of(node)
    times = [int(n) // int(o) for n, o in zip(new[2:], (height, width), strict=True)]
    apart: list[Size] = [batch, height, 1, width, 1, channels]
    repeated: list[Size] = [batch, height, times[0], width, times[1], channels]
    ones = writer.add_constant(torch.ones(1, 1, times[0], 1, times[1], 1))
    seen, made = writer.new(apart), writer.new(repeated)
    write_reshape(writer, writer.read(source, True), seen, apart)
    writer.add("XNNMultiply", input1_id=seen, input2_id=ones, output_id=made)
    write_reshape(writer, made, writer.define(node, True), permute(new, LAST[4]))


def explain_nearest(node: Node, facts: ProgramFacts) -> str:
    source: Any = node.args[0]
    old, new = size_of(source), size_of(node)
    if not is_static(*old[1:], *new[1:]):
        return "XNNPACK resizes to sizes that are fixed"
    if any(int(n) % int(o) for o, n in zip(old[2:], new[2:], strict=True)):
        return f"XNNPACK repeats pixels a whole number of times: {list(old[2:])} to {list(new[2:])}"
    return explain_factors(node)


_BILINEAR = OperatorEntry(write_bilinear, explain_bilinear)
_NEAREST = OperatorEntry(write_nearest, explain_nearest)

IMAGES = {
    "aten::max_pool2d_with_indices": OperatorEntry(write_max_pool, explain_max_pool, windows=True),
    "aten::avg_pool2d": OperatorEntry(write_average_pool, explain_average_pool, windows=True),
    "aten::_adaptive_avg_pool2d": OperatorEntry(write_adaptive_pool, explain_adaptive_pool),
    "aten::upsample_bilinear2d.vec": _BILINEAR,
    "aten::upsample_bilinear2d": _BILINEAR,
    "aten::upsample_nearest2d.vec": _NEAREST,
    "aten::upsample_nearest2d": _NEAREST,
}
"""The operators of this family, by name."""
