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
from transformers.masking_utils import (
    AttentionMaskInterface,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
)
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
    sees_all = not getattr(module, "is_causal", True)  # it looks at a sound, not at tokens
    if asked or (attention_mask is None and not sees_all):
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
    scores = scores if attention_mask is None else scores + attention_mask
    if s_aux is not None:
        sinks = s_aux.reshape(1, heads, 1, 1).expand(batch, heads, length, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    if s_aux is not None:
        weights = weights[..., :-1]
    found = weights.reshape(*shared, key.shape[2]) @ value
    return found.reshape(batch, heads, length, value.shape[3]).transpose(1, 2), None


class KernelAttention:
    """Attention by ExecuTorch's kernel for language models. It reads caches `[1, context, heads,
    width]` as they are, and needs no mask where each token sees all that came before it."""

    def __init__(self) -> None:
        self.start: Any = None
        """The position of the first token, while a model runs."""
        self.has_masks = False
        """Was it given a mask? It then reads all of a cache, else what was written."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        mask = None if attention_mask is None else attention_mask[0, 0]
        self.has_masks = self.has_masks or mask is not None
        found = torch.ops.llama.custom_sdpa(
            query.transpose(1, 2), key, value, self.start, mask, 0.0, mask is None, scaling
        )
        return found, None


def make_mask(*args: Any, mask_function: Any = causal_mask_function, **others: Any) -> Any:
    """A mask for the kernel: none, if each token sees all that came before it."""
    if mask_function is causal_mask_function and others.get("attention_mask") is None:
        return None
    return eager_mask(*args, mask_function=mask_function, **others)


class WholeAttention:
    """Attention as the one operator that it is, with a mask of truths; what is more than that is
    spelled out."""

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **others: Any
    ) -> tuple[Tensor, None]:
        names = ("softcap", "s_aux", *_OTHER_WAYS)
        if mask is None or any(others.get(name) is not None for name in names):
            least = torch.finfo(query.dtype).min
            added = None if mask is None else torch.where(mask, 0.0, least).to(query.dtype)
            return attend(module, query, key, value, added, **others)
        scale = others.get("scaling")
        found = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found.transpose(1, 2), None


def make_truths(*args: Any, **others: Any) -> Any:
    """A mask of truths, for any number of tokens."""
    return sdpa_mask(*args, **{**others, "allow_is_causal_skip": False})


class Looking:
    """Our own attention, which also sees whether a kernel could compute it."""

    def __init__(self) -> None:
        self.fits = True

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **others: Any
    ) -> tuple[Tensor, None]:
        is_plain = others.get("softcap") is None and others.get("s_aux") is None
        is_even = key.shape == value.shape and query.dtype is torch.float32
        self.fits = self.fits and is_plain and is_even
        return attend(module, query, key, value, mask, **others)


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


ExpertsInterface.register(NAME, run_experts)


@contextmanager
def use_entries(model: PreTrainedModel, attention: Any = attend) -> Iterator[None]:
    """Let a model compute attention and experts by our entries."""
    name = NAME if attention is attend else f"{NAME}_{type(attention).__name__}"
    AttentionInterface.register(name, attention)
    # That of transformers asks nothing of the number of tokens.
    makers = {KernelAttention: make_mask, WholeAttention: make_truths}
    make = makers.get(type(attention), eager_mask)
    AttentionMaskInterface.register(name, make)
    configs = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    fields = ("_attn_implementation_internal", "_experts_implementation_internal")
    before = [(c, f, getattr(c, f)) for c in configs for f in fields if hasattr(c, f)]
    try:
        model.set_attn_implementation(name)
        if model._can_set_experts_implementation():
            model.set_experts_implementation(NAME)
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)
