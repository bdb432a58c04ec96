"""Views by `permute`, `view` and the like."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition(aten.t.default)
def t(self: Tensor) -> Any:
    return aten.permute.default(self, [1, 0]) if self.dim() == 2 else aten.alias.default(self)


@decomposition(aten.transpose.int)
def transpose(self: Tensor, dim0: int, dim1: int) -> Any:
    order = list(range(self.dim()))
    if not order:
        return aten.alias.default(self)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return aten.permute.default(self, order)


@decomposition(aten._unsafe_view.default)
def unsafe_view(self: Tensor, size: Any) -> Any:
    return aten.view.default(self, size)
