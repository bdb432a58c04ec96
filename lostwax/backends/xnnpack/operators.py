"""The table of all operators that XNNPACK takes: one entry each, in the file of its family."""

from __future__ import annotations

from lostwax.backends.xnnpack.convolution import CONVOLUTIONS
from lostwax.backends.xnnpack.elementwise import ELEMENTWISE
from lostwax.backends.xnnpack.entry import OperatorEntry
from lostwax.backends.xnnpack.images import IMAGES
from lostwax.backends.xnnpack.normalization import NORMALIZATION
from lostwax.backends.xnnpack.parts import PARTS
from lostwax.backends.xnnpack.products import PRODUCTS
from lostwax.backends.xnnpack.quantized.conversions import CONVERSIONS
from lostwax.backends.xnnpack.shapes import SHAPES

OPERATORS: dict[str, OperatorEntry] = {
    **ELEMENTWISE,
    **PRODUCTS,
    **SHAPES,
    **PARTS,
    **CONVOLUTIONS,
    **IMAGES,
    **NORMALIZATION,
    **CONVERSIONS,
}
MOVING = frozenset(("aten::view_copy", *SHAPES, *PARTS))
"""Those that compute nothing, and only move elements."""
