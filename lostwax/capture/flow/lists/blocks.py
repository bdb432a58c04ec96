"""Tensors in a list that differ in several sizes. Must not know how a loop is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from lostwax.capture.flow.lists.spans import (
    Appended,
    Pieces,
    Rows,
    note_layout,
    read_length,
    refuse,
)
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.location import PASSING_ON, Location
from lostwax.sym import Expr, learn
from lostwax.types import TensorType

PASSING_ON.add(__file__)


class MixedPieces(Appended):
    """Tensors that differ in several sizes: their elements stand one after the other."""

    shown = "tensors"
    told = "tensors that differ in several sizes"

    def __init__(
        self,
        tensor: Tensor,
        sizes: Tensor,
        dims: Sequence[int],
        kind: TensorType,
        where: Location,
        is_dense: bool = True,
    ) -> None:
        self.is_dense = is_dense
        self.tensor, self.sizes, self.where = tensor, sizes, where
        self.dims = tuple(dims)
        """In which sizes they differ: of each there is a column in `sizes`."""
        self.kind = kind
        """One that has the other sizes."""

    @property
    def length(self) -> Any:
        return self.sizes.shape[0]

    @torch.enable_grad()
    def take(self, at: Any) -> Tensor:
        own = self.sizes[at]
        size: list[Any] = [wrap(n) if isinstance(n, Expr) else n for n in self.kind.size]
        for i, dim in enumerate(self.dims):
            size[dim] = read_length(own[i])
        others = [n for dim, n in enumerate(size) if dim not in self.dims]
        counts = self.sizes.prod(1) * math.prod(others)
        start = read_length((counts.cumsum(0) - counts)[at])
        count = math.prod(size)
        if isinstance(left := unwrap(self.tensor.shape[0] - start - count), Expr):
            learn(left >= 0)
        return note_layout(self.tensor.narrow(0, start, count).view(size), self.is_dense)

    def reverse(self) -> NoReturn:
        raise refuse("a list of tensors of different sizes is reversed")

    def cut(self, start: Any, stop: Any) -> NoReturn:
        raise refuse("a part is taken of a list of tensors of different sizes")


def lay_blocks(leaf: Any, dims: Sequence[int]) -> dict[str, Tensor]:
    """What is laid into the tensors of blocks for one thing that is appended."""
    if isinstance(leaf, MixedPieces):
        return {
            "rows": leaf.tensor,
            "sizes": _add_columns(leaf.sizes, leaf.dims, dims, leaf.kind.size),
        }
    if isinstance(leaf, Pieces):
        lengths = leaf.lengths.unsqueeze(1)
        sizes = _add_columns(lengths, (leaf.dim,), dims, leaf.tensor.shape)
        return {"rows": leaf.tensor.flatten(), "sizes": sizes}
    if isinstance(leaf, Rows):
        rows = leaf.in_order(9)
        sizes = measure(rows.shape[1:], dims).expand(rows.shape[0], -1)
        return {"rows": rows.flatten(), "sizes": sizes}
    return {"rows": leaf.flatten(), "sizes": measure(leaf.shape, dims).unsqueeze(0)}


def measure(size: Sequence[Any], dims: Sequence[int]) -> Tensor:
    """These sizes as a tensor."""
    return torch.stack([torch.full((), size[dim]) for dim in dims])


def _add_columns(
    sizes: Tensor, own: Sequence[int], dims: Sequence[int], others: Sequence[Any]
) -> Tensor:
    """The same sizes of tensors of which others are told, too."""
    if tuple(own) == tuple(dims):
        return sizes
    count = sizes.shape[0]
    columns = [
        sizes[:, own.index(dim)]
        if dim in own
        else torch.full((), wrap(n) if isinstance(n := others[dim], Expr) else n).expand(count)
        for dim in dims
    ]
    return torch.stack(columns, 1)
