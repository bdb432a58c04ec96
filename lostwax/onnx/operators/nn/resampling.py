"""Images of other sizes, and samples at places of a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.table import translation
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


for _n, _linear in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    translation(f"upsample_nearest{_n}d", f"upsample_nearest{_n}d.vec")(_nearest(exact=False))
    translation(f"_upsample_nearest_exact{_n}d", f"_upsample_nearest_exact{_n}d.vec")(
        _nearest(exact=True)
    )


def _smooth(**options: Any) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter, self: OnnxTensor, output_size: Any, align_corners: bool, *scales: Any
    ) -> OnnxTensor:
        where = "align_corners" if align_corners else "half_pixel"
        factors = [] if align_corners else _read_scales(scales)
        return _resize(on, self, factors, coordinate_transformation_mode=where, **options)

    return write


for _name in ("linear1d", "bilinear2d", "trilinear3d"):
    translation(f"upsample_{_name}", f"upsample_{_name}.vec")(_smooth(mode="linear"))
translation("upsample_bicubic2d", "upsample_bicubic2d.vec")(
    _smooth(mode="cubic", cubic_coeff_a=-0.75)
)
translation("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.vec")(
    _smooth(mode="linear", antialias=1, exclude_outside=1)
)
translation("_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.vec")(
    _smooth(mode="cubic", antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)
)


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
