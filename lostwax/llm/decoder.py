"""A model of transformers as `forward(tokens, positions) -> logits`, its cache in buffers.

The cache holds all of the context from the beginning, and tokens are written to their positions,
so that one program serves for any number of them. Must not know how programs are lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from lostwax.errors import CaptureError

_WINDOWS = (DynamicSlidingWindowLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_BOTH = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_KNOWN = (DynamicLayer, LinearAttentionLayer, DummyLayer, *_WINDOWS, *_BOTH)


class Decoder(nn.Module):
    """A model that keeps what it has seen: tokens `[1, length]` at positions `[length]`, which
    follow each other; logits of the last of them, or of all. Position 0 begins anew."""

    def __init__(self, model: PreTrainedModel, context: int, all_logits: bool = False) -> None:
        super().__init__()
        self.model, self.context, self.all_logits = model, context, all_logits
        takes = signature(model.forward).parameters
        self.cache_name = "cache_params" if "cache_params" in takes else "past_key_values"
        self.takes_positions = "position_ids" in takes
        self.options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "logits_to_keep" in takes and not all_logits:
            self.options["logits_to_keep"] = 1
        self.layers = [self._keep(at, seen) for at, seen in enumerate(self._try_once())]

    def _try_once(self) -> list[Any]:
        """What the model keeps of one token, layer by layer."""
        cache = DynamicCache(config=self.model.config)
        token = torch.zeros(1, 1, dtype=torch.int64)
        with torch.no_grad():
            self.model(token, **{self.cache_name: cache, **self.options})
        return list(cache.layers)

    def _keep(self, at: int, seen: Any) -> tuple[Callable[[], Any], bool]:
        """Make the buffers of a layer. Returns what makes its cache for a call, and whether it has
        a window."""
        if type(seen) not in _KNOWN:
            raise CaptureError(
                f"layer {at} has a cache of its own kind, {type(seen).__name__}\n"
                "  why: how it is written at positions is not known\n"
                "  instead: a model whose layers have keys and values, or states"
            )
        make: Callable[[], Any] = DummyLayer
        if isinstance(seen, DynamicLayer) and seen.is_initialized:
            make = KeptAttention
            for name in ("keys", "values"):
                made: Tensor = getattr(seen, name)
                zeros = made.new_zeros(1, made.shape[1], self.context, made.shape[3])
                self.register_buffer(f"{name}_{at}", zeros)
        if isinstance(seen, LinearAttentionLayer):
            make = partial(KeptBoth if make is KeptAttention else KeptStates, seen.number_of_states)
            for name in ("conv_states", "recurrent_states"):
                for number, state in getattr(seen, name).items():
                    if state is not None:
                        self.register_buffer(f"{name}_{at}_{number}", torch.zeros_like(state))
        return make, isinstance(seen, _WINDOWS)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        layers = [self._open(at, positions) for at in range(len(self.layers))]
        given = {"position_ids": positions[None]} if self.takes_positions else {}
        cache = Cache(layers=layers)
        logits: Tensor = self.model(
            tokens, **given, **{self.cache_name: cache, **self.options}
        ).logits
        return logits if self.all_logits else logits[:, -1:]

    def _open(self, at: int, positions: Tensor) -> Any:
        """The cache of a layer, as the model knows it, for one call."""
        make, has_window = self.layers[at]
        made = make()
        if isinstance(made, KeptAttention):
            made.keys, made.values = getattr(self, f"keys_{at}"), getattr(self, f"values_{at}")
            made.positions, made.is_sliding = positions, has_window
        if isinstance(made, KeptStates):
            begins = positions[0] == 0
            for name in ("conv_states", "recurrent_states"):
                states = getattr(made, name)
                for number in range(made.number_of_states):
                    state = getattr(self, f"{name}_{at}_{number}", None)
                    if state is not None:
                        states[number] = state.masked_fill_(begins, 0)
        return made


def require_memory(decoder: Decoder, length: int) -> None:
    """Refuse a model that begins anew with every call of several tokens: some do not read the
    states that they kept."""
    states = {
        name: each for name, each in decoder.named_buffers(recurse=False) if "_states_" in name
    }
    if length == 1:
        return
    for name in states:
        results = [
            _run(decoder, {name: torch.full_like(states[name], fill)}, [7, 8], start=1)
            for fill in (0.0, 1.0)
        ]
        if torch.equal(*results):
            raise CaptureError(
                f"{type(decoder.model).__name__} begins anew with every call of several tokens: it "
                f"does not read {name}\n"
                "  why: runners may hand it a text in several calls\n"
                "  instead: length=1, one token a call"
            )


def require_same(decoder: Decoder, program: nn.Module, context: int, length: int) -> None:
    """Refuse a program that does not do what the decoder does, and a decoder that does not go on
    from what it keeps as the model goes on from all tokens."""
    model = decoder.model
    counts = [min(length, each) for each in (3, 1, 2)]
    counts = counts if sum(counts) <= context else counts[:1]
    words = model.config.get_text_config(decoder=True).vocab_size
    tokens = [number % words for number in range(7, 7 + sum(counts))]
    kept = {name: each.clone() for name, each in decoder.named_buffers(recurse=False)}
    start = 0
    for count in counts:
        given = tokens[start : start + count]
        with torch.no_grad():
            found = program(torch.tensor([given]), torch.arange(start, start + count))[:, -1]
            mine = _run(decoder, kept, given, start)[:, -1]
            start += count
            wanted = model(torch.tensor([tokens[:start]]), use_cache=False).logits[:, -1]
        is_exact = found.dtype in (torch.float32, torch.float64)
        for one, other, what, bar in (
            (found, mine, "the program of it computes other logits than it does", 1e-5),
            (mine, wanted, "it computes other logits with a cache than without", 1e-3),
        ):
            difference = (one - other).abs().max()
            if not difference <= (bar if is_exact else 5e-2) * other.abs().max():
                raise CaptureError(
                    f"{type(model).__name__}: {what}; with {count} of {start} tokens they differ "
                    f"by {difference:.2g}\n"
                    "  instead: lostwax.interop.transformers exports it for generation, with "
                    "caches as inputs and outputs"
                )


def _run(decoder: Decoder, kept: dict[str, Tensor], tokens: list[int], start: int) -> Tensor:
    """Call a decoder with buffers in the place of its own."""
    positions = torch.arange(start, start + len(tokens))
    own = {name: each.clone() for name, each in decoder.named_buffers(recurse=False)}
    with torch.no_grad():
        found: Tensor = functional_call(
            decoder, {**own, **kept}, (torch.tensor([tokens]), positions)
        )
    return found


class KeptAttention(CacheLayerMixin):
    """Keys and values of all the context, written at the positions of this call. Where a layer has
    a window, the mask leaves out what is older."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("made before")

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self.positions, key_states)
        self.values.index_copy_(2, self.positions, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        return self.positions[0]

    def get_max_length(self) -> int:
        return self.get_mask_sizes(0)[0]


class KeptStates(LinearAttentionLayer):
    """States of a recurrence: there is always a previous one, and before the first token it is
    zero."""

    def __init__(self, number_of_states: int = 1) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        self.record_past = True  # models then take the way for several tokens, also for one
        for each in (
            self.has_previous_state,
            self.is_conv_states_initialized,
            self.is_recurrent_states_initialized,
        ):
            each.update(dict.fromkeys(each, True))

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, *args: Any, **kwargs: Any
    ) -> Tensor:
        kept = self.conv_states[state_idx]
        assert kept is not None
        whole = torch.cat([kept, conv_states], -1)
        kept.copy_(whole[..., -kept.shape[-1] :])
        return whole


class KeptBoth(KeptStates, KeptAttention):
    """A layer with both."""

    def __init__(self, number_of_states: int = 1) -> None:
        KeptAttention.__init__(self)
        KeptStates.__init__(self, number_of_states)
