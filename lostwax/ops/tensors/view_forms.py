"""The other forms of views: in place (they change a tensor's metadata) and `*_copy` (new tensors).

Both are made from the rules in `views.py`, by tables. Must not repeat those rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.ops.registry import Rule, refuse_operators, rule
from lostwax.ops.shapes import fail, format_strides, is_met, require, show, wrap_dim
from lostwax.ops.tensors import view_parts, views
from lostwax.ops.tensors.view_parts import (
    slice_,
    split,
    split_with_sizes,
    wrap_position,
)
from lostwax.ops.tensors.views import (
    as_strided,
    infer_size,
    make_view,
    squeeze,
    squeeze_dim,
    squeeze_dims,
    transpose,
    transpose_matrix,
    unsqueeze,
)
from lostwax.ops.traits import OperatorRefusal
from lostwax.sym import Size
from lostwax.types import TensorType

# -------------------------------------------------------------------------------- metadata in place

rule("t_", metadata=True)(transpose_matrix)
rule("transpose_", metadata=True)(transpose)
rule("squeeze_", metadata=True)(squeeze)
rule("squeeze_.dim", metadata=True)(squeeze_dim)
rule("squeeze_.dims", metadata=True)(squeeze_dims)
rule("unsqueeze_", metadata=True)(unsqueeze)
rule("as_strided_", metadata=True)(as_strided)


def resize(
    self: TensorType,
    size: Sequence[Size],
    *,
    memory_format: torch.memory_format | None = None,
) -> TensorType:
    new = tuple(size)
    for s in new:
        if not is_met(s >= 0):
            fail(f"Trying to resize to a negative dimension {s}: {show(size)}")
    if memory_format in (None, torch.preserve_format):
        return self if new == self.size else make_view(self, new, None)
    assert memory_format is not None
    return make_view(self, new, format_strides(new, memory_format))


rule("resize_", metadata=True)(resize)


@rule("_resize_output_", metadata=True)
def resize_output_(self: TensorType, size: Sequence[Size], device: torch.device) -> TensorType:
    return resize(self, size)


@rule("resize_as_", metadata=True)
def resize_as_(
    self: TensorType,
    the_template: TensorType,
    *,
    memory_format: torch.memory_format | None = None,
) -> TensorType:
    if memory_format is torch.preserve_format:
        return make_view(self, the_template.size, the_template.stride)
    return resize(self, the_template.size, memory_format=memory_format)


@rule("set_.source_Tensor", metadata=True)
def set_to(self: TensorType, source: TensorType) -> TensorType:
    return source


@rule("set_", metadata=True)
def set_to_nothing(self: TensorType) -> TensorType:
    return make_view(self, (0,), (1,), 0)


@rule("set_.source_Storage_storage_offset", "set_.source_Tensor_storage_offset", metadata=True)
def set_part(
    self: TensorType,
    source: Any,
    storage_offset: Size,
    size: Sequence[Size],
    stride: Sequence[Size] = (),
) -> TensorType:
    return make_view(self, tuple(size), tuple(stride) if stride else None, storage_offset)


refuse_operators(
    OperatorRefusal(
        "{name} cannot be captured",
        why="it changes which memory a tensor has, and a functional program has no memory",
        instead="make a new tensor of the size you need (torch.empty, x.reshape, F.pad)",
    ),
    "resize_ resize_as_ set_ set_.source_Tensor set_.source_Tensor_storage_offset",
    "set_.source_Storage_storage_offset",
)


# ------------------------------------------------------------------------------------------- copies


def _copy_rule(view_rule: Rule) -> Rule:
    """The rule of `x_copy`: new row-major tensors of the sizes that the view rule gives."""

    def copy(*args: Any, **kwargs: Any) -> Any:
        out = view_rule(*args, **kwargs)
        return [t.fresh() for t in out] if isinstance(out, list) else out.fresh()

    return copy


_COPIES: dict[str, Rule] = {
    "_conj_copy": views.identity,
    "_neg_view_copy": views.identity,
    "_reshape_alias_copy": views.reshape_alias,
    "alias_copy": views.identity,
    "as_strided_copy": as_strided,
    "detach_copy": views.identity,
    "diagonal_copy": view_parts.diagonal,
    "expand_copy": views.expand,
    "permute_copy": views.permute,
    "select_copy.int": view_parts.select,
    "slice_copy.Tensor": slice_,
    "split_copy.Tensor": split,
    "split_with_sizes_copy": split_with_sizes,
    "squeeze_copy": squeeze,
    "squeeze_copy.dim": squeeze_dim,
    "squeeze_copy.dims": squeeze_dims,
    "t_copy": transpose_matrix,
    "transpose_copy.int": transpose,
    "unbind_copy.int": view_parts.unbind,
    "unfold_copy": view_parts.unfold,
    "unsqueeze_copy": unsqueeze,
    "view_as_complex_copy": views.view_as_complex,
    "view_as_real_copy": views.view_as_real,
    "view_copy.dtype": views.view_dtype,
}
for _name, _view in _COPIES.items():
    rule(_name)(_copy_rule(_view))


@rule("view_copy", "_reshape_copy")
def view_copy(self: TensorType, size: Sequence[Size]) -> TensorType:
    """Unlike `view`, it takes every layout."""
    return self.fresh(infer_size(size, self.numel()))


@rule("narrow_copy")
def narrow_copy(self: TensorType, dim: int, start: Size, length: Size) -> TensorType:
    if not self.size:
        fail("narrow() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, len(self.size))
    size = self.size[d]
    require(length >= 0, "narrow(): length must be non-negative.")
    if not is_met((-size <= start) & (start <= size)):
        fail(
            f"start out of range (expected to be in range of [-{size}, {size}], but got {start})",
            IndexError,
        )
    first = wrap_position(start, size)
    if not is_met(first <= size - length):
        fail(f"start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return self.fresh((*self.size[:d], length, *self.size[d + 1 :]))
