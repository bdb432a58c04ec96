"""Images of other sizes, and samples at places of a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


def _resize(on: OnnxWriter, self: OnnxTensor, scales: list[Any], **options: Any) -> OnnxTensor:
    """To the result's size. Where factors are given, places are computed by them, and not by the
    sizes, which are rounded."""
    spatial = self.rank - 2
    if scales and all(isinstance(n, (int, float)) for n in scales):
        factors = on.constant([1.0, 1.0, *map(_round_up, scales)], torch.float32)
        return on.Resize(self, None, factors, **options)
    axes = list(range(2, self.rank))
    if options.get("antialias"):  # onnxruntime takes other dims for these
        return on.Resize(self, None, None, on.shape(on.out.size), **options)
    sizes = on.shape(on.out.size[-spatial:])
    return on.Resize(self, None, None, sizes, axes=axes, **options)


def _round_up(scale: float) -> float:
    """A factor in single precision, not below itself: a size times it is rounded down."""
    near = torch.tensor(scale, dtype=torch.float32)
    above = near if near.item() >= scale else torch.nextafter(near, torch.tensor(torch.inf))
    return float(above)


def _nearest(exact: bool) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: OnnxTensor, output_size: Any, *scales: Any) -> OnnxTensor:
        return _resize(
            on,
            self,
            _read_scales(scales),
            mode="nearest",
            coordinate_transformation_mode="half_pixel" if exact else "asymmetric",
            nearest_mode="round_prefer_ceil" if exact else "floor",
        )

    return write


def _read_scales(scales: Any) -> list[Any]:
    """`.vec` has a list of them, others one argument each."""
    if len(scales) == 1 and (scales[0] is None or isinstance(scales[0], list)):
        return scales[0] or []
    return list(scales)


for _n in (1, 2, 3):
    translation(f"upsample_nearest{_n}d", f"upsample_nearest{_n}d.vec")(_nearest(exact=False))
    translation(f"_upsample_nearest_exact{_n}d", f"_upsample_nearest_exact{_n}d.vec")(
        _nearest(exact=True)
    )


def _smooth(name: str, **options: Any) -> None:
    def write(
        on: OnnxWriter, self: OnnxTensor, output_size: Any, align_corners: bool, *scales: Any
    ) -> OnnxTensor:
        factors = _read_scales(scales)
        is_other = any(
            isinstance(n, int) and factor is not None and int(n * factor) != new
            for n, factor, new in zip(self.size[2:], factors, on.out.size[2:], strict=False)
        )
        if is_other or (align_corners and options.get("antialias")):
            return _multiply(on, name, self, align_corners, factors)
        where = "align_corners" if align_corners else "half_pixel"
        factors = [] if align_corners else factors
        return _resize(on, self, factors, coordinate_transformation_mode=where, **options)

    translation(name, f"{name}.vec")(write)


def _multiply(
    on: OnnxWriter, name: str, self: OnnxTensor, align_corners: bool, scales: list[Any]
) -> OnnxTensor:
    """As products with matrices, which the operator itself makes of identities: for what `Resize`
    does not do."""
    sizes = [*self.size[2:], *on.out.size[2:]]
    if len(sizes) != 4 or not all(isinstance(n, int) for n in sizes):
        raise NotWritten("it aligns corners and smooths, of sizes that vary", "give fixed sizes")
    height, width, *new = sizes
    operator = getattr(torch.ops.aten, name).default
    made = []
    for old, wanted, scale in zip((height, width), new, scales or [None, None], strict=True):
        unit = torch.eye(old)[None, None]
        made.append(operator(unit, [wanted, old], align_corners, scale, None)[0, 0])
    down, right = (each.to(self.dtype) for each in made)
    return on.MatMul(on.MatMul(on.constant(down), self), on.constant(right.t()))


for _name in ("linear1d", "bilinear2d", "trilinear3d"):
    _smooth(f"upsample_{_name}", mode="linear")
_smooth("upsample_bicubic2d", mode="cubic", cubic_coeff_a=-0.75)
_smooth("_upsample_bilinear2d_aa", mode="linear", antialias=1, exclude_outside=1)
_smooth("_upsample_bicubic2d_aa", mode="cubic", antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)


@translation("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def grid_sampler(
    on: OnnxWriter,
    input: OnnxTensor,
    grid: OnnxTensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> OnnxTensor:
    modes = ("linear", "nearest", "cubic") if on.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return on.GridSample(
        input,
        grid,
        mode=modes[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=int(align_corners),
    )
