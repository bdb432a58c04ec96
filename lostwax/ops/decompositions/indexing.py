"""Reading and writing by index, by `index`, `index_put` and the scatters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition(aten.index_reduce.default)
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


@decomposition(aten.scatter.reduce)
def scatter_reducing(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Any:
    if reduce == "add":
        return aten.scatter_add.default(self, dim, index, src)
    return aten.scatter_reduce.two(self, dim, index, src, "prod")


@decomposition(aten.scatter.value_reduce)
def scatter_reducing_value(
    self: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str
) -> Any:
    source = aten.full.default(index.shape, value, dtype=self.dtype, device=self.device)
    return scatter_reducing(self, dim, index, source, reduce=reduce)


@decomposition(aten.put.default)
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    flat = _flat(self)
    out = aten.index_put.default(flat, [_flat(index)], _flat(source), accumulate)
    return aten.view.default(out, self.shape)


@decomposition(aten.take.default)
def take(self: Tensor, index: Tensor) -> Any:
    out = aten.index.Tensor(_flat(self), [_flat(index)])
    return aten.view.default(out, index.shape)


def _flat(x: Tensor) -> Any:
    rows = x if x.is_contiguous() else aten.clone.default(x, memory_format=torch.contiguous_format)
    return aten.view.default(rows, [-1])


@decomposition(aten._embedding_bag_forward_only.default)
def embedding_bag(*args: Any, **kwargs: Any) -> Any:
    return aten._embedding_bag.default(*args, **kwargs)


@decomposition(aten.sort.stable)
def sort(self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if stable:
        raise NotImplementedError("the core operator need not keep the order of equals")
    return aten.sort.default(self, dim, descending)
