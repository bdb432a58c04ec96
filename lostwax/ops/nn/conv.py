"""Type rules of convolutions: 1-d to 3-d, transposed, grouped, and their gradients.

The layout follows torch on the CPU: channels-last if the input or the weight suggests it; in three
dimensions only where oneDNN takes the call. Callers add the batch dimension to an unbatched input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.cache import cached
from lostwax.ops.memory_format import reads_as_channels_last, suggests_channels_last
from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import (
    channels_last_strides,
    fail,
    is_met,
    is_one,
    is_zero,
    require,
    require_same_device,
    show,
)
from lostwax.ops.spelling import cpp_type, raise_not_implemented, require_same_dtype
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq
from lostwax.types import Sizes, TensorType, product

_SPATIAL = {1: ("width",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def _per_dim(values: Sequence[Size], ndim: int, name: str) -> Sequence[Size]:
    if len(values) == ndim:
        return values
    if len(values) != 1:
        fail(
            f"expected {name} to be a single integer value or a list of {ndim} values to match the "
            f"convolution dimensions, but got {name}={show(values)}"
        )
    return [values[0]] * ndim


class Geometry:
    """Stride, padding, dilation and the rest of one convolution, one value a spatial dimension."""

    __slots__ = ("dilation", "groups", "ndim", "output_padding", "padding", "stride", "transposed")

    def __init__(
        self,
        weight: TensorType,
        stride: Sequence[Size],
        padding: Sequence[Size],
        dilation: Sequence[Size],
        transposed: bool,
        output_padding: Sequence[Size],
        groups: Size,
    ) -> None:
        n = self.ndim = len(weight.size) - 2
        if n < 1:
            fail("weight should have at least three dimensions")
        self.stride = _per_dim(stride, n, "stride")
        self.padding = _per_dim(padding, n, "padding")
        self.dilation = _per_dim(dilation, n, "dilation")
        self.output_padding = _per_dim(output_padding, n, "output_padding")
        self.transposed = transposed
        self.groups = groups
        self._require_positive()

    def _require_positive(self) -> None:
        for p in self.padding:
            require(p >= 0, "negative padding is not supported")
        for p in self.output_padding:
            require(p >= 0, "negative output_padding is not supported")
        for s in self.stride:
            require(s >= 1, "non-positive stride is not supported")
        for d in self.dilation:
            if not is_met(d >= 1):
                fail(f"dilation should be greater than zero, but got {show(self.dilation)}")
        require(self.groups >= 1, "non-positive groups is not supported")

    def reach(self, weight: TensorType) -> list[Size]:
        """How far the dilated kernel spans, per spatial dimension."""
        return [d * (k - 1) + 1 for d, k in zip(self.dilation, weight.size[2:], strict=True)]


def _join(sizes: Sequence[Size]) -> str:
    return "(" + " x ".join(map(str, sizes)) + ")"


# -------------------------------------------------------------------------------------------- sizes


def _require_channels(x: TensorType, weight: TensorType, g: Geometry) -> None:
    k = len(weight.size)
    if len(x.size) != k:
        fail(
            f"Expected {k}-dimensional input for {k}-dimensional weight {show(weight.size)}, "
            "but got "
            f"{len(x.size)}-dimensional input of size {show(x.size)} instead"
        )
    if g.ndim > 3:
        fail("unsupported ConvNd parameters")
    if not is_met(weight.size[0] >= g.groups):
        fail(
            f"Given groups={g.groups}, expected weight to be at least {g.groups} at dimension 0, "
            f"but got weight of size {show(weight.size)} instead"
        )
    if not is_one(g.groups) and not is_met(eq(weight.size[0] % g.groups, 0)):
        fail(
            f"Given groups={g.groups}, expected weight to be divisible by {g.groups} at "
            f"dimension 0, but got weight of size [{show(weight.size)}] instead"
        )
    wanted = weight.size[0] if g.transposed else weight.size[1] * g.groups
    ok = eq(x.size[1], wanted)
    if ok is not True:
        given = "transposed=1" if g.transposed else f"groups={g.groups}"
        if not is_met(ok):
            fail(
                f"Given {given}, weight of size {show(weight.size)}, expected "
                f"input{show(x.size)} to "
                f"have {wanted} channels, but got {x.size[1]} channels instead"
            )


def _require_bias(bias: TensorType | None, channels: Size, weight: TensorType, g: Geometry) -> None:
    if bias is None:
        return
    ok = eq(bias.size[0], channels) if len(bias.size) == 1 else False
    if ok is not True:
        given = "transposed=1, weight" if g.transposed else "weight"
        if not is_met(ok):
            fail(
                f"Given {given} of size {show(weight.size)}, expected bias to be "
                "1-dimensional with "
                f"{channels} elements, but got bias of size {show(bias.size)} instead"
            )


def _require_filled(x: TensorType, weight: TensorType) -> None:
    for s in x.size[2:]:
        ok = s >= 1
        if ok is not True and not is_met(ok):
            fail(
                "Only zero batch or zero channel inputs are supported, "
                f"but got input shape: {show(x.size)}"
            )
    for k in weight.size[2:]:
        if not is_met(k >= 1):
            fail(f"kernel size should be greater than zero, but got {_join(weight.size[2:])}")


def _forward_sizes(x: TensorType, weight: TensorType, g: Geometry) -> list[Size]:
    padded = [s + 2 * p for s, p in zip(x.size[2:], g.padding, strict=True)]
    reach = g.reach(weight)
    for have, need in zip(padded, reach, strict=True):
        ok = have >= need
        if ok is not True and not is_met(ok):
            fail(
                f"Calculated padded input size per channel: {_join(padded)}. Kernel size: "
                f"{_join(reach)}. Kernel size can't be greater than actual input size"
            )
    return [(have - need) // s + 1 for have, need, s in zip(padded, reach, g.stride, strict=True)]


def _transposed_sizes(x: TensorType, weight: TensorType, g: Geometry) -> list[Size]:
    for extra, s, d in zip(g.output_padding, g.stride, g.dilation, strict=True):
        if not is_zero(extra):
            require((extra < s) | (extra < d), _output_padding_text(g))
    if not is_met(weight.size[1] >= 1):
        fail(f"non-empty 2D or 4D weight tensor expected, but got: {show(weight.size)}")
    reach = g.reach(weight)
    out = [
        (n - 1) * s - 2 * p + r + extra
        for n, s, p, r, extra in zip(
            x.size[2:], g.stride, g.padding, reach, g.output_padding, strict=True
        )
    ]
    for n in out:
        if not is_met(n >= 1):
            fail(
                f"Given input size per channel: {_join(x.size[2:])}. Calculated output size per "
                f"channel: {_join(out)}. Output size is too small"
            )
    return out


def _output_padding_text(g: Geometry) -> str:
    parts = [
        f"{name}_{side}: {value}"
        for name, values in (
            ("output_padding", g.output_padding),
            ("stride", g.stride),
            ("dilation", g.dilation),
        )
        for side, value in zip(_SPATIAL[g.ndim], values, strict=True)
    ]
    return "output padding must be smaller than either stride or dilation, but got " + " ".join(
        parts
    )


# ------------------------------------------------------------------------------------------ layouts


def _image_is_channels_last(x: TensorType) -> bool:
    """Does a 1-d signal, or its weight, suggest channels-last as an image of height 1?"""
    if x._contiguous and x.is_symbolic:
        return False
    (n, c, w), (sn, sc, sw) = x.size, x.stride
    return reads_as_channels_last((n, c, 1, w), (sn, sc, w * sw, sw))


def _wants_channels_last(x: TensorType, weight: TensorType, g: Geometry) -> bool:
    if g.ndim == 1:
        # torch makes a signal row-major first, lest a transposed one be taken for channels-last.
        return _image_is_channels_last(weight) or (x.is_contiguous and _image_is_channels_last(x))
    if not (suggests_channels_last(x) or suggests_channels_last(weight)):
        return False
    return g.ndim == 2 or _onednn_takes(x, weight, g)


def _onednn_takes(x: TensorType, weight: TensorType, g: Geometry) -> bool:
    """Does torch hand the call to oneDNN? Its own kernels keep small float32 work on few threads,
    and half precision for which this processor has no instructions."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return _onednn_has(x.dtype)
    if x.dtype is not torch.float32:
        return False
    worth = (
        any(not is_one(v) for v in (*g.stride, *g.dilation))
        or torch.get_num_threads() > 1
        or any(not decide(eq(k, 1)) for k in weight.size[-2:])
        or decide(x.size[0] >= 16)
    )
    if not worth:
        return False
    return (
        not is_one(g.groups)
        or all(decide(k > 3) for k in weight.size[-2:])
        or decide(x.size[0] > 1)
        or decide(product(x.size[:4]) > 20480)
    )


@cached(8)
def _onednn_has(dtype: torch.dtype) -> bool:
    """Does oneDNN compute in this half precision on this processor?"""
    mkldnn = torch.ops.mkldnn
    if dtype is torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    return bool(mkldnn._is_mkldnn_fp16_supported())


def _new_dense(x: TensorType, size: Sizes, channels_last: bool) -> TensorType:
    if not channels_last:
        return TensorType(size, x.dtype, x.device)
    if len(size) == 3:
        n, c, w = size
        sn, sc, _, sw = channels_last_strides((n, c, 1, w))
        return TensorType(size, x.dtype, x.device, (sn, sc, sw))
    return TensorType(size, x.dtype, x.device, channels_last_strides(size))


# -------------------------------------------------------------------------------------------- rules


def _convolve(
    x: TensorType, weight: TensorType, bias: TensorType | None, g: Geometry
) -> TensorType:
    _require_channels(x, weight, g)
    channels = weight.size[1] * g.groups if g.transposed else weight.size[0]
    _require_bias(bias, channels, weight, g)
    spatial = _transposed_sizes(x, weight, g) if g.transposed else _forward_sizes(x, weight, g)
    if not (is_zero(x.size[0]) or is_zero(x.size[1])):
        _require_filled(x, weight)
    if not g.transposed and decide(eq(weight.size[1], 0)):
        channels = 0  # so torch answers if there are no input channels, whatever the weight says
    require_same_dtype(x.dtype, weight.dtype)
    if bias is not None and bias.dtype is not x.dtype:
        names = cpp_type(x.dtype), cpp_type(bias.dtype)
        fail(f"Input type ({names[0]}) and bias type ({names[1]}) should be the same")
    if x.dtype.is_complex or x.dtype is torch.bool:
        raise_not_implemented("slow_conv2d_cpu", x.dtype)
    operands = (x, weight) if bias is None else (x, weight, bias)
    require_same_device(operands, "convolution")
    size = (x.size[0], channels, *spatial)
    return _new_dense(x, size, _wants_channels_last(x, weight, g))


@rule("convolution convolution_overrideable _convolution")
def convolution(
    input: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: list[Size],
    padding: list[Size],
    dilation: list[Size],
    transposed: bool,
    output_padding: list[Size],
    groups: Size,
    *_: object,
    **__: object,
) -> TensorType:
    g = Geometry(weight, stride, padding, dilation, transposed, output_padding, groups)
    return _convolve(input, weight, bias, g)


mark(Trait.ONE_FOR_ONE, "conv1d conv2d conv3d")


@rule("mkldnn_convolution")
def mkldnn_convolution(
    self: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    padding: list[Size],
    stride: list[Size],
    dilation: list[Size],
    groups: Size,
) -> TensorType:
    g = Geometry(weight, stride, padding, dilation, False, [0], groups)
    return _convolve(self, weight, bias, g)


@rule("convolution_backward")
def convolution_backward(
    grad_output: TensorType,
    input: TensorType,
    weight: TensorType,
    bias_sizes: list[Size] | None,
    stride: list[Size],
    padding: list[Size],
    dilation: list[Size],
    transposed: bool,
    output_padding: list[Size],
    groups: Size,
    output_mask: list[bool],
) -> tuple[TensorType | None, TensorType | None, TensorType | None]:
    g = Geometry(weight, stride, padding, dilation, transposed, output_padding, groups)
    channels_last = _wants_channels_last(input, weight, g)
    weight_gradient = _new_dense(weight, weight.size, channels_last)
    if (
        channels_last
        and weight.is_channels_last
        and weight.stride != weight_gradient.stride
        and not _onednn_takes(input, weight, g)
    ):
        # A 1 × 1 kernel is in both formats: torch's kernels keep its strides, oneDNN's do not.
        weight_gradient = weight.replace(offset=0)
    channels = (grad_output.size[1],) if bias_sizes is None else tuple(bias_sizes)
    return (
        _new_dense(input, input.size, channels_last) if output_mask[0] else None,
        weight_gradient if output_mask[1] else None,
        grad_output.fresh(channels) if output_mask[2] else None,
    )


@rule("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: TensorType, input: TensorType, weight: TensorType, *given: Any, **named: Any
) -> Any:
    return convolution_backward(grad_output, input, weight, None, *given, **named)


@rule("conv_tbc")
def conv_tbc(self: TensorType, weight: TensorType, bias: TensorType, pad: int = 0) -> TensorType:
    """The input is time × batch × channels."""
    if len(self.size) != 3:
        fail("Input must have 3 dims: time, batch, in_channel")
    if len(weight.size) != 3:
        fail("Weight tensor must have 3 dims: kernel_width, in_channels, out_channels.")
    if len(bias.size) != 1:
        fail("Bias must be 1-D")
    time, batch, channels = self.size
    require(
        eq(channels, weight.size[1]),
        "Input dim 2 (input channels) is not == dim 1 in the weight tensor",
    )
    require(
        eq(weight.size[2], bias.size[0]), "Bias size must equal dim 2 in weight (output channels)."
    )
    return self.fresh((time + 2 * pad - weight.size[0] + 1, batch, weight.size[2]))
