"""Pooling and interpolation by core operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition("upsample_nearest1d")
def upsample_nearest1d(self: Tensor, output_size: Any, scales: float | None = None) -> Any:
    """A signal is treated as an image of height 1, but where torch asks for a signal's factor and
    not for an image's."""
    old, (new,) = self.shape[-1], output_size
    if scales is not None and _find_own_factor(old, new, scales) != scales:
        places = aten.arange.start_step(0, new, 1, dtype=torch.float32, device=self.device)
        chosen = aten._to_copy.default(aten.mul.Scalar(places, 1 / scales), dtype=torch.int64)
        return aten.index.Tensor(self, [None, None, aten.clamp.default(chosen, None, old - 1)])
    factors = () if scales is None else (1.0, scales)
    rows = aten.unsqueeze.default(self, 2)
    return aten.squeeze.dim(upsample_nearest2d(rows, [1, *output_size], *factors), 2)


@decomposition("upsample_linear1d")
def upsample_linear1d(
    self: Tensor, output_size: Any, align_corners: bool, scales: float | None = None
) -> Any:
    factors = () if scales is None else (1.0, scales)
    rows = aten.unsqueeze.default(self, 2)
    made = upsample_bilinear2d(rows, [1, *output_size], align_corners, *factors)
    return aten.squeeze.dim(made, 2)


@decomposition("upsample_nearest2d")
def upsample_nearest2d(
    self: Tensor, output_size: Any, scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    size, factors = _choose_size_or_factors(self, output_size, scales_h, scales_w)
    if factors is not None:
        sizes = zip(self.shape[-2:], output_size, factors, strict=True)
        factors = [_find_own_factor(*each) for each in sizes]
    return aten.upsample_nearest2d.vec(self, size, factors)


def _find_own_factor(old: Any, new: Any, factor: float) -> float:
    """The factor by which pixels are chosen. Where a size stays or doubles, torch does not ask for
    the one that was given; kernels of others would."""
    if old.__class__ is not int or new.__class__ is not int:
        return factor
    return next((times for times in (1.0, 2.0) if new == old * times), factor)


@decomposition("upsample_bilinear2d")
def upsample_bilinear2d(
    self: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    size, factors = _choose_size_or_factors(self, output_size, scales_h, scales_w)
    return aten.upsample_bilinear2d.vec(self, size, align_corners, factors)


def _choose_size_or_factors(x: Tensor, size: Any, down: Any, across: Any) -> tuple[Any, Any]:
    """The core operators take either the new size or the factors, and compute the other."""
    if down is None and across is None:
        return size, None
    if down.__class__ is not float or across.__class__ is not float:
        raise NotImplementedError("a factor that is not known")
    for n, factor, wanted in zip(x.shape[-2:], (down, across), size, strict=True):
        found = n * int(factor) if factor.is_integer() else math.trunc(n * factor)
        if found != wanted:  # for symbolic sizes: if it is not proven, the operator stays whole
            raise NotImplementedError("a size that the factors do not give")
    return None, [down, across]


# ------------------------------------------------------------------------------------------ pooling


@decomposition("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(self: Tensor, output_size: Any) -> Any:
    """Each result is the largest of a window. Windows differ in size, so the shorter ones repeat
    their last element."""
    n = len(output_size)
    sizes = self.shape[-n:]
    if any(s.__class__ is not int or s == 0 for s in (*sizes, *output_size)):
        raise NotImplementedError("windows of unknown sizes")
    lead = self.dim() - n
    windows = [_windows(s, o, self.device) for s, o in zip(sizes, output_size, strict=True)]
    x, places = self, None
    for d, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        x = aten.index.Tensor(x, [None] * (lead + 2 * d) + [window])
        shape = [1] * (2 * n)
        shape[2 * d : 2 * d + 2] = window.shape
        here = aten.view.default(window, shape)
        places = here if places is None else aten.add.Tensor(aten.mul.Scalar(places, size), here)
    order = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    x = _gather_windows(x, lead, order, output_size)
    values, chosen = aten.max.dim(x, -1)
    flat = aten.expand.default(_gather_windows(places, 0, order, output_size), x.shape)
    picked = aten.gather.default(flat, -1, aten.unsqueeze.default(chosen, -1))
    return values, aten.squeeze.dim(picked, -1)


def _windows(size: int, count: int, device: Any) -> Any:
    """The positions in the window of each result, as a [count, longest] tensor."""
    longest = max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
    results = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=device)
    first = aten.div.Scalar_mode(aten.mul.Scalar(results, size), count, rounding_mode="floor")
    after = aten.add.Scalar(aten.mul.Scalar(results, size), size + count - 1)
    last = aten.sub.Scalar(aten.div.Scalar_mode(after, count, rounding_mode="floor"), 1)
    steps = aten.arange.start_step(0, longest, 1, dtype=torch.int64, device=device)
    places = aten.add.Tensor(aten.unsqueeze.default(first, 1), steps)
    return aten.minimum.default(places, aten.unsqueeze.default(last, 1))


def _gather_windows(x: Any, lead: int, order: Any, output_size: Any) -> Any:
    """From sizes [.., out, window, out, window] to [.., out, out, window · window]."""
    turned = aten.permute.default(x, [*range(lead), *(lead + d for d in order)])
    rows = aten.clone.default(turned, memory_format=torch.contiguous_format)
    return aten.view.default(rows, [*x.shape[:lead], *output_size, -1])
