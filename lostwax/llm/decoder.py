"""A model of transformers as `forward(tokens, positions) -> logits`, its cache in buffers.

The cache holds all of the context from the beginning, and tokens are written to their positions,
so that one program serves for any number of them. Must not know how programs are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    EncoderDecoderCache,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from lostwax.errors import CaptureError, LostwaxError
from lostwax.llm.entries import KernelAttention, Looking, use_entries
from lostwax.llm.pieces import make_zeros
from lostwax.llm.quantizing import is_quantized

_WINDOWS = (DynamicSlidingWindowLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_BOTH = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_KNOWN = (DynamicLayer, LinearAttentionLayer, DummyLayer, *_WINDOWS, *_BOTH)


class Decoder(nn.Module):
    """A model that keeps what it has seen: tokens `[1, length]`, or their embeddings, at positions
    `[length]`, which follow each other; logits of the last of them, or of all. Position 0 begins
    anew."""

    def __init__(
        self, model: PreTrainedModel, context: int, all_logits: bool = False, sdpa: Any = None
    ) -> None:
        super().__init__()
        self.model, self.context, self.all_logits = model, context, all_logits
        self.places: Tensor
        # Kernels would write wherever they are told to, or count from the end. Who looks a position
        # up is told that it is not there.
        self.register_buffer("places", torch.arange(context))
        self.sdpa: KernelAttention | None = None
        """What computes attention by a kernel, if it does."""
        takes = signature(model.forward).parameters
        self.cache_name = "cache_params" if "cache_params" in takes else "past_key_values"
        self.takes_positions = "position_ids" in takes
        self.options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "logits_to_keep" in takes and not all_logits:
            self.options["logits_to_keep"] = 1
        looking = Looking()
        with use_entries(model, looking), _telling_of_caches(model):
            seen = self._try_once()
        is_simple = looking.fits and not any(isinstance(each, _BOTH) for each in seen)
        if sdpa == "custom" and is_simple:
            self.sdpa = KernelAttention()
        self.layers = [self._keep(at, each) for at, each in enumerate(seen)]

    def _try_once(self) -> list[Any]:
        """What the model keeps of one token, layer by layer. It has the last position, which some
        have not, if the model is told positions."""
        cache = DynamicCache(config=self.model.config)
        token = torch.zeros(1, 1, dtype=torch.int64)
        last = torch.full((1, 1), self.context - 1)
        given = {"position_ids": last} if self.takes_positions else {}
        with torch.no_grad(), _telling_of_positions(self.model, self.context):
            self.model(token, **{self.cache_name: cache, **self.options, **given})
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
            make = KeptAttention if self.sdpa is None else KeptForKernel
            for name in ("keys", "values"):
                made: Tensor = getattr(seen, name)
                heads, width = made.shape[1], made.shape[3]
                size = (heads, self.context) if self.sdpa is None else (self.context, heads)
                self.register_buffer(f"{name}_{at}", make_zeros((1, *size, width), made.dtype))
        if isinstance(seen, LinearAttentionLayer):
            make = partial(KeptStates if make is DummyLayer else KeptBoth, seen.number_of_states)
            for name in ("conv_states", "recurrent_states"):
                for number, state in getattr(seen, name).items():
                    if state is not None:
                        self.register_buffer(f"{name}_{at}_{number}", torch.zeros_like(state))
        return make, isinstance(seen, _WINDOWS)

    def list_unread(self) -> tuple[str, ...]:
        """The caches of which, as a call has shown, only what was written is read."""
        if self.sdpa is None or self.sdpa.has_masks:
            return ()
        names = [name for name, _ in self.named_buffers(recurse=False)]
        return tuple(name for name in names if name.startswith(("keys_", "values_")))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        positions = self.places.index_select(0, positions)
        if self.sdpa is None:
            return self._compute(tokens, positions)
        start = positions[0].item()
        torch._check(start >= 0)
        torch._check(start + tokens.shape[1] <= self.context)
        self.sdpa.start = start
        try:
            return self._compute(tokens, positions)
        finally:
            self.sdpa.start = None

    def _compute(self, tokens: Tensor, positions: Tensor) -> Tensor:
        layers = [self._open(at, positions) for at in range(len(self.layers))]
        given = {"position_ids": positions[None]} if self.takes_positions else {}
        given["inputs_embeds" if tokens.is_floating_point() else "input_ids"] = tokens
        given[self.cache_name] = Cache(layers=layers)
        logits: Tensor = self.model(**given, **self.options).logits
        return logits if self.all_logits else logits[:, -1:]

    def _open(self, at: int, positions: Tensor) -> Any:
        """The cache of a layer, as the model knows it, for one call."""
        make, has_window = self.layers[at]
        made = make()
        if isinstance(made, KeptAttention):
            made.keys, made.values = getattr(self, f"keys_{at}"), getattr(self, f"values_{at}")
            made.positions, made.is_sliding = positions, has_window
            made.start = None if self.sdpa is None else self.sdpa.start
        if isinstance(made, KeptStates):
            begins = positions[0] == 0
            for name in ("conv_states", "recurrent_states"):
                states = getattr(made, name)
                for number in range(made.number_of_states):
                    state = getattr(self, f"{name}_{at}_{number}", None)
                    if state is not None:
                        states[number] = state.masked_fill_(begins, 0)
        return made


class SpeechDecoder(nn.Module):
    """The decoder of a model that hears, one token after the other: tokens `[1, 1]`, what the
    encoder made of the sound, and positions `[1]`. What it keeps is of tokens alone: what it takes
    of the sound is computed anew with each."""

    def __init__(self, model: PreTrainedModel, context: int, sound: Tensor) -> None:
        super().__init__()
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        token = torch.zeros(1, 1, dtype=torch.int64)
        with torch.no_grad():
            self.decoder(token, encoder_hidden_states=sound, past_key_values=cache, use_cache=True)
        self.count = len(cache.self_attention_cache.layers)
        for at, layer in enumerate(cache.self_attention_cache.layers):
            for name in ("keys", "values"):
                made: Tensor = getattr(layer, name)
                size = (1, made.shape[1], context, made.shape[3])
                self.register_buffer(f"{name}_{at}", made.new_zeros(size))

    def forward(self, tokens: Tensor, sound: Tensor, positions: Tensor) -> Tensor:
        layers = [KeptAttention() for _ in range(self.count)]
        for at, layer in enumerate(layers):
            layer.keys, layer.values = getattr(self, f"keys_{at}"), getattr(self, f"values_{at}")
            layer.positions, layer.is_sliding, layer.start = positions, False, None
        hidden = self.decoder(
            tokens,
            encoder_hidden_states=sound,
            past_key_values=EncoderDecoderCache(Cache(layers=layers), DynamicCache()),
            position_ids=positions[None],
            use_cache=True,
        ).last_hidden_state
        logits: Tensor = self.head(hidden[:, -1:])
        return logits


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
    # Where activations are rounded to integers, a small difference may become a step of them. Such
    # models compute slowly, and one comparison says it all.
    is_rounded = is_quantized(model)
    counts = [min(length, each) for each in ((2, 1) if is_rounded else (3, 1, 2))]
    counts = counts if sum(counts) <= context else counts[:1]
    words = model.config.get_text_config(decoder=True).vocab_size
    tokens = [number % words for number in range(7, 7 + sum(counts))]
    own = {} if is_rounded else dict(decoder.named_buffers(recurse=False))
    kept = {name: each.clone() for name, each in own.items()}
    start = 0
    for count in counts:
        given = tokens[start : start + count]
        with torch.no_grad():
            found = _call(decoder, program, given, start)
            start += count
            if is_rounded and start < len(tokens):
                continue
            mine = found if is_rounded else _run(decoder, kept, given, start - count)[:, -1]
            with use_entries(model):
                wanted = model(torch.tensor([tokens[:start]]), use_cache=False).logits[:, -1]
        is_exact = found.dtype in (torch.float32, torch.float64)
        for one, other, what, bar in (
            (found, mine, "the program of it computes other logits than it does", 1e-5),
            (mine, wanted, "it computes other logits with a cache than without", 1e-3),
        ):
            difference = (one - other).abs().max()
            bar = 1e-1 if is_rounded else bar if is_exact else 5e-2
            if not difference <= bar * other.abs().max():
                raise CaptureError(
                    f"{type(model).__name__}: {what}; with {count} of {start} tokens they differ "
                    f"by {difference:.2g}\n"
                    "  instead: lostwax.interop.transformers exports it for generation, with "
                    "caches as inputs and outputs"
                )


def _call(decoder: Decoder, program: Any, tokens: list[int], start: int) -> Tensor:
    """The logits of a program. A guard of its own may be in the way of so many tokens."""
    try:
        found: Tensor = program(torch.tensor([tokens]), torch.arange(start, start + len(tokens)))
    except RuntimeError as error:
        raise CaptureError(
            f"{type(decoder.model).__name__}: the program of it does not take {len(tokens)} "
            f"tokens at {start}: {error}\n"
            "  why: its own Python reads how many tokens there are, where they are all of the "
            "context here\n"
            "  instead: a model that leaves masks to transformers, as that of Llama"
        ) from error
    return found[:, -1]


def require_positions(decoder: Decoder) -> None:
    """Refuse a context for which a model has not positions enough, as those that learn them. One
    that is told positions was asked before."""
    _require_one_rope(decoder.model, decoder.context)
    if not decoder.takes_positions:
        with _telling_of_positions(decoder.model, decoder.context):
            _run(decoder, {}, [0], start=decoder.context - 1)


@contextmanager
def _telling_of_caches(model: PreTrainedModel) -> Iterator[None]:
    """Tell of a model that a cache of transformers' own kind is no cache for."""
    try:
        yield
    except LostwaxError:
        raise
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CaptureError(
            f"{type(model).__name__} takes no cache of keys, values and states: {error}\n"
            "  why: what a model keeps becomes buffers of the file\n"
            "  instead: lostwax.interop.transformers exports it for generation, with caches as "
            "inputs and outputs"
        ) from error


@contextmanager
def _telling_of_positions(model: PreTrainedModel, context: int) -> Iterator[None]:
    try:
        yield
    except IndexError:
        known = model.config.get_text_config(decoder=True).max_position_embeddings
        raise CaptureError(
            f"{type(model).__name__} has no position {context - 1}: it was made for {known} tokens"
            f"\n  instead: context={known}"
        ) from None


def _require_one_rope(model: PreTrainedModel, context: int) -> None:
    """Refuse a context in which the keys that are kept would have to be turned anew."""
    config = model.config.get_text_config(decoder=True)
    given = getattr(config, "rope_parameters", None) or {}
    for rope in (given, *given.values()):
        most = rope.get("original_max_position_embeddings") if isinstance(rope, dict) else None
        if most and context > most and rope.get("short_factor") != rope.get("long_factor"):
            raise CaptureError(
                f"{type(model).__name__} turns all keys anew when a text has more than {most} "
                f"tokens, and the file is to keep {context}\n"
                "  why: keys are kept turned, by the factors for short texts\n"
                f"  instead: context={most}, or a configuration that has the factors for long "
                "texts as those for short ones, too"
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
    start: Any

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


class KeptForKernel(KeptAttention):
    """The same with heads after positions, written by ExecuTorch's kernel, from the first position
    on."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        write = torch.ops.llama.update_cache
        write(key_states.transpose(1, 2), self.keys, self.start)
        write(value_states.transpose(1, 2), self.values, self.start)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[1], 0


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
