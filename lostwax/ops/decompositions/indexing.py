"""Reading and writing at indices, by `index`, `index_put` and the scatters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition("index_reduce")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if self.dim() == 0:
        row, only = aten.view.default(self, [1]), aten.view.default(source, [1])
        out = index_reduce(row, 0, index, only, reduce, include_self=include_self)
        return aten.squeeze.dim(out, 0)
    at = dim % self.dim()
    shape = [1] * self.dim()
    shape[at] = -1
    places = aten.expand.default(aten.view.default(index, shape), source.shape)
    return aten.scatter_reduce.two(self, at, places, source, reduce, include_self=include_self)


@decomposition("scatter.reduce")
def scatter_reducing(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Any:
    if reduce == "add":
        return aten.scatter_add.default(self, dim, index, src)
    return aten.scatter_reduce.two(self, dim, index, src, "prod")


@decomposition("scatter.value_reduce")
def scatter_reducing_value(
    self: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str
) -> Any:
    source = aten.full.default(index.shape, value, dtype=self.dtype, device=self.device)
    return scatter_reducing(self, dim, index, source, reduce=reduce)


@decomposition("put")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    flat = _flatten(self)
    out = aten.index_put.default(flat, [_flatten(index)], _flatten(source), accumulate)
    return aten.view.default(out, self.shape)


@decomposition("take")
def take(self: Tensor, index: Tensor) -> Any:
    out = aten.index.Tensor(_flatten(self), [_flatten(index)])
    return aten.view.default(out, index.shape)


def _flatten(x: Tensor) -> Any:
    return aten.view.default(_rows(x), [-1])


@decomposition("_embedding_bag_forward_only")
def embedding_bag(*args: Any, **kwargs: Any) -> Any:
    return aten._embedding_bag.default(*args, **kwargs)


@decomposition("sort.stable")
def sort(self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if stable:
        raise NotImplementedError("the core operator need not keep the order of equals")
    return aten.sort.default(self, dim, descending)


@decomposition("embedding_renorm")
def embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Any:
    """It shortens the rows that are read and too long. A row that is read twice is written twice,
    with the same numbers."""
    places = _flatten(indices)
    rows = aten.index_select.default(self, 0, places)
    norm = aten.linalg_vector_norm.default(rows, norm_type, [1], True)
    factor = aten.mul.Tensor(aten.reciprocal.default(aten.add.Scalar(norm, 1e-7)), max_norm)
    shortened = aten.where.self(aten.gt.Scalar(norm, max_norm), aten.mul.Tensor(rows, factor), rows)
    return aten.index_put.default(self, [places], shortened)


@decomposition("max_unpool2d")
def max_unpool2d(self: Tensor, indices: Tensor, output_size: Any) -> Any:
    return _unpool(self, indices, output_size)


@decomposition("max_unpool3d")
def max_unpool3d(
    self: Tensor, indices: Tensor, output_size: Any, stride: Any = None, padding: Any = None
) -> Any:
    return _unpool(self, indices, output_size)


def _unpool(x: Tensor, indices: Tensor, output_size: Any) -> Any:
    """Put each number back to the place where the pooling found it, and zeros elsewhere."""
    lead, rest = list(x.shape[: -len(output_size)]), x.shape[-len(output_size) :]
    flat = [_rows(v).view([*lead, math.prod(rest)]) for v in (x, indices)]
    zeros = aten.full.default([*lead, math.prod(output_size)], 0, dtype=x.dtype, device=x.device)
    out = aten.scatter.src(zeros, -1, flat[1], flat[0])
    return aten.view.default(out, [*lead, *output_size])


def _rows(x: Tensor) -> Any:
    if x.is_contiguous():
        return x
    return aten.clone.default(x, memory_format=torch.contiguous_format)
