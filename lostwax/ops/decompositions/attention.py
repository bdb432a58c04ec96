"""The CPU's fused attention, for programs that call its kernel by name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lostwax.ops.decompositions.precision import cast
from lostwax.ops.registry import aten, decomposition


@decomposition("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Attention, and the logarithms of the sums that it divides by: its gradient reads them."""
    width = query.shape[-1]
    if scale is None:
        if not isinstance(width, int) or not width:
            raise NotImplementedError("the scale is no number")
        scale = width**-0.5
    out = aten.scaled_dot_product_attention.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    q, k = cast(query, wide), cast(key, wide)
    across = aten.transpose.int(k, -2, -1)
    scores = aten.matmul.default(aten.mul.Scalar(q, scale), across)
    if is_causal:
        size = list(scores.shape[-2:])
        later = aten.triu.default(aten.ones.default(size, dtype=torch.bool, device=q.device), 1)
        scores = aten.masked_fill.Scalar(scores, later, -math.inf)
    elif attn_mask is not None:
        scores = aten.add.Tensor(scores, cast(attn_mask, wide))
    scores = aten.constant_pad_nd.default(scores, [0, 1], -math.inf)  # there may be no keys
    sums = aten.logsumexp.default(scores, [-1])
    sees_nothing = aten.eq.Scalar(sums, -math.inf)
    return out, aten.masked_fill.Scalar(sums, sees_nothing, 0.0)
