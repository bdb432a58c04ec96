"""Batch normalisation and weight norm, by core operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.precision import cast
from lostwax.ops.registry import aten, decomposition


@decomposition("native_batch_norm")
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        op = aten._native_batch_norm_legit_no_training.default
        return op(input, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise NotImplementedError("it writes to its statistics")
    return aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)


@decomposition("_native_batch_norm_legit_functional")
def batch_norm_updating(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """It normalises by the statistics of the batch, and moves the running ones towards them."""
    if not training:
        op = aten._native_batch_norm_legit_no_training.default
        out = op(input, weight, bias, running_mean, running_var, momentum, eps)
        return (*out, aten.clone.default(running_mean), aten.clone.default(running_var))
    out = aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)
    rest = [0, *range(2, input.dim())]
    # Computed from the input again, since the inverse that is returned has lost digits to `eps`.
    # Detached, since to autograd the running statistics depend on nothing.
    seen = cast(aten.detach.default(input), running_var.dtype)
    var = aten.var.correction(seen, rest, correction=1)
    mean = cast(out[1], running_mean.dtype)
    return (*out, _move(running_mean, mean, momentum), _move(running_var, var, momentum))


def _move(running: Tensor, now: Tensor, momentum: float) -> Any:
    kept = aten.mul.Tensor(running, 1 - momentum)
    return aten.add.Tensor(kept, aten.mul.Tensor(now, momentum))


@decomposition("_weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """`g` has one number for each slice of `v`; the kernel takes it in any shape."""
    each = [1] * v.dim()
    each[dim] = v.shape[dim]
    is_wide = v.dtype in (torch.float32, torch.float64)
    wide = v if is_wide else cast(v, torch.float32)
    others = [d for d in range(v.dim()) if d != dim]
    squares = aten.mul.Tensor(wide, wide)
    sums = aten.sum.dim_IntList(squares, others, True) if others else squares
    norms = aten.sqrt.default(sums)
    is_formed = list(g.shape) == each
    scales = cast(g if is_formed else aten.view.default(g, each), wide.dtype)
    out = aten.mul.Tensor(wide, aten.div.Tensor(scales, norms))
    return cast(out, v.dtype), norms if is_formed else aten.view.default(norms, list(g.shape))
