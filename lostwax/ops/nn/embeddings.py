"""Rows of a table at positions held in tensors: embeddings, bags of them, and their gradients.

The positions are data: nothing here asks whether they are in range. Must not know of views.
"""

from __future__ import annotations

import torch

from lostwax.ops.elementwise import new_like
from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import fail, is_same, require, require_same_device
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Size
from lostwax.types import TensorType

_INDEX = (torch.int64, torch.int32)


def _check_embedding_indices(indices: TensorType, op: str) -> None:
    if indices.dtype not in _INDEX:
        fail(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got torch.{scalar_type(indices.dtype)}Tensor instead "
            f"(while checking arguments for {op})"
        )


@rule("embedding")
def embedding(weight: TensorType, indices: TensorType, *_: object, **__: object) -> TensorType:
    if len(weight.size) != 2:
        fail("'weight' must be 2-D")
    if indices.dtype not in _INDEX:
        _check_embedding_indices(indices, "embedding")
    if indices.device is not weight.device:
        require_same_device((weight, indices), "embedding")
    return TensorType((*indices.size, weight.size[1]), weight.dtype, weight.device)


mark(Trait.ROW_MAJOR, "embedding")


@rule("embedding_renorm")
def embedding_renorm(self: TensorType, indices: TensorType, *_: object, **__: object) -> TensorType:
    _check_embedding_indices(indices, "embedding_renorm_")
    return new_like(self)


@rule("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: TensorType, indices: TensorType, num_weights: Size, *_: object, **__: object
) -> TensorType:
    _check_embedding_indices(indices, "embedding_backward")
    return grad_output.fresh((num_weights, grad_output.size[-1]))


_BAG_SUM, _BAG_MAX = 0, 2
_FAST_BAG = (torch.float32, torch.float16, torch.bfloat16)


@rule("_embedding_bag")
def embedding_bag(
    weight: TensorType,
    indices: TensorType,
    offsets: TensorType,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: TensorType | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    """The four results: bags, bag of each index, size of each bag, position of each maximum."""
    if len(weight.size) != 2:
        fail(f"weight has to be a 2D Tensor, but got Tensor of dimension {len(weight.size)}")
    for name, t in (("indices", indices), ("offsets", offsets)):
        if len(t.size) != 1:
            fail(f"{name} has to be a 1D Tensor, but got Tensor of dimension {len(t.size)}")
        _check_embedding_indices(t, "embedding_bag")
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    bags = offsets.size[0]
    if include_last_offset:
        require(bags >= 1, "include_last_offset: number of offset should be at least 1")
        bags = bags - 1
    # The fast kernel for sums does not compute the bag of each index.
    fast = weight.dtype in _FAST_BAG and is_same(weight.stride[1], 1) and padding_idx < 0
    known_bags = 0 if mode == _BAG_SUM and fast else indices.size[0]
    return (
        weight.fresh((bags, weight.size[1])),
        indices.fresh((known_bags,), dtype),
        indices.fresh((bags,), dtype),
        indices.fresh((bags, weight.size[1]) if mode == _BAG_MAX else (bags,), dtype),
    )


@rule("_embedding_bag_forward_only")
def embedding_bag_forward_only(
    weight: TensorType,
    indices: TensorType,
    offsets: TensorType,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    *more: object,
    **named: object,
) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    given = (weight, indices, offsets, scale_grad_by_freq, mode, *more)
    out, bag_of, size, maxima = embedding_bag(*given, **named)
    if mode == _BAG_SUM:  # nobody needs the positions, and eager does not shorten them
        size = maxima = size.fresh(offsets.size)
    return out, bag_of, size, maxima


mark(Trait.FORWARD_ONLY, "_embedding_bag_forward_only")


@rule("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: TensorType,
    indices: TensorType,
    offset2bag: TensorType,
    bag_size: TensorType,
    maximum_indices: TensorType,
    num_weights: Size,
    *_: object,
    **__: object,
) -> TensorType:
    return grad.fresh((num_weights, grad.size[1]))


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: TensorType, weight: TensorType, indices: TensorType, *_: object, **__: object
) -> TensorType:
    return grad.fresh((indices.size[0],))
