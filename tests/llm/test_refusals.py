"""What `lostwax.llm.export` refuses and warns of, and how it says so."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError, LoadError
from sweep.libraries import import_torchvision
from tests.llm.families import SIZES, make_model

pytest.importorskip("transformers", minversion="5.23")
import_torchvision()


def make(name: str, **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=64, **sizes)
    return transformers.AutoModelForCausalLM.from_config(config)


ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 8,
}
LONG = {**SIZES, "original_max_position_embeddings": 8, "rope_parameters": ROPE, "pad_token_id": 0}
ALIBI = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "alibi": True}
STATES = {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        (lambda: torch.nn.Linear(2, 2), {}, "a model of transformers, not a Linear"),
        (lambda: make_model("Llama"), {"length": 17}, "keeps 16 tokens cannot take 17 at once"),
        (lambda: make_model("Llama"), {"length": 0}, "cannot take 0 at once"),
        (lambda: make_model("Llama"), {"logits": "some"}, "not 'some'"),
        (lambda: make_model("Llama"), {"backend": "qnn"}, "no backend 'qnn'"),
        (lambda: make_model("Llama"), {"quantize": "5w"}, "\"8da4w\", .* not '5w'"),
        (lambda: make_model("Llama"), {"embedding": 3}, "of 8, 4 or 2 bits, not 3"),
        (lambda: make_model("Llama"), {"group": 0}, "a group is a number of weights, not 0"),
        (lambda: make_model("Llama"), {"sdpa": "flash"}, "sdpa is \"custom\" or None, not 'flash'"),
        (lambda: make("Mamba", **STATES), {}, "it does not read recurrent_states_0_0"),
        (lambda: make_model("Llama").to("meta"), {}, "on meta: it has no weights"),
        (lambda: make("Phi3", **LONG), {}, r"more than 8 tokens[\s\S]*instead: context=8, or"),
        (
            lambda: make("Falcon", **ALIBI),
            {},
            "program of it does not take 3 tokens at 0: u0 == 16",
        ),
        (
            lambda: make("MiniMax", **SIZES, num_local_experts=2, num_experts_per_tok=1),
            {},
            "takes no cache of keys, values and states: MiniMax uses cache of its own",
        ),
    ],
)
def test_refused(model: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        lostwax.llm.export(model(), context=16, **options)


def test_layers_that_are_no_whole_groups_stay_floats() -> None:
    from lostwax.llm.quantizing import copy_without_weights, quantize_

    model = make_model("Llama")
    copy = copy_without_weights(model)
    with pytest.warns(UserWarning, match=r"2 layers stay in floats, .*down_proj first[\s\S]*of 32"):
        quantize_(copy, "8da4w", None, 32)
    kinds = {type(each).__name__ for each in copy.parameters()}
    assert kinds == {"Parameter", "IntxUnpackedToInt8Tensor"}
    assert {type(each) for each in model.parameters()} == {torch.nn.Parameter}
    assert copy.model.embed_tokens.weight is model.model.embed_tokens.weight


def test_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(LoadError, match=r"made by torchao, which does not load[\s\S]*pip install"):
        lostwax.llm.export(make_model("Llama"), context=16, quantize="8w")


def test_a_model_that_is_another_with_a_cache_is_refused() -> None:
    model = make_model("Llama")
    attention = type(model.model.layers[0].self_attn)

    class Forgets(attention):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Any, *, past_key_values: Any = None, **others: Any) -> Any:
            if past_key_values is not None:
                hidden_states = hidden_states * 1.1
            return super().forward(hidden_states, past_key_values=past_key_values, **others)

    model.model.layers[0].self_attn.__class__ = Forgets
    with pytest.raises(CaptureError, match="it computes other logits with a cache than without"):
        lostwax.llm.export(model, context=16)


def test_a_program_that_is_not_the_model_is_refused() -> None:
    from lostwax.llm.decoder import Decoder, require_same

    decoder = Decoder(make_model("Llama"), 16)
    with pytest.raises(CaptureError, match="the program of it computes other logits than it does"):
        require_same(decoder, lambda tokens, at: decoder(tokens, at) * 1.01, 16, 16)


def test_a_model_with_an_encoder_is_refused() -> None:
    import transformers

    sizes = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=64, **sizes))
    with pytest.raises(CaptureError, match="T5ForConditionalGeneration has an encoder"):
        lostwax.llm.export(model, context=16)


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, "Linear attends without a mask"),
        ({"position_bias": torch.ones(1)}, "Linear attends with position_bias"),
    ],
)
def test_attention_that_is_not_ours(others: dict[str, Any], text: str) -> None:
    from lostwax.llm.entries import attend

    states = [torch.ones(1, 1, 1, 2)] * 3
    with pytest.raises(CaptureError, match=text):
        attend(torch.nn.Linear(1, 1), *states, None, **others)


def test_a_cache_of_another_kind_is_refused() -> None:
    from transformers.cache_utils import DynamicIndexedLayer

    from lostwax.llm.decoder import Decoder

    decoder = Decoder(make_model("Llama"), 16)
    with pytest.raises(CaptureError, match="layer 3 has a cache of its own kind, DynamicIndexed"):
        decoder._keep(3, DynamicIndexedLayer())


@pytest.mark.parametrize("sdpa", ["custom", None])
def test_positions_that_are_not_there(sdpa: str | None) -> None:
    """ExecuTorch's kernel writes wherever it is told to; and nobody is warned of it in vain."""
    pytest.importorskip("executorch")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*does not check these conditions")
        made = lostwax.llm.export(make_model("Llama"), context=16, length=4, sdpa=sdpa)
    runtime = lostwax.pte.load_runtime(made.buffer)
    for start, count in ((13, 4), (16, 1), (-1, 2), (1 << 40, 1)):
        args = torch.zeros(1, count, dtype=torch.int64), torch.arange(start, start + count)
        with pytest.raises(RuntimeError, match="failed with error"):
            runtime.run(args)
        with pytest.raises((RuntimeError, IndexError)):
            made.program.module()(*args)
    (found,) = runtime.run([torch.zeros(1, 4, dtype=torch.int64), torch.arange(12, 16)])
    assert found.isfinite().all()


def test_the_model_is_left_as_it_was() -> None:
    model = make("Mixtral", **SIZES, num_local_experts=2, num_experts_per_tok=1).train()
    before = model.config.to_dict(), model.get_experts_implementation(), {*vars(model)}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    made = lostwax.llm.export(model, context=8, backend=None, logits="all")
    assert (model.config.to_dict(), model.get_experts_implementation(), {*vars(model)}) == before
    assert model.config._attn_implementation != "lostwax"
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert model.training
    tokens, at = torch.tensor([[5, 6, 7]]), torch.arange(3)
    torch.testing.assert_close(
        made.program.module()(tokens, at), model.eval()(tokens).logits, atol=1e-4, rtol=1e-4
    )


def test_nothing_of_transformers_is_imported_before_it_is_asked_for() -> None:
    asked = "import sys, lostwax; lostwax.llm.export; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count * 2


@pytest.mark.parametrize(
    ("names", "warned"), [(("prefill", "decode"), True), (("start", "forward"), False)]
)
def test_stages_that_share_state_are_told(names: tuple[str, str], warned: bool) -> None:
    module = Counter()
    programs = {name: lostwax.export(module, (torch.ones(1),)) for name in names}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lostwax.to_edge(programs).to_executable()
    texts = [str(each.message) for each in told]
    assert any("'prefill' and 'decode' share state (count)" in text for text in texts) is warned


def test_a_library_that_loads_in_part_says_how_to_get_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError(f"could not import {name}")

    monkeypatch.setitem(sys.modules, "transformers", Broken("transformers"))
    text = r"does not load: could not import PreTrainedModel\n.*pip install 'transformers>=5.23'"
    with pytest.raises(LoadError, match=text):
        lostwax.llm.export("folder", context=16)
