"""What stands for a tensor while a model is written, and the dtypes of the format.

Must not write nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from lostwax.sym import Size
from lostwax.types import TensorType

DTYPES: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.bool: ir.DataType.BOOL,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
    torch.float8_e8m0fnu: ir.DataType.FLOAT8E8M0,
}
"""Complex dtypes are left out: no runtime computes them."""


@dataclass(eq=False, slots=True)
class OnnxTensor:
    """A value of the model. What a translation makes on the way has a dtype; what stands for a
    value of the program has its type, too."""

    value: ir.Value
    dtype: torch.dtype
    type: TensorType | None = None
    constant: torch.Tensor | None = None
    """Its data, if the model holds it."""
    source: Any = None
    """The node of the program that it stands for."""

    @property
    def size(self) -> tuple[Size, ...]:
        """Ints, and expressions of sizes that vary; of what stands for a value of the program."""
        assert self.type is not None, f"the size of {self.value.name} is not known here"
        return self.type.size

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.size)


def make_shape(size: tuple[Size, ...]) -> ir.Shape:
    """Sizes as the format has them: numbers, and names or formulas."""
    return ir.Shape([n if isinstance(n, int) else str(n) for n in size])
