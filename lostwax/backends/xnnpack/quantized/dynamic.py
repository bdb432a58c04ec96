"""Activations that are quantized as the program runs: by scales that are chosen from their values.

XNNPACK chooses a scale for each row, for layers alone. A program that has one for the whole tensor
is computed no less exactly so. Must not know how layers are written.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import read_arguments, size_of
from lostwax.backends.xnnpack.quantized.quantum import get_name

_OWN = "quantized_decomposed::"
CHOOSE = (
    f"{_OWN}choose_qparams.tensor",
    f"{_OWN}choose_qparams_per_token_asymmetric",
    "torchao::choose_qparams_affine",
)
QUANTIZE_ROWS = (
    f"{_OWN}quantize_per_tensor.tensor",
    f"{_OWN}quantize_per_token",
    "torchao::quantize_affine",
)
DEQUANTIZE_ROWS = (
    f"{_OWN}dequantize_per_tensor.tensor",
    f"{_OWN}dequantize_per_token",
    "torchao::dequantize_affine",
)
ALL_OF_8_BITS = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def find_chooser(node: Any) -> Node | None:
    """The call that chooses the scales by which a call quantizes, or takes that back."""
    given = read_arguments(node)
    scale = getattr(given, "scale", None) or getattr(given, "scales", None)
    source: Any = scale.args[0] if isinstance(scale, Node) and scale.target is getitem else None
    return source if get_name(source) in CHOOSE else None


def find_floats(node: Any) -> Node | None:
    """What a call takes back to floats was quantized from, if it was as XNNPACK quantizes: each row
    by a scale and a zero point of its own, or all by one, to all of eight bits."""
    if get_name(node) not in DEQUANTIZE_ROWS or get_name(node.args[0]) not in QUANTIZE_ROWS:
        return None
    quantize: Node = node.args[0]
    chooser = find_chooser(node)
    if chooser is None or chooser is not find_chooser(quantize):
        return None
    calls = [read_arguments(n) for n in (chooser, quantize, node)]
    if _list_scales(calls[1]) != _list_scales(calls[2]) or calls[0].input is not calls[1].input:
        return None
    if not all(map(_has_all_bits, calls)) or not all(_is_by_rows(c, node) for c in calls):
        return None
    if getattr(calls[0], "mapping_type", "ASYMMETRIC") != "ASYMMETRIC":
        return None
    if getattr(calls[2], "output_dtype", torch.float32) not in (torch.float32, FLOAT_NUMBER):
        return None
    found: Node = calls[1].input
    return found


FLOAT_NUMBER = 6
"""What a schema has for `torch.float32`, as a default."""


def _list_scales(given: Any) -> list[Any]:
    names = ("scale", "scales", "zero_point", "zero_points")
    return [getattr(given, name) for name in names if hasattr(given, name)]


def _has_all_bits(given: Any) -> bool:
    names = ("dtype", "output_dtype", "input_dtype", "target_dtype")
    dtype = next(d for n in names if (d := getattr(given, n, None)) in ALL_OF_8_BITS)
    limits = (getattr(given, "quant_min", None), getattr(given, "quant_max", None))
    return limits in (ALL_OF_8_BITS[dtype], (None, None))


def _is_by_rows(given: Any, node: Node) -> bool:
    """Do blocks, if a call has such, have one row each?"""
    size = size_of(node)
    block = getattr(given, "block_size", None)
    return block is None or list(block) == [1] * (len(size) - 1) + [size[-1]]
