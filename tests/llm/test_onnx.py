"""Decoders as ONNX models with keys and values as inputs and results: greedy tokens in a plain loop
around onnxruntime equal those of the model, also of texts that are padded on the left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from lostwax.errors import CaptureError
from sweep.libraries import load_transformers
from tests.onnx.running import onnx, onnxruntime

pytest.importorskip("transformers", minversion="5.23")
transformers = load_transformers()

SMALL: Any = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
WINDOW: Any = {"head_dim": 16, "sliding_window": 8}
CONFIGS: dict[str, Any] = {
    "Llama": SMALL,
    "Gemma2": SMALL | WINDOW,
    "Gemma3Text": SMALL | WINDOW,
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "eos_token_id": None},
}


def make_model(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def generate(folder: Path, ids: Tensor, mask: Tensor, count: int) -> Tensor:
    """As onnxruntime-genai and optimum call it, by the names in its configuration."""
    told = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    session = onnxruntime.InferenceSession(folder / told["filename"])
    shapes = {each.name: each.shape for each in session.get_inputs()}
    given, found = told["inputs"], told["outputs"]
    past = {
        given[f"past_{part}_names"] % i: numpy.zeros(
            (len(ids), told["num_key_value_heads"], 0, told["head_size"]), "float32"
        )
        for i in range(told["num_hidden_layers"])
        for part in ("key", "value")
    }
    assert shapes.keys() == {*given.values()} - {v for v in given.values() if "%d" in v} | {*past}
    tokens = now = ids.numpy()
    seen = mask.numpy()
    for _ in range(count):
        feed = {given["input_ids"]: now, given["attention_mask"]: seen, **past}
        if "position_ids" in given:
            places = numpy.maximum(seen.cumsum(-1) - 1, 0)
            feed[given["position_ids"]] = places[:, -now.shape[1] :]
        names = [each.name for each in session.get_outputs()]
        results = dict(zip(names, session.run(None, feed), strict=True))
        past = {
            given[f"past_{part}_names"] % i: results[found[f"present_{part}_names"] % i]
            for i in range(told["num_hidden_layers"])
            for part in ("key", "value")
        }
        now = results[found["logits"]][:, -1].argmax(-1)[:, None]
        tokens = numpy.concatenate([tokens, now], 1)
        seen = numpy.concatenate([seen, numpy.ones_like(now)], 1)
    return torch.from_numpy(tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_in_a_loop_around_onnxruntime(name: str, tmp_path: Path) -> None:
    from lostwax.llm.onnx import export_onnx

    model = make_model(name)
    export_onnx(model, tmp_path)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    ids = torch.randint(3, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :2] = ids[0, :2] = 0
    wanted = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False)
    assert torch.equal(generate(tmp_path, ids, mask, 20), wanted)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 100


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_tokens_of_onnxruntime_genai(name: str, tmp_path: Path) -> None:
    """What reads `genai_config.json` itself; Linux has its wheels for x86-64 alone."""
    from lostwax.llm.onnx import export_onnx

    genai = pytest.importorskip("onnxruntime_genai")
    model = make_model(name)
    export_onnx(model, tmp_path)
    loaded = genai.Model(str(tmp_path))
    for length in (1, 17):
        ids = torch.randint(3, 100, (1, length), generator=torch.Generator().manual_seed(1))
        options = genai.GeneratorParams(loaded)
        options.set_search_options(max_length=length + 20, do_sample=False)
        generator = genai.Generator(loaded, options)
        generator.append_tokens(ids[0].int().numpy())
        while not generator.is_done():
            generator.generate_next_token()
        wanted = model.generate(ids, max_new_tokens=20, do_sample=False)
        assert [int(token) for token in generator.get_sequence(0)] == wanted[0].tolist()


def test_attention_positions_and_norms_are_operators(tmp_path: Path) -> None:
    from lostwax.llm.onnx import export_onnx

    nodes = [node.op_type for node in export_onnx(make_model("Llama"), tmp_path).to_onnx().graph]
    counts = {op: nodes.count(op) for op in ("Attention", "RotaryEmbedding", "RMSNormalization")}
    assert counts == {"Attention": 2, "RotaryEmbedding": 4, "RMSNormalization": 5}


def test_a_model_that_keeps_states_is_refused(tmp_path: Path) -> None:
    from lostwax.llm.onnx import export_onnx

    config = transformers.Mamba2Config(
        hidden_size=32, num_heads=4, head_dim=16, num_hidden_layers=1, vocab_size=50, n_groups=1,
        state_size=8,
    )  # fmt: skip
    with pytest.raises(CaptureError, match=r"no cache[\s\S]*instead: |keeps other things"):
        export_onnx(transformers.Mamba2ForCausalLM(config).eval(), tmp_path)
