"""Type rules of pooling: max, average, adaptive, fractional, and max-unpooling, in two and three
dimensions.

torch composes one-dimensional pooling of these. With `ceil_mode` the last window must start inside
the input or its left padding: the number of windows is a minimum of two quotients, which is exact
for symbolic sizes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from lostwax.ops.memory_format import fresh_like
from lostwax.ops.registry import rule
from lostwax.ops.shapes import (
    channels_last_strides,
    fail,
    is_met,
    require,
    require_same_sizes,
    show,
    wrap_dim,
)
from lostwax.ops.spelling import raise_not_implemented, require_floating, scalar_type
from lostwax.sym import Size, eq, minimum
from lostwax.types import Sizes, TensorType

Ints = Sequence[int]
_WORD = {2: "two", 3: "three"}
_SIDES = {2: "HW", 3: "THW"}

# -------------------------------------------------------------------------- windows and their sizes


class Windows:
    """Kernel, stride, padding and dilation of one pooling, one value a spatial dimension."""

    __slots__ = ("ceil_mode", "dilation", "kernel", "ndim", "padding", "stride")

    def __init__(
        self,
        name: str,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints = (1,),
        ceil_mode: bool = False,
    ) -> None:
        n = self.ndim = 3 if name.endswith("3d") else 2
        either = "" if name == "avg_pool3d" else "either "
        tail = f"a single int, or a tuple of {_WORD[n]} ints"
        self.kernel = _per_dim(kernel_size, n, f"{name}: kernel_size must {either}be {tail}")
        self.stride = (
            _per_dim(stride, n, f"{name}: stride must {either}be omitted, {tail}")
            if stride
            else self.kernel
        )
        self.padding = _per_dim(padding, n, f"{name}: padding must {either}be {tail}")
        self.dilation = _per_dim(dilation, n, f"{name}: dilation must be either {tail}")
        self.ceil_mode = ceil_mode
        self._check()

    def _check(self) -> None:
        if 0 in self.stride:
            fail("stride should not be zero")
        for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True):
            if p < 0:
                fail(f"pad must be non-negative, but got pad: {p}")
            if d > 0 and p > ((k - 1) * d + 1) // 2:
                fail(
                    "pad should be at most half of effective kernel size, but got "
                    f"pad={p}, kernel_size={k} and dilation={d}"
                )
        for what, prefix, values in (
            ("kernel size", "k", self.kernel),
            ("stride", "d", self.stride),
            ("dilation", "dilation", self.dilation),
        ):
            if min(values) < 1:
                text = " ".join(
                    f"{prefix}{side}: {v}"
                    for side, v in zip(_SIDES[self.ndim], values, strict=True)
                )
                fail(f"{what} should be greater than zero, but got {text}")

    def out(self, size: Sizes) -> Sizes:
        """The number of windows along each spatial dimension."""
        return tuple(
            _count(n, k, s, p, d, self.ceil_mode)
            for n, k, s, p, d in zip(
                size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )


def _per_dim(values: Ints, n: int, text: str) -> tuple[int, ...]:
    if len(values) == n:
        return tuple(values)
    if len(values) != 1:
        fail(text)
    return (values[0],) * n


def _count(n: Size, k: int, s: int, p: int, d: int, ceil_mode: bool) -> Size:
    room = n + (2 * p - d * (k - 1) - 1)
    if not ceil_mode:
        return room // s + 1
    windows = (room + (s - 1)) // s + 1
    if s + p - 1 <= d * (k - 1):  # then the last window starts inside anyway
        return windows
    return minimum(windows, (n + (p - 1)) // s + 1)


def _pooled_size(x: TensorType, w: Windows) -> Sizes:
    spatial = x.size[-w.ndim :]
    out = w.out(spatial)
    for n in out:
        ok = n >= 1
        if ok is not True:
            c = x.size[-w.ndim - 1]
            if not is_met(ok):
                fail(
                    f"Given input size: ({_join((c, *spatial))}). "
                    f"Calculated output size: ({_join((c, *out))}). Output size is too small"
                )
    return (*x.size[: -w.ndim], *out)


def _join(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def _require_nonempty_image(x: TensorType) -> None:
    """Only the (optional) batch may be empty: not channels, height or width."""
    if len(x.size) not in (3, 4):
        fail("non-empty 3D or 4D (batch mode) tensor expected for input")
    for s in x.size[-3:]:
        ok = s >= 1
        if ok is not True and not is_met(ok):
            fail(
                "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size "
                f"for input, but got:{show(x.size)}"
            )


def _require_nonempty_volume(x: TensorType, function: str) -> None:
    if len(x.size) not in (4, 5):
        fail("non-empty 4D or 5D (batch mode) tensor expected for input")
    for s in x.size[-4:]:
        if not is_met(s >= 1):
            fail(
                f"{function}(): Expected input's non-batch dimensions to have positive length, but "
                "input "
                f"has a shape of {show(x.size)} and non-batch dimension 0 has length zero!"
            )


def _fresh_volume_like(x: TensorType, size: Sizes) -> TensorType:
    """A new volume, channels-last if `x` is. An unbatched volume counts as a batch of one."""
    if len(x.size) == 5:
        return fresh_like(x, size)
    batch = TensorType((1, *x.size), x.dtype, x.device, (x.numel(), *x.stride))
    if x.is_contiguous or not batch.is_channels_last:
        return x.fresh(size)
    return TensorType(size, x.dtype, x.device, channels_last_strides((1, *size))[1:])


# ---------------------------------------------------------------------------------- max and average


@rule("max_pool2d_with_indices")
def max_pool2d_with_indices(
    self: TensorType,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> tuple[TensorType, TensorType]:
    w = Windows("max_pool2d", kernel_size, stride, padding, dilation, ceil_mode)
    _require_nonempty_image(self)
    _require_ordered(self, "max_pool2d")
    size = _pooled_size(self, w)
    out = fresh_like(self, size)
    return out, out.replace(dtype=torch.int64)


@rule("max_pool3d_with_indices")
def max_pool3d_with_indices(
    self: TensorType,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> tuple[TensorType, TensorType]:
    w = Windows("max_pool3d", kernel_size, stride, padding, dilation, ceil_mode)
    _require_nonempty_volume(self, "max_pool3d_with_indices_out_cpu_template")
    _require_ordered(self, "max_pool3d")
    out = _fresh_volume_like(self, _pooled_size(self, w))
    return out, out.replace(dtype=torch.int64)


def _require_ordered(x: TensorType, kernel: str) -> None:
    if x.dtype is torch.bool or x.dtype.is_complex:
        raise_not_implemented(kernel, x.dtype)


@rule("avg_pool2d")
def avg_pool2d(
    self: TensorType,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorType:
    w = Windows("avg_pool2d", kernel_size, stride, padding, (1,), ceil_mode)
    if divisor_override == 0:
        fail("divisor must be not zero")
    wrap_dim(-3, len(self.size))
    _require_nonempty_image(self)
    _require_summable(self, "avg_pool2d")
    return fresh_like(self, _pooled_size(self, w))


@rule("avg_pool3d")
def avg_pool3d(
    self: TensorType,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorType:
    w = Windows("avg_pool3d", kernel_size, stride, padding, (1,), ceil_mode)
    _require_nonempty_volume(self, "avg_pool3d")
    if divisor_override == 0:
        fail("divisor must be not zero")
    _require_image_covers_kernel(self, w)
    _require_summable(self, "avg_pool3d_out_frame")
    return self.fresh(_pooled_size(self, w))


def _require_image_covers_kernel(x: TensorType, w: Windows) -> None:
    t, h, v = x.size[-3:]
    kt, kh, kv = w.kernel
    for n, k in zip((t, h, v), w.kernel, strict=True):
        if not is_met(n >= k):
            fail(
                f"input image (T: {t} H: {h} W: {v}) smaller than kernel size "
                f"(kT: {kt} kH: {kh} kW: {kv})"
            )


def _require_summable(x: TensorType, kernel: str) -> None:
    if not (x.dtype.is_floating_point or x.dtype is torch.int64):
        raise_not_implemented(kernel, x.dtype)


# ----------------------------------------------------------------------------------------- adaptive


def _adaptive_size(x: TensorType, output_size: Sequence[Size], name: str, first: int) -> Sizes:
    """The size of an adaptive pooling whose dimensions from `first` (of a batch) on must not be "
    "empty."""
    n = 3 if name.endswith("3d") else 2
    if len(output_size) != n:
        avg = name.startswith("adaptive_avg")
        fail(
            f"{name}: output_size must be {n}"
            if avg
            else f"{name}(): internal error: output_size.size() must be {n}"
        )
    if len(x.size) not in (n + 1, n + 2):
        colon = "" if name.startswith("adaptive_avg") else ":"
        fail(f"{name}(): Expected {n + 1}D or {n + 2}D tensor, but got{colon} {show(x.size)}")
    for d in range(first - (n + 2), 0):
        ok = x.size[d] >= 1
        if ok is not True and not is_met(ok):
            fail(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, but "
                "input "
                f"has sizes {show(x.size)} with dimension {len(x.size) + d} being empty"
            )
    size = (*x.size[:-n], *output_size)
    for s in output_size:
        if not is_met(s >= 0):
            fail(f"Trying to create tensor with negative dimension {s}: {show(size)}")
    return size


@rule("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: TensorType, output_size: Sequence[Size]) -> TensorType:
    size = _adaptive_size(self, output_size, "adaptive_avg_pool2d", 2)
    require_floating(self.dtype, "adaptive_avg_pool2d")
    return fresh_like(self, size)


@rule("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(self: TensorType, output_size: Sequence[Size]) -> TensorType:
    size = _adaptive_size(self, output_size, "adaptive_avg_pool3d", 2)
    require_floating(self.dtype, "adaptive_avg_pool3d_cpu")
    return self.fresh(size)


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(self: TensorType, output_size: Ints) -> tuple[TensorType, TensorType]:
    size = _adaptive_size(self, output_size, "adaptive_max_pool2d", 1)
    require_floating(self.dtype, "adaptive_max_pool2d")
    out = fresh_like(self, size)
    return out, out.replace(dtype=torch.int64)


@rule("adaptive_max_pool3d")
def adaptive_max_pool3d(self: TensorType, output_size: Ints) -> tuple[TensorType, TensorType]:
    size = _adaptive_size(self, output_size, "adaptive_max_pool3d", 1)
    require_floating(self.dtype, "adaptive_max_pool3d_cpu")
    return self.fresh(size), self.fresh(size, torch.int64)


# --------------------------------------------------------------------------------------- fractional


def _fractional(
    n: int, x: TensorType, kernel_size: Ints, output_size: Ints, samples: TensorType
) -> tuple[TensorType, TensorType]:
    name = "fractional_max_pool2d" if n == 2 else "fractional_max_pool3d_out"
    word = name.removesuffix("_out")
    tail = f"must either be a single Int or tuple of {_WORD[n]} Ints"
    kernel = _per_dim(kernel_size, n, f"{word}: kernel_size {tail}")
    wanted = _per_dim(output_size, n, f"{word}: output_size {tail}")
    if len(x.size) not in (n + 1, n + 2):
        fail(f"{name}(): Expected {n + 1}D or {n + 2}D tensor, but got: {show(x.size)}")
    for d in range(-n - 1, 0):
        if not is_met(x.size[d] >= 1):
            fail(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, "
                f"but got{show(x.size)} with dimension {len(x.size) + d} being empty."
            )
    for side, have, k, out in zip(
        ("time", "height", "width")[-n:], x.size[-n:], kernel, wanted, strict=True
    ):
        if not is_met(out + k - 1 <= have):
            fail(f"{name}(): pool {side} {k} too large relative to input {side} {have}")
    _require_samples(x, samples, n)
    size = (*x.size[:-n], *wanted)
    return x.fresh(size), x.fresh(size, torch.int64)


def _require_samples(x: TensorType, samples: TensorType, n: int) -> None:
    if samples.dtype is not x.dtype:
        fail("Expect _random_samples to have the same dtype as input")
    if len(samples.size) != 3:
        fail(f"Expect _random_samples to have 3 dimensions, got {len(samples.size)}")
    batch, channels, each = samples.size
    if len(x.size) == n + 2:
        require(
            batch >= x.size[0],
            "Expect _random_samples.size(0) no less then input batch size.",
        )
    require(
        eq(channels, x.size[-n - 1]),
        "Expect _random_samples.size(1) equals to input channel size.",
    )
    if not is_met(eq(each, n)):
        fail(f"Expect _random_samples.size(2) equals to {n}; got {each}.")


rule("fractional_max_pool2d")(partial(_fractional, 2))
rule("fractional_max_pool3d")(partial(_fractional, 3))


# ---------------------------------------------------------------------------------------- unpooling


def _unpool_size(x: TensorType, indices: TensorType, output_size: Sequence[Size], n: int) -> Sizes:
    sides = "(height, width)" if n == 2 else "(depth, height, width)"
    if len(output_size) != n:
        fail(
            f"There should be exactly {_WORD[n]} elements {sides} in output_size, "
            f"but got {len(output_size)} elements."
        )
    if len(x.size) not in (n + 1, n + 2):
        fail(
            f"Input to max_unpooling{n}d should be a {n + 1}d or {n + 2}d Tensor, "
            f"but got a tensor with {len(x.size)} dimensions."
        )
    if indices.dtype is not torch.int64:
        but = f" but got: {scalar_type(indices.dtype)}" if n == 2 else ""
        fail(f"elements in indices should be type int64{but}")
    _require_same_size(x, indices)
    for d in range(-n - 1, 0):
        if not is_met(x.size[d] >= 1):
            fail(
                f"max_unpooling{n}d_forward_out_cpu(): Expected input to have non-zero size for "
                f"non-batch dimensions, but got {show(x.size)} with dimension {len(x.size) + d} "
                "being empty."
            )
    return (*x.size[:-n], *output_size)


def _require_same_size(x: TensorType, indices: TensorType) -> None:
    text = (
        f"Expected shape of indices to be same as that of the input tensor ({show(x.size)}) "
        f"but got indices tensor with shape: {show(indices.size)}"
    )
    require_same_sizes(x.size, indices.size, text)


@rule("max_unpool2d")
def max_unpool2d(self: TensorType, indices: TensorType, output_size: Sequence[Size]) -> TensorType:
    size = _unpool_size(self, indices, output_size, 2)
    return self.fresh(size) if self.device.type == "cuda" else fresh_like(self, size)


@rule("max_unpool3d")
def max_unpool3d(
    self: TensorType,
    indices: TensorType,
    output_size: Sequence[Size],
    stride: Ints,
    padding: Ints,
) -> TensorType:
    size = _unpool_size(self, indices, output_size, 3)
    for name, values in (("stride", stride), ("padding", padding)):
        if len(values) != 3:
            fail(
                "There should be exactly three elements (depth, height, width) in "
                f"{name}, but got: {len(values)} elements."
            )
    if any(s <= 0 for s in stride):
        fail(f"strides should be greater than zero, but got stride: {show(stride)}")
    return self.fresh(size)


# ---------------------------------------------------------------------------------------- gradients


@rule(
    "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
)
def image_gradient(
    grad_output: TensorType, self: TensorType, *_: object, **__: object
) -> TensorType:
    """The gradient of a 2-d pooling has the input's size and memory format."""
    return fresh_like(self, self.size)


@rule("max_pool3d_with_indices_backward")
def max_pool3d_gradient(
    grad_output: TensorType, self: TensorType, *_: object, **__: object
) -> TensorType:
    return _fresh_volume_like(self, self.size)


@rule(
    "avg_pool3d_backward _adaptive_avg_pool3d_backward adaptive_max_pool3d_backward",
    "fractional_max_pool2d_backward fractional_max_pool3d_backward",
)
def row_major_gradient(
    grad_output: TensorType, self: TensorType, *_: object, **__: object
) -> TensorType:
    return self.fresh()
