"""A decoder of transformers as a function of tokens and of the keys and values of those before,
which it gives back longer. Must not know what is written of it.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from lostwax.capture.export import export as capture
from lostwax.capture.shapes.dims import Dim
from lostwax.errors import CaptureError
from lostwax.ir.program import ExportedProgram
from lostwax.llm.entries import WholeAttention, use_entries

_PARTS = ("key", "value")


class PastLayer(DynamicLayer):
    """Keys and values that may be of no token: that is no other way."""

    def get_seq_length(self) -> Any:
        assert self.keys is not None
        return self.keys.shape[-2]


class PastDecoder(nn.Module):
    """A model of transformers as a function of tokens and of what it kept of those before."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.takes_positions = "position_ids" in signature(model.forward).parameters
        self.sizes = self._try_once()
        """Heads and width of keys and of values, layer by layer."""

    @property
    def input_names(self) -> list[str]:
        first = ["input_ids", "attention_mask", *["position_ids"] * self.takes_positions]
        return [*first, *self._list_kept("past_key_values")]

    @property
    def output_names(self) -> list[str]:
        return ["logits", *self._list_kept("present")]

    def _list_kept(self, name: str) -> list[str]:
        return [f"{name}.{i}.{part}" for i in range(len(self.sizes)) for part in _PARTS]

    def _try_once(self) -> list[tuple[torch.Size, torch.Size]]:
        cache = DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
        strange = [each for each in cache.layers if not isinstance(each, DynamicLayer)]
        if strange or not cache.layers:
            kind = type(strange[0]).__name__ if strange else "no cache"
            raise CaptureError(
                f"{type(self.model).__name__} keeps other things than keys and values: {kind}\n"
                "  why: runtimes know inputs past_key_values.N.key and .value alone\n"
                "  instead: lostwax.onnx.save, with state in buffers"
            )
        return [(each.keys.shape, each.values.shape) for each in cache.layers]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None,
        past: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        layers = []
        for keys, values in past:
            layer = PastLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            layers.append(layer)
        given = {} if position_ids is None else {"position_ids": position_ids}
        logits = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=Cache(layers=layers),
            use_cache=True,
            **given,
        ).logits
        return logits, [(layer.keys, layer.values) for layer in layers]


def export_decoder(decoder: PastDecoder) -> ExportedProgram:
    """Capture it for any number of texts, of tokens, and of tokens before."""
    batch, length = Dim("batch_size", min=1), Dim("sequence_length", min=1)
    past = Dim("past_sequence_length")
    texts, tokens, before = 2, 3, 5
    make = partial(torch.zeros, dtype=decoder.model.dtype)
    kept = [
        tuple(make(texts, size[1], before, size[3]) for size in sizes) for sizes in decoder.sizes
    ]
    ids = torch.ones(texts, tokens, dtype=torch.int64)
    positions = torch.arange(before, before + tokens).expand(texts, tokens).contiguous()
    mask = torch.ones(texts, before + tokens, dtype=torch.int64)
    rows = {0: batch, 1: length}
    shapes = {
        "input_ids": rows,
        "attention_mask": {0: batch, 1: Dim("total_sequence_length")},
        "position_ids": rows if decoder.takes_positions else None,
        "past": [tuple({0: batch, 2: past} for _ in sizes) for sizes in decoder.sizes],
    }
    with use_entries(decoder.model, WholeAttention()):
        return capture(
            decoder,
            (ids, mask, positions if decoder.takes_positions else None, kept),
            dynamic_shapes=shapes,
            constraints=["total_sequence_length == past_sequence_length + sequence_length"],
            keep="composite",
        )
