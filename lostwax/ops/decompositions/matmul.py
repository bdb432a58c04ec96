"""Products by `mm`, `bmm`, `addmm`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lostwax.ops.registry import aten, decomposition


@decomposition("mv")
def mv(self: Tensor, vec: Tensor) -> Any:
    out = aten.mm.default(self, aten.unsqueeze.default(vec, 1))
    return aten.squeeze.dim(out, 1)


@decomposition("dot")
def dot(self: Tensor, tensor: Tensor) -> Any:
    row, column = aten.unsqueeze.default(self, 0), aten.unsqueeze.default(tensor, 1)
    return aten.squeeze.dims(aten.mm.default(row, column), [0, 1])


@decomposition("vdot")
def vdot(self: Tensor, other: Tensor) -> Any:
    if self.dtype.is_complex:
        raise NotImplementedError("complex numbers have few core operators")
    return dot(self, other)


@decomposition("baddbmm")
def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add_weighted(self, aten.bmm.default(batch1, batch2), beta, alpha)


@decomposition("addbmm")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = aten.sum.dim_IntList(aten.bmm.default(batch1, batch2), [0])
    return _add_weighted(self, product, beta, alpha)


@decomposition("addmv")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add_weighted(self, mv(mat, vec), beta, alpha)


def _add_weighted(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Any:
    """beta · x + alpha · product. If beta is 0, x does not count, even if it is NaN."""
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        beta, alpha = int(beta), int(alpha)  # as eager, which computes in the dtype of x
    if alpha != 1:
        product = aten.mul.Tensor(product, alpha)
    if beta == 0:
        return product
    return aten.add.Tensor(x if beta == 1 else aten.mul.Tensor(x, beta), product)


@decomposition("_trilinear")
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sumdim: Any,
    unroll_dim: int = 1,
) -> Any:
    factors = [_unsqueeze(x, dims) for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3))]
    product = aten.mul.Tensor(aten.mul.Tensor(factors[0], factors[1]), factors[2])
    return aten.sum.dim_IntList(product, list(sumdim)) if len(sumdim) else product


def _unsqueeze(x: Tensor, dims: Any) -> Any:
    for d in dims:
        x = aten.unsqueeze.default(x, d)
    return x
