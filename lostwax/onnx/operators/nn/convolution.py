"""Convolutions, plain and transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


@translation("convolution")
def convolution(
    on: OnnxWriter,
    input: OnnxTensor,
    weight: OnnxTensor,
    bias: OnnxTensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> OnnxTensor:
    spatial = weight.rank - 2
    if not input.dtype.is_floating_point:
        raise NotWritten("ONNX convolves floats", "convolve x.float()")
    strides, pads, dilations = (_spread(each, spatial) for each in (stride, padding, dilation))
    if not all(isinstance(n, int) for n in (*strides, *pads, *dilations)):
        raise NotWritten("its stride, padding or dilation varies", "give fixed ones")
    more = _spread(output_padding, spatial)
    is_alone = input.rank == spatial + 1  # without a batch
    x = on.Unsqueeze(input, on.ints(0)) if is_alone else input
    made = on.write(
        "ConvTranspose" if transposed else "Conv",
        [x, weight, bias],
        kernel_shape=_plain(weight.size[2:]),
        strides=strides,
        pads=[*pads, *pads],
        dilations=dilations,
        group=groups,
        output_padding=more if transposed and any(more) else None,
    )
    return on.Squeeze(made, on.ints(0)) if is_alone else made


def _plain(sizes: Any) -> list[int] | None:
    return list(sizes) if all(isinstance(n, int) for n in sizes) else None


def _spread(given: Any, spatial: int) -> list[int]:
    """One number is that of each dim."""
    found = [given] if isinstance(given, int) else list(given)
    return found * spatial if len(found) == 1 else found


def _composite(transposed: bool) -> Callable[..., OnnxTensor]:
    def plain(
        on: OnnxWriter,
        input: OnnxTensor,
        weight: OnnxTensor,
        bias: OnnxTensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> OnnxTensor:
        return convolution(on, input, weight, bias, stride, padding, dilation, False, [0], groups)

    def convolve_back(
        on: OnnxWriter,
        input: OnnxTensor,
        weight: OnnxTensor,
        bias: OnnxTensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> OnnxTensor:
        return convolution(
            on, input, weight, bias, stride, padding, dilation, True, output_padding, groups
        )

    return convolve_back if transposed else plain


translation("conv1d", "conv2d", "conv3d")(_composite(transposed=False))
translation("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")(
    _composite(transposed=True)
)
