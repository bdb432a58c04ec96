"""Operators that return numbers, or nothing: those that ask for sizes, and assertions.

An assertion on a tensor's metadata is decided here. Must not decide one on data: the program does
when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.ops.registry import aten, mark, rule
from lostwax.ops.shapes import Scalar, fail, is_met, show, wrap_dim
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Size, eq
from lostwax.types import TensorType


@rule(aten.sym_size.int)
def sym_size(self: TensorType, dim: int) -> Size:
    return self.size[wrap_dim(dim, self.ndim)]


@rule(aten.sym_stride.int)
def sym_stride(self: TensorType, dim: int) -> Size:
    return self.stride[wrap_dim(dim, self.ndim)]


@rule(aten.sym_numel.default)
def sym_numel(self: TensorType) -> Size:
    return self.numel()


@rule(aten.sym_storage_offset.default)
def sym_storage_offset(self: TensorType) -> Size:
    return self.offset


mark(Trait.READS_NUMBER, aten._local_scalar_dense.default, aten.item.default)
mark(Trait.READS_TYPE, aten.sym_size.int, aten.sym_numel.default)
mark(Trait.READS_LAYOUT, aten.sym_stride.int, aten.sym_storage_offset.default)


@rule(aten._assert_async.default, aten._assert_async.msg)
def assert_async(self: TensorType, assert_msg: str = "") -> None:
    """It asserts a condition on data, which the type does not know."""


@rule(aten._assert_scalar.default)
def assert_scalar(self: Scalar, assert_msg: str) -> None:
    if isinstance(self, (bool, BoolExpr)) and not is_met(self):
        fail(assert_msg)


@rule(aten._assert_tensor_metadata.default)
def assert_tensor_metadata(
    a: TensorType,
    size: Sequence[Size] | None = None,
    stride: Sequence[Size] | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    for name, have, want in (("sizes", a.size, size), ("strides", a.stride, stride)):
        if want is None:
            continue
        if len(have) != len(want) or not all(
            is_met(eq(x, y)) for x, y in zip(have, want, strict=True)
        ):
            fail(f"Tensor {name} mismatch! Expected: {show(want)}, Got: {show(have)}")
    for name, got, wanted in (("dtype", a.dtype, dtype), ("device", a.device, device)):
        if wanted is not None and got != wanted:
            fail(f"Tensor {name} mismatch! Expected: {wanted}, Got: {got}")


mark(
    Trait.ASSERTS,
    *(aten._assert_async.default, aten._assert_async.msg, aten._assert_scalar.default),
    *(aten._assert_tensor_metadata.default, aten.sym_constrain_range.default),
    aten.sym_constrain_range_for_size.default,
)
