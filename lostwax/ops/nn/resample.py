"""Type rules of resampling and rearranging images: upsample, grid_sampler, affine grids,
im2col/col2im, shuffles.

The `.vec` overloads of upsampling take a size or scale factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax import torch_version
from lostwax.ops.memory_format import fresh_like
from lostwax.ops.registry import rule
from lostwax.ops.shapes import fail, is_met, require, show
from lostwax.ops.spelling import raise_not_implemented, require_same_dtype
from lostwax.sym import Size, eq
from lostwax.sym.numbers.real import real
from lostwax.types import Sizes, TensorType

Ints = Sequence[int]

# --------------------------------------------------------------------------------------- upsampling

_SIDES = {1: "W", 2: "HW", 3: "DHW"}


def _require_upsampling(x: Sizes, output_size: Sequence[Size], n: int) -> None:
    if len(output_size) != n:
        fail(f"It is expected output_size equals to {n}, but got size {len(output_size)}")
    if len(x) != n + 2:
        fail(f"It is expected input_size equals to {n + 2}, but got size {len(x)}")
    for s in (*x[2:], *output_size):
        ok = s >= 1
        if ok is not True:
            require(ok, _sizes_text(x[2:], output_size, n))


def _sizes_text(have: Sequence[Size], want: Sequence[Size], n: int) -> str:
    def spell(sizes: Sequence[Size]) -> str:
        return ", ".join(f"{d}: {s}" for d, s in zip(_SIDES[n], sizes, strict=True))

    link = "and output" if n == 1 else "output"
    return (
        "Input and output sizes should be greater than 0, but got "
        f"input ({spell(have)}) {link} ({spell(want)})"
    )


def _upsample(x: TensorType, output_size: Sequence[Size], kernel: str, n: int) -> TensorType:
    _require_upsampling(x.size, output_size, n)
    ok = x.size[1] >= 1
    if ok is not True and not is_met(ok):
        fail(f"Non-empty {n + 2}D data tensor expected but got a tensor with sizes {show(x.size)}")
    if not (x.dtype.is_floating_point or x.dtype is torch.uint8):
        raise_not_implemented(f"{kernel}_channels_last" if n == 2 else kernel, x.dtype)
    return fresh_like(x, (*x.size[:2], *output_size))


def _upsample_rule(kernel: str, n: int) -> Any:
    def upsample(
        self: TensorType, output_size: Sequence[Size], *_: object, **__: object
    ) -> TensorType:
        return _upsample(self, output_size, kernel, n)

    return upsample


def _scaled_rule(kernel: str, n: int, aligned: bool) -> Any:
    """The rule of `.vec`: it takes the output size, or factors that multiply the input's sizes,
    rounded down."""

    def upsample(
        input: TensorType, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None
    ) -> TensorType:
        return _upsample(input, output_sizes(input.size, output_size, scale_factors), kernel, n)

    def aligned_upsample(
        input: TensorType,
        output_size: Sequence[Size] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> TensorType:
        return upsample(input, output_size, scale_factors)

    return aligned_upsample if aligned else upsample


def output_sizes(
    size: Sizes, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None
) -> Sequence[Size]:
    """The spatial sizes of the result: those given, or those of the input times the factors."""
    if output_size is None and scale_factors is not None:
        return [_scale_size(s, f) for s, f in zip(size[2:], scale_factors, strict=True)]
    if output_size is None or scale_factors is not None:
        fail("Must specify exactly one of output_size and scale_factors")
    return output_size


_EXACT = 1 << 20
"""A product with a factor of at most this denominator is not rounded in double precision: 1.5, but
not 1.7: products with a symbolic size are then computed in floats."""


def _scale_size(size: Size, factor: float) -> Size:
    if isinstance(size, int):
        return int(size * factor)
    up, down = float(factor).as_integer_ratio()
    if down > _EXACT:
        product = real(size) * float(factor)
        return int(product) if isinstance(product, float) else product.trunc()
    return size * up // down


RESAMPLERS = {
    # name: (spatial dimensions, takes align_corners)
    "upsample_nearest1d": (1, False),
    "upsample_nearest2d": (2, False),
    "upsample_nearest3d": (3, False),
    "_upsample_nearest_exact1d": (1, False),
    "_upsample_nearest_exact2d": (2, False),
    "_upsample_nearest_exact3d": (3, False),
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "upsample_bicubic2d": (2, True),
    "_upsample_bilinear2d_aa": (2, True),
    "_upsample_bicubic2d_aa": (2, True),
    "_upsample_lanczos2d_aa": (2, True),
}
# Kernels that write the gradient row-major whatever the layout of the incoming one.
_ROW_MAJOR_GRADIENT = {
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
}


def _gradient_rule(n: int, row_major: bool) -> Any:
    def gradient(
        grad_output: TensorType,
        output_size: Sequence[Size],
        input_size: Sequence[Size],
        *_: object,
        **__: object,
    ) -> TensorType:
        size = tuple(input_size)
        _require_upsampling(size, output_size, n)
        _require_gradient(grad_output, (*size[:2], *output_size), n)
        return grad_output.fresh(size) if row_major else fresh_like(grad_output, size)

    return gradient


def _require_gradient(grad: TensorType, size: Sizes, n: int) -> None:
    rank = len(grad.size)
    for d, want in enumerate(size):
        if n == 1:
            text = (
                f"Expected a tensor of dimension 3 and tensor.size[{d}] == {want} "
                f"but got: dimension {rank} and tensor.size[{d}] = "
            )
        else:
            text = (
                "Expected grad_output to have the same shape as output; "
                f"output.size({d}) = {want} but got grad_output.size({d}) = "
            )
        if rank != n + 2:
            fail(
                f"Expected grad_output to be a tensor of dimension {n + 2} but got: dimension "
                f"{rank}"
            )
        if not is_met(eq(grad.size[d], want)):
            fail(f"{text}{grad.size[d]}")


def _register_resamplers() -> None:
    for name, (n, aligned) in RESAMPLERS.items():
        rule(name)(_upsample_rule(name, n))
        rule(f"{name}.vec")(_scaled_rule(name, n, aligned))
        rule(f"{name}_backward")(_gradient_rule(n, name in _ROW_MAJOR_GRADIENT))


_register_resamplers()


# ------------------------------------------------------------------------------------ grid sampling


def _sample_grid(x: TensorType, grid: TensorType, interpolation_mode: int, n: int) -> TensorType:
    got = f"but got input with sizes {show(x.size)} and grid with sizes {show(grid.size)}"
    if not is_met(eq(x.size[0], grid.size[0])):
        fail(f"grid_sampler(): expected grid and input to have same batch size, {got}")
    if not is_met(eq(grid.size[-1], len(x.size) - 2)):
        fail(
            f"grid_sampler(): expected grid to have size {len(x.size) - 2} in last dimension, "
            f"but got grid with sizes {show(grid.size)}"
        )
    for d in range(2, len(x.size)):
        if not is_met(x.size[d] >= 1):
            fail(
                "grid_sampler(): expected input to have non-empty spatial dimensions, but "
                "input has "
                f"sizes {show(x.size)} with dimension {d} being empty"
            )
    if len(x.size) != n + 2 or len(grid.size) != n + 2:
        fail(
            f"grid_sampler(): expected {n + 2}D input and grid with same number of dimensions, "
            f"{got}"
        )
    if n == 3 and interpolation_mode == 2 and not torch_version.GRID_SAMPLER_3D_IS_BICUBIC:
        fail("grid_sampler(): bicubic interpolation only supports 4D input")
    require_same_dtype(x.dtype, grid.dtype)
    return x.fresh((x.size[0], x.size[1], *grid.size[1:-1]))


@rule("grid_sampler_2d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler_2d(
    input: TensorType, grid: TensorType, interpolation_mode: int, *_: object, **__: object
) -> TensorType:
    return _sample_grid(input, grid, interpolation_mode, 2)


@rule("grid_sampler_3d")
def grid_sampler_3d(
    input: TensorType, grid: TensorType, interpolation_mode: int, *_: object, **__: object
) -> TensorType:
    return _sample_grid(input, grid, interpolation_mode, 3)


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: TensorType,
    input: TensorType,
    grid: TensorType,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[TensorType | None, TensorType]:
    return (input.fresh() if output_mask[0] else None), grid.fresh()


@rule("affine_grid_generator")
def affine_grid_generator(
    theta: TensorType, size: Sequence[Size], align_corners: bool
) -> TensorType:
    if len(size) not in (4, 5):
        fail("AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.")
    n = len(size) - 2
    for have, want in ((theta.size[0], size[0]), (theta.size[2], n + 1)):
        if not is_met(eq(have, want)):
            fail(
                "Expected size for first two dimensions of batch2 tensor to be: "
                f"{show((size[0], n + 1))} but got: {show((theta.size[0], theta.size[2]))}."
            )
    return theta.fresh((size[0], *size[2:], n))


# ----------------------------------------------------------------------------------- im2col, col2im


def _require_pairs(**pairs: Sequence[Size]) -> None:
    for name, values in pairs.items():
        if len(values) != 2:
            fail(f"It is expected {name} equals to 2, but got size {len(values)}")


def _require_blocks(kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> None:
    for what, name, values, low, kind in (
        ("kernel size", "kernel", kernel, 1, "greater than zero"),
        ("dilation", "dilation", dilation, 1, "greater than zero"),
        ("padding", "pad", padding, 0, "non-negative"),
        ("stride", "stride", stride, 1, "greater than zero"),
    ):
        if min(values) < low:
            fail(
                f"{what} should be {kind}, but got "
                f"{name}_height: {values[0]} {name}_width: {values[1]}"
            )


def _blocks(
    size: Sequence[Size], kernel: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> list[Size]:
    return [
        (n + (2 * p - d * (k - 1) - 1)) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]


def _pair(values: Sequence[Size]) -> str:
    return f"({values[0]}, {values[1]})"


@rule("im2col")
def im2col(
    self: TensorType, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> TensorType:
    _require_pairs(kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride)
    _require_blocks(kernel_size, dilation, padding, stride)
    if len(self.size) not in (3, 4) or not _is_filled(
        self.size[1:] if len(self.size) == 4 else self.size
    ):
        fail(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other "
            f"non-zero dimensions for input, but got: {show(self.size)}"
        )
    if not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype is torch.bool):
        raise_not_implemented("im2col_out_cpu", self.dtype)
    blocks = _blocks(self.size[-2:], kernel_size, dilation, padding, stride)
    for n in blocks:
        if not is_met(n >= 1):
            fail(
                f"Given input with spatial size {_pair(self.size[-2:])}, "
                f"kernel_size={_pair(kernel_size)}, "
                f"dilation={_pair(dilation)}, padding={_pair(padding)}, calculated shape of the "
                "array of "
                f"sliding blocks as {_pair(blocks)}, but its components must be at least one."
            )
    channels = self.size[-3] * (kernel_size[0] * kernel_size[1])
    return self.fresh((*self.size[:-3], channels, blocks[0] * blocks[1]))


def _is_filled(size: Sizes) -> bool:
    return all(is_met(s >= 1) for s in size)


@rule("col2im")
def col2im(
    self: TensorType,
    output_size: Sequence[Size],
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> TensorType:
    _require_pairs(
        output_size=output_size,
        kernel_size=kernel_size,
        dilation=dilation,
        padding=padding,
        stride=stride,
    )
    _require_blocks(kernel_size, dilation, padding, stride)
    if len(self.size) not in (2, 3) or not _is_filled(self.size[-2:]):
        fail(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and "
            f"non-zero dimensions for input, but got: {show(self.size)}"
        )
    if not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype is torch.bool):
        raise_not_implemented("col2im_out_cpu", self.dtype)
    window = kernel_size[0] * kernel_size[1]
    rows, columns = self.size[-2:]
    if not is_met(eq(rows % window, 0)):
        fail(
            "Expected size of input's dimension 1 to be divisible by the product of "
            "kernel_size, but "
            "got "
            f"input.size(1)={rows} and kernel_size={_pair(kernel_size)}."
        )
    h, w = _blocks(output_size, kernel_size, dilation, padding, stride)
    if not is_met(eq(h * w, columns)):
        fail(
            f"Given output_size={_pair(output_size)}, kernel_size={_pair(kernel_size)}, "
            f"dilation={_pair(dilation)}, padding={_pair(padding)}, stride={_pair(stride)}, "
            "expected "
            "size "
            f"of input's dimension 2 to match the calculated number of sliding blocks {h} * {w} = "
            f"{h * w}, "
            f"but got input.size(2)={columns}."
        )
    return self.fresh((*self.size[:-2], rows // window, *output_size))


@rule("unfold_backward")
def unfold_backward(
    grad_in: TensorType, input_sizes: Sequence[Size], dim: int, size: int, step: int
) -> TensorType:
    return grad_in.fresh(tuple(input_sizes))
