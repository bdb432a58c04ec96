"""The fastest models of transformers that ask for data (`python -m sweep.control_flow`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim, export
from lostwax.torch_version import TORCH
from sweep.control_flow import MODELS, Model, sweep_dynamic, sweep_static
from sweep.libraries import load_transformers
from tests.whole import sampled

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
NAMES = ("Longformer", "Nystrom", "Llava", "Mamba", "Jamba", *sampled((), ("Vilt",)))
CHOSEN = [m for m in MODELS if m.name.startswith(NAMES)]


@pytest.mark.parametrize("model", CHOSEN, ids=lambda model: model.name)
def test_a_model_does_what_eager_does_at_all_sizes(model: Model) -> None:
    module = model.build(load_transformers())
    sweep_static(model, module)
    if TORCH < (2, 13) and model.name.startswith("Longformer"):
        pytest.skip("C++ of torch 2.11 compares sizes in x[a:b] = y, and data decide them here")
    sweep_dynamic(model, module)


class Greedy(nn.Module):
    """Decodes until every text has ended, in plain Python."""

    def __init__(self, transformers: Any, most: int = 20, end: int = 3) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, intermediate_size=32, max_position_embeddings=64,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = transformers.LlamaForCausalLM(config).eval()
        self.make_cache = lambda: transformers.StaticCache(config=config, max_cache_len=64)
        self.most, self.end = most, end

    def forward(self, text: Tensor) -> tuple[Tensor, int]:
        batch, length = text.shape
        cache, found = self.make_cache(), torch.zeros(batch, self.most, dtype=torch.long)
        token = self.predict(text, cache, torch.arange(length))
        is_over, n = torch.zeros(batch, dtype=torch.bool), 0
        while n < self.most and not is_over.all():
            found[:, n] = token[:, 0]
            is_over = is_over | (token[:, 0] == self.end)
            token = self.predict(token, cache, torch.tensor([length]) + n)
            n += 1
        return found, n

    def predict(self, text: Tensor, cache: Any, at: Tensor) -> Tensor:
        logits = self.model(text, past_key_values=cache, cache_position=at).logits
        return logits[:, -1:].argmax(-1)  # type: ignore[no-any-return]


@torch.no_grad()
def test_greedy_decoding_is_one_program(tmp_path: Path) -> None:
    """For any batch and any prompt, with the model's cache, until all have ended."""
    module = Greedy(load_transformers())
    shapes = ({0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=30)},)
    example = (torch.randint(4, 40, (2, 5)),)
    program = export(module, example, dynamic_shapes=shapes, control_flow="sizes")
    lostwax.save(program, tmp_path / "greedy.pt2")
    theirs = torch.export.load(tmp_path / "greedy.pt2").module()
    lengths = set()
    for size in ((1, 5), (2, 7), (3, 1), (1, 30), (1, 3), (1, 2)):
        text = torch.randint(4, 40, size)
        want, n = module(text)
        for run in (program.module(), theirs):
            found, turns = run(text)
            assert found.equal(want)
            assert turns == n
        lengths.add(n)
    assert len(lengths) > 1, "texts end at different places"
