"""Rounding numbers as if they were stored in few bits (`fake_quantize`). The second result is the
mask of numbers that were in range: only these have a gradient. And torchao's operators, which make
integers of floats and floats of them, block by block.

Must not know of quantized tensors, which cannot be fake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import elementwise, fail, require
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq
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


# ------------------------------------------------------------------------------- torchao's


@rule("torchao::choose_qparams_affine")
def choose_scales(
    input: TensorType,
    mapping_type: str,
    block_size: Sequence[Size],
    target_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> Rounded:
    counts = [s if p == 1 else s // p for s, p in zip(*_split(input, block_size), strict=True)]
    if not keepdim:
        pairs = zip(counts, input.size, block_size, strict=True)
        counts = [c for c, s, p in pairs if p == 1 or not _is_whole(s, p)]
        if all(p == 1 for p in block_size):
            counts = []  # `amin` over no dimensions is over all of them
    scale = TensorType(tuple(counts), scale_dtype or input.dtype, input.device)
    zero = zero_point_dtype or (torch.int32 if mapping_type == "ASYMMETRIC" else input.dtype)
    return scale, TensorType(scale.size, zero, input.device)


@rule("torchao::quantize_affine")
def quantize_blocks(
    input: TensorType,
    block_size: Sequence[Size],
    scale: TensorType,
    zero_point: TensorType | None,
    output_dtype: torch.dtype,
    *_: object,
    **__: object,
) -> TensorType:
    return _of_blocks(input, block_size, output_dtype)


@rule("torchao::dequantize_affine")
def dequantize_blocks(
    input: TensorType,
    block_size: Sequence[Size],
    scale: TensorType,
    zero_point: TensorType | None,
    input_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: torch.dtype = torch.float32,
) -> TensorType:
    return _of_blocks(input, block_size, output_dtype)


def _split(x: TensorType, block: Sequence[Size]) -> tuple[Sequence[Size], Sequence[Size]]:
    """The sizes of a tensor and of its blocks, which divide them."""
    if len(block) != len(x.size):
        fail(f"Got input dim:{len(x.size)}, block_size: {list(block)}", AssertionError)
    for size, part in zip(x.size, block, strict=True):
        if part != 1 and not _is_whole(size, part):
            require(eq(size % part, 0), f"{size} is not divisible by {part}", AssertionError)
    return x.size, block


def _is_whole(size: Size, part: Size) -> bool:
    return size is part or decide(eq(size, part))


def _of_blocks(x: TensorType, block: Sequence[Size], dtype: torch.dtype) -> TensorType:
    """What is computed block by block; where these are whole rows, the layout stays."""
    sizes = zip(*_split(x, block), strict=True)
    if all(part == 1 or _is_whole(size, part) for size, part in sizes):
        return elementwise((x,), dtype)
    return TensorType(x.size, dtype, x.device)
