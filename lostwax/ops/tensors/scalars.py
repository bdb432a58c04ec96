"""Operators that return numbers, or nothing: those that ask for sizes, and assertions.

An assertion on a tensor's metadata is decided here. Must not decide one on data: the program does
when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import Scalar, fail, is_met, show, wrap_dim
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Size, eq
from lostwax.types import TensorType


@rule("sym_size.int")
def sym_size(self: TensorType, dim: int) -> Size:
    return self.size[wrap_dim(dim, self.ndim)]


@rule("sym_stride.int")
def sym_stride(self: TensorType, dim: int) -> Size:
    return self.stride[wrap_dim(dim, self.ndim)]


@rule("sym_numel")
def sym_numel(self: TensorType) -> Size:
    return self.numel()


@rule("sym_storage_offset")
def sym_storage_offset(self: TensorType) -> Size:
    return self.offset


mark(Trait.READS_NUMBER, "_local_scalar_dense", "item")
mark(Trait.READS_TYPE, "sym_size.int", "sym_numel")
mark(Trait.READS_LAYOUT, "sym_stride.int", "sym_storage_offset")


@rule("_assert_async", "_assert_async.msg")
def assert_async(self: TensorType, assert_msg: str = "") -> None:
    """It asserts a condition on data, which the type does not know."""


@rule("_assert_scalar")
def assert_scalar(self: Scalar, assert_msg: str) -> None:
    if isinstance(self, (bool, BoolExpr)) and not is_met(self):
        fail(assert_msg)


@rule("_assert_tensor_metadata")
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
    "_assert_async _assert_async.msg _assert_scalar _assert_tensor_metadata",
    "sym_constrain_range sym_constrain_range_for_size",
)
