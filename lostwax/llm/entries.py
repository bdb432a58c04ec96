"""Our entries in the interfaces in which transformers lets others compute attention, masks and
experts: one way for every number of tokens.

Its own ways ask whether there is one token, or which experts were chosen, in Python. Must not know
caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from lostwax.errors import CaptureError

NAME = "lostwax"

_OTHER_WAYS = ("position_bias", "indices", "block_indices", "sinks")
"""Arguments that some models hand to attention and that change what it computes."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention with a mask that is added. Heads that share keys are rows of one product: keys are
    not repeated."""
    asked = [name for name in _OTHER_WAYS if others.get(name) is not None]
    if asked or attention_mask is None:
        raise CaptureError.here(
            f"{type(module).__name__} attends {'with ' + asked[0] if asked else 'without a mask'}",
            why="keys of tokens that are not there yet must be left out, for any number of tokens",
            instead="a model whose attention is that of Llama, Gemma or GPT-OSS",
        )
    batch, heads, length, width = query.shape
    shared = batch, key.shape[1], heads // key.shape[1] * length
    scale = width**-0.5 if scaling is None else scaling
    scores = (query * scale).reshape(*shared, width) @ key.transpose(2, 3)
    scores = scores.reshape(batch, heads, length, key.shape[2])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + attention_mask
    if s_aux is not None:
        sinks = s_aux.reshape(1, heads, 1, 1).expand(batch, heads, length, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    if s_aux is not None:
        weights = weights[..., :-1]
    found = weights.reshape(*shared, key.shape[2]) @ value
    return found.reshape(batch, heads, length, value.shape[3]).transpose(1, 2), None


def run_experts(self: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """A mixture of experts: each computes all tokens, and those that have not chosen it take
    nothing of it. No weights are copied."""
    total = None
    for expert in range(self.num_experts):
        first = "gate_up_proj" if self.has_gate else "up_proj"
        found = _project(self, first, expert, hidden_states)
        found = self._apply_gate(found) if self.has_gate else self.act_fn(found)
        found = _project(self, "down_proj", expert, found)
        if self.has_post_expert_norm:
            found = self.post_expert_norm(found)
        share = (weights * (chosen == expert)).sum(-1, keepdim=True)
        total = found * share if total is None else total + found * share
    assert total is not None, "experts without one"
    return total.to(hidden_states.dtype)


def _project(self: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(self, name)[expert]
    bias = getattr(self, f"{name}_bias")[expert] if self.has_bias else None
    return F.linear(x, weight.t() if self.is_transposed else weight, bias)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)  # it asks nothing of the number of tokens
ExpertsInterface.register(NAME, run_experts)


@contextmanager
def use_entries(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute attention and experts by our entries."""
    configs = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    fields = ("_attn_implementation_internal", "_experts_implementation_internal")
    before = [(c, f, getattr(c, f)) for c in configs for f in fields if hasattr(c, f)]
    try:
        model.set_attn_implementation(NAME)
        if model._can_set_experts_implementation():
            model.set_experts_implementation(NAME)
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)
