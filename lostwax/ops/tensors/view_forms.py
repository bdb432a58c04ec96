"""The other forms of views: in place (they change a tensor's metadata) and `*_copy` (new tensors).

Both follow from the rules in `views.py`, by table. Must not repeat what a view shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from lostwax.ops.registry import Rule, aten, refuse, rule
from lostwax.ops.shapes import fail, format_strides, met, require, shown, wrap_dim
from lostwax.ops.tensors import view_parts, views
from lostwax.ops.tensors.view_parts import (
    sliced,
    split_pieces,
    split_sizes_pieces,
    wrapped_position,
)
from lostwax.ops.tensors.views import (
    inferred_size,
    squeezed,
    squeezed_dim,
    squeezed_dims,
    strided,
    swapped,
    transposed,
    unsqueezed,
    viewed,
)
from lostwax.ops.traits import Refusal
from lostwax.sym import Size
from lostwax.types import TensorType

# -------------------------------------------------------------------------------- metadata in place

rule(aten.t_.default, metadata=True)(transposed)
rule(aten.transpose_.default, metadata=True)(swapped)
rule(aten.squeeze_.default, metadata=True)(squeezed)
rule(aten.squeeze_.dim, metadata=True)(squeezed_dim)
rule(aten.squeeze_.dims, metadata=True)(squeezed_dims)
rule(aten.unsqueeze_.default, metadata=True)(unsqueezed)
rule(aten.as_strided_.default, metadata=True)(strided)


def resized(
    self: TensorType,
    size: Sequence[Size],
    *,
    memory_format: torch.memory_format | None = None,
) -> TensorType:
    new = tuple(size)
    for s in new:
        if not met(s >= 0):
            fail(f"Trying to resize to a negative dimension {s}: {shown(size)}")
    if memory_format in (None, torch.preserve_format):
        return self if new == self.size else viewed(self, new, None)
    assert memory_format is not None
    return viewed(self, new, format_strides(new, memory_format))


rule(aten.resize_.default, metadata=True)(resized)


@rule(aten._resize_output_.default, metadata=True)
def resize_output_(self: TensorType, size: Sequence[Size], device: torch.device) -> TensorType:
    return resized(self, size)


@rule(aten.resize_as_.default, metadata=True)
def resize_as_(
    self: TensorType,
    the_template: TensorType,
    *,
    memory_format: torch.memory_format | None = None,
) -> TensorType:
    if memory_format is torch.preserve_format:
        return viewed(self, the_template.size, the_template.stride)
    return resized(self, the_template.size, memory_format=memory_format)


@rule(aten.set_.source_Tensor, metadata=True)
def set_to(self: TensorType, source: TensorType) -> TensorType:
    return source


@rule(aten.set_.default, metadata=True)
def set_to_nothing(self: TensorType) -> TensorType:
    return viewed(self, (0,), (1,), 0)


@rule(
    aten.set_.source_Storage_storage_offset, aten.set_.source_Tensor_storage_offset, metadata=True
)
def set_part(
    self: TensorType,
    source: Any,
    storage_offset: Size,
    size: Sequence[Size],
    stride: Sequence[Size] = (),
) -> TensorType:
    return viewed(self, tuple(size), tuple(stride) if stride else None, storage_offset)


refuse(
    Refusal(
        "{name} cannot be captured",
        why="it changes which memory a tensor has, and a functional program has no memory",
        instead="make a new tensor of the size you need (torch.empty, x.reshape, F.pad)",
    ),
    *(aten.resize_.default, aten.resize_as_.default),
    # Not `source_Storage`: C++ calls that where Python reads a storage, and fakes refuse it.
    *(aten.set_.default, aten.set_.source_Tensor, aten.set_.source_Tensor_storage_offset),
    aten.set_.source_Storage_storage_offset,
)


# ------------------------------------------------------------------------------------------- copies


def _copied(view_rule: Rule) -> Rule:
    """The rule of `x_copy`: what the view shows, as new row-major tensors."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        out = view_rule(*args, **kwargs)
        return [t.fresh() for t in out] if isinstance(out, list) else out.fresh()

    return copied


_COPIES: dict[OpOverload, Rule] = {
    aten._conj_copy.default: views.identity,
    aten._neg_view_copy.default: views.identity,
    aten._reshape_alias_copy.default: views.reshape_alias,
    aten.alias_copy.default: views.identity,
    aten.as_strided_copy.default: strided,
    aten.detach_copy.default: views.identity,
    aten.diagonal_copy.default: view_parts.diagonal,
    aten.expand_copy.default: views.expand,
    aten.permute_copy.default: views.permute,
    aten.select_copy.int: view_parts.select,
    aten.slice_copy.Tensor: sliced,
    aten.split_copy.Tensor: split_pieces,
    aten.split_with_sizes_copy.default: split_sizes_pieces,
    aten.squeeze_copy.default: squeezed,
    aten.squeeze_copy.dim: squeezed_dim,
    aten.squeeze_copy.dims: squeezed_dims,
    aten.t_copy.default: transposed,
    aten.transpose_copy.int: swapped,
    aten.unbind_copy.int: view_parts.unbind,
    aten.unfold_copy.default: view_parts.unfold,
    aten.unsqueeze_copy.default: unsqueezed,
    aten.view_as_complex_copy.default: views.view_as_complex,
    aten.view_as_real_copy.default: views.view_as_real,
    aten.view_copy.dtype: views.view_dtype,
}
for _overload, _view in _COPIES.items():
    rule(_overload)(_copied(_view))


@rule(aten.view_copy.default, aten._reshape_copy.default)
def view_copy(self: TensorType, size: Sequence[Size]) -> TensorType:
    """Unlike `view` this exists for every layout."""
    return self.fresh(inferred_size(size, self.numel()))


@rule(aten.narrow_copy.default)
def narrow_copy(self: TensorType, dim: int, start: Size, length: Size) -> TensorType:
    if not self.size:
        fail("narrow() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, len(self.size))
    size = self.size[d]
    require(length >= 0, "narrow(): length must be non-negative.")
    if not met((-size <= start) & (start <= size)):
        fail(
            f"start out of range (expected to be in range of [-{size}, {size}], but got {start})",
            IndexError,
        )
    first = wrapped_position(start, size)
    if not met(first <= size - length):
        fail(f"start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return self.fresh((*self.size[:d], length, *self.size[d + 1 :]))
