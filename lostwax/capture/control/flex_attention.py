"""`flex_attention` in a program: taken apart, into the operators that compute the same.

The user's functions of a score and its place are written for single numbers: `torch.vmap` makes
them functions of all scores at once. What a block mask says beside its function only tells kernels
what they may skip. Must not choose a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lostwax.errors import CaptureError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.symbolic.indexing import read_places

Attended = tuple[Tensor, Tensor, Tensor]


def attend(
    mode: FakeTensorMode,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> Attended:
    """What the operator `flex_attention` returns: the result, and for each query the logarithm (to
    base 2) of its sum of exponentials, and its largest score."""
    kind = query.device.type
    is_casting = torch.is_autocast_enabled(kind)
    if is_casting:
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (_cast(each, dtype) for each in (query, key, value))
    with torch.autocast(kind, enabled=False) if is_casting else nullcontext():
        scores = _modified_scores(
            mode, query, key, score_mod, block_mask[-1], scale, score_buffers, mask_buffers
        )
        return _attend(scores, query, value)


def _cast(given: Tensor, dtype: torch.dtype) -> Tensor:
    return given if given.dtype is torch.float64 else given.to(dtype)


def _modified_scores(
    mode: FakeTensorMode,
    query: Tensor,
    key: Tensor,
    score_mod: Callable[..., Any],
    mask_mod: Callable[..., Any],
    scale: float,
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
) -> Tensor:
    """All scores, at least in single precision: as the user's function gives them, and minus
    infinity where the mask says no."""
    precision = torch.float64 if query.dtype is torch.float64 else torch.float32
    key = _like_query(key, query).to(precision)
    scores = query.to(precision) @ key.transpose(-2, -1) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    with _KeptIndices():
        allowed = _for_all(mask_mod, 0, len(mask_buffers))(*places, *mask_buffers)
        modified = _for_all(score_mod, 1, len(score_buffers))(scores, *places, *score_buffers)
    if modified.dtype is not scores.dtype:
        modified = modified.to(precision)
    return torch.where(allowed, modified, -math.inf)


def _attend(scores: Tensor, query: Tensor, value: Tensor) -> Attended:
    is_masked = (scores == -math.inf).all(-1)
    sums = torch.where(is_masked, -math.inf, scores.logsumexp(-1))
    weights = torch._safe_softmax(scores, -1).to(query.dtype)
    out = weights @ _like_query(value, query).to(query.dtype)
    return _lay_out_like(out, query), sums / math.log(2), scores.amax(-1) / math.log(2)


def _like_query(given: Tensor, query: Tensor) -> Tensor:
    """Keys or values with as many batches and heads as the queries."""
    heads, batch = query.shape[1] // given.shape[1], query.shape[0]
    given = given if heads == 1 else given.repeat_interleave(heads, 1)
    if given.shape[0] != batch and given.shape[0] != 1:
        raise CaptureError.here(
            f"flex_attention has {batch} batches of queries and {given.shape[0]} of keys",
            why="each batch of queries has keys of its own, or all have the same",
            instead="as many keys as queries, or one batch of keys",
        )
    return given.expand(batch, *given.shape[1:])


def _lay_out_like(out: Tensor, query: Tensor) -> Tensor:
    """The same tensor, its dimensions in the order in memory that those of the queries have."""
    strides = query.stride()
    order = sorted(range(out.dim()), key=lambda d: -strides[d])  # of equal ones, the first is outer
    if order == [*range(out.dim())]:
        return out.contiguous()
    back = sorted(range(out.dim()), key=order.__getitem__)
    return out.permute(order).contiguous().permute(back)


def _for_all(function: Callable[..., Any], before: int, buffers: int) -> Callable[..., Any]:
    """A function of a single place (batch, head, query, key) as one of all places: `before` is how
    many arguments come before them, each with a number for every place."""
    rest = (None,) * buffers
    for place in (3, 2, 1, 0):
        single = [0 if place == each else None for each in range(4)]
        dims = (*(0,) * before, *single, *rest)
        function = torch.vmap(function, in_dims=dims, out_dims=0)
    return function


class _KeptIndices(TorchFunctionMode):
    """An index that is computed (`bias[head]`) stays a tensor. Python's indexing would read the
    number of a tensor that has one element."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__getitem__ and (places := read_places(args[1])):
            return torch.ops.aten.index.Tensor(args[0], places)
        return func(*args, **(kwargs or {}))
