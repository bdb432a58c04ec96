"""Rounding numbers as if they were stored in few bits (`fake_quantize`). The second result is the
mask of numbers that were in range: only these have a gradient.

Must not know of quantized tensors, which cannot be fake.
"""

from __future__ import annotations

import torch

from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import elementwise
from lostwax.ops.traits import Trait
from lostwax.types import TensorType

Rounded = tuple[TensorType, TensorType]


def _round(x: TensorType) -> Rounded:
    return elementwise((x,), x.dtype), elementwise((x,), torch.bool)


@rule("fake_quantize_per_tensor_affine_cachemask")
def per_tensor(self: TensorType, *_: object, **__: object) -> Rounded:
    return _round(self)


@rule("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_computed(self: TensorType, *_: object, **__: object) -> Rounded:
    return _round(self)


@rule("fake_quantize_per_channel_affine_cachemask")
def per_channel(self: TensorType, *_: object, **__: object) -> Rounded:
    return _round(self)


mark(Trait.SIZES_STATE, "_fused_moving_avg_obs_fq_helper")
