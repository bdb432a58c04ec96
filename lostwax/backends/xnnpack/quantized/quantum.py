"""What integers stand for: `Quantum`, read from calls that quantize, and that take it back.

XNNPACK's activations are of int8. Those of uint8 are the same integers, 128 less, inside of a part.
Must not write payloads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import read_arguments
from lostwax.backends.xnnpack.payload import FLOATS, Clamp, ElementForm
from lostwax.backends.xnnpack.schema import INT8
from lostwax.fake.tensor import FakeTensor

LOW, HIGH = -128, 127
SMALLEST = 2.0**-126
"""The smallest scale that XNNPACK takes: denormal ones are refused."""


@dataclass(frozen=True)
class Quantum:
    """Integers from `low` to `high`, as int8; each stands for (itself - zero_point) · scale."""

    scale: float
    zero_point: int
    low: int = LOW
    high: int = HIGH

    @property
    def form(self) -> ElementForm:
        fields = (("scale", self.scale), ("zero_point", self.zero_point))
        return ElementForm(INT8, "PerTensorQuant", fields)

    def limit(self, clamp: Clamp | None) -> Clamp | None:
        """The clamp, within what the integers can stand for, if that is less than int8 can."""
        if (self.low, self.high) == (LOW, HIGH):
            return clamp
        least, most = ((n - self.zero_point) * self.scale for n in (self.low, self.high))
        low, high = clamp or (-math.inf, math.inf)
        return max(low, least), min(high, most)

    def is_same(self, other: Quantum) -> bool:
        """Do the same integers stand for the same numbers?"""
        return (self.scale, self.zero_point) == (other.scale, other.zero_point)


def get_name(node: object) -> str:
    """The name of the operator that a node calls; "" if it calls none."""
    return str(getattr(getattr(node, "target", None), "name", str)())


QUANTIZE, DEQUANTIZE = (
    f"quantized_decomposed::{verb}_per_tensor" for verb in ("quantize", "dequantize")
)


def is_quantize(node: object) -> bool:
    return get_name(node) == QUANTIZE


def is_dequantize(node: object) -> bool:
    return get_name(node) == DEQUANTIZE


def explain_quantum(node: Node) -> str:
    """Why XNNPACK has no such integers as a call makes or reads; "" if it has them."""
    given = read_arguments(node)
    if given.dtype not in _SHIFTS:
        return f"XNNPACK quantizes to 8 bits, not to {str(given.dtype).removeprefix('torch.')}"
    if not SMALLEST <= given.scale < math.inf:
        return f"XNNPACK takes no scale of {given.scale}"
    shift = _SHIFTS[given.dtype]
    if not LOW <= given.zero_point - shift <= HIGH:
        return f"its zero point {given.zero_point} is no {str(given.dtype).removeprefix('torch.')}"
    if getattr(given, "out_dtype", None) not in (None, torch.float32):
        return f"XNNPACK computes in float32, not {given.out_dtype}"
    return ""


_SHIFTS = {torch.int8: 0, torch.uint8: 128}


def read_quantum(node: Node) -> Quantum:
    """What the integers mean that a call makes or reads; it is one that XNNPACK takes."""
    given = read_arguments(node)
    shift = _SHIFTS[given.dtype]
    places = (given.zero_point, given.quant_min, given.quant_max)
    return Quantum(float(given.scale), *(int(n) - shift for n in places))


def find_form(node: Node) -> ElementForm:
    """How XNNPACK has the value of a node."""
    if is_quantize(node):
        return read_quantum(node).form
    value = node.meta.get("val")
    if isinstance(value, FakeTensor) and value.dtype is torch.int8:
        reader: Any = next(iter(node.users))
        return read_quantum(reader).form
    return FLOATS
