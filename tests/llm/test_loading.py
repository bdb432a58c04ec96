"""Checkpoints: weights that are views of their files until it is written, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lostwax
from lostwax.classes import TENSORS
from lostwax.errors import CaptureError, LoadError
from sweep.libraries import import_torchvision
from tests.llm.families import make_model

pytest.importorskip("transformers", minversion="5.23")
import_torchvision()
TOKENS = torch.tensor([[5, 6, 7]]), torch.arange(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in several files, with one table for both ends."""
    make_model("Llama 3").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    return tmp_path


def find_places(made: Any) -> dict[int, int]:
    """Where the chunks of a file lie in memory, and how large they are."""
    chunks = [chunk for chunk in made.executable._chunks if isinstance(chunk, memoryview)]
    arrays = [torch.frombuffer(chunk, dtype=torch.uint8) for chunk in chunks if len(chunk)]
    return {array.data_ptr(): len(array) for array in arrays}


def test_weights_are_read_when_the_file_is_written(folder: Path) -> None:
    made = lostwax.llm.export(folder, context=16)
    places = find_places(made)
    for name, weight in made.model.named_parameters():
        if weight.ndim == 2:  # the others are folded into what is around them, or are small
            assert places.get(weight.data_ptr()) == weight.nbytes, f"{name} was copied"
    made.save(folder / "m.pte")
    data = (folder / "m.pte").read_bytes()
    assert data == made.buffer
    assert len(data) == made.executable.size == sum(made.executable.sizes.values())
    tables = [w for w in made.model.parameters() if w.shape == made.model.lm_head.weight.shape]
    assert data.count(tables[0].detach().numpy().tobytes()) == 1
    from lostwax.llm.runner import read_facts

    assert read_facts(str(folder / "m.pte"))["get_max_context_len"] == 16
    with torch.no_grad():
        wanted = make_model("Llama 3")(TOKENS[0]).logits[:, -1:]
    torch.testing.assert_close(made.program.module()(*TOKENS), wanted, atol=1e-4, rtol=1e-4)


def test_a_given_model_may_change_after_it(folder: Path) -> None:
    model = make_model("Llama")
    made, late = (lostwax.llm.export(model, context=16, reads_late=late) for late in (False, True))
    before = made.buffer
    assert late.buffer == before
    model.model.embed_tokens.weight.fill_(0)
    assert made.buffer == before
    assert late.buffer != before


def test_a_quantized_model_may_change_after_it() -> None:
    """What was packed is nobody else's, and is not copied; the rest is."""
    pytest.importorskip("torchao")
    made = lostwax.llm.export(make_model("Llama 3"), context=16, quantize="4w", embedding=8)
    before = made.buffer
    for weight in made.model.parameters():
        for part in (weight, getattr(weight, "qdata", weight), getattr(weight, "scale", weight)):
            if type(part) in TENSORS:
                part.data.fill_(1)
    assert made.buffer == before


def test_weights_of_few_bits_become_float32_unless_asked(tmp_path: Path) -> None:
    make_model("Llama").to(torch.bfloat16).save_pretrained(tmp_path)
    made = lostwax.llm.export(str(tmp_path), context=8)
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}
    kept = lostwax.llm.export(str(tmp_path), context=8, dtype=torch.bfloat16)
    assert {p.dtype for p in kept.model.parameters()} == {torch.bfloat16}
    assert kept.executable.size < made.executable.size
    with pytest.raises(CaptureError, match=r"stays as it is\n  instead: model.to\(torch.float16"):
        lostwax.llm.export(make_model("Llama"), context=8, dtype=torch.float16)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"num_hidden_layers": 3},
            "9 of the weights of LlamaForCausalLM are not in the file",
        ),
        ({"intermediate_size": 40}, "have other sizes there, and would be random: model.layers.0"),
    ],
)
def test_weights_that_would_be_random(folder: Path, changes: dict[str, int], told: str) -> None:
    change(folder, changes)
    with pytest.raises(LoadError, match=told):
        lostwax.llm.export(folder, context=8)


def test_weights_without_a_place_are_told(folder: Path) -> None:
    change(folder, {"num_hidden_layers": 1})
    with pytest.warns(UserWarning, match="9 weights of the file have no place in LlamaForCausalLM"):
        lostwax.llm.export(folder, context=8)


def change(folder: Path, changes: dict[str, int]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", ["export", "export_parts"])
def test_what_is_no_checkpoint_is_told(name: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(LoadError, match=r"is no checkpoint: (.|\n)*instead: a folder that"):
            getattr(lostwax.llm, name)(path, context=8)


def test_a_context_without_positions() -> None:
    with pytest.raises(CaptureError, match="GPT2LMHeadModel has no position 128: it was made for"):
        lostwax.llm.export(make_model("GPT-2"), context=129)


def test_a_checked_model_is_that_which_was_exported() -> None:
    pytest.importorskip("executorch")
    made = lostwax.llm.export(make_model("Llama"), context=24)
    assert made.check().counts == {1: 23, 2: 22, 17: 7}
    told = made.describe()
    assert told["bytes"] == len(made.buffer)
    assert told["cache_bytes"] == 2 * 2 * 24 * 16 * 4
    assert told["bytes_by_part"]["weights"] >= 256 * 32 * 4
    assert f"{told['bytes']:,} bytes, for 24 tokens, 24 at once\n  weights of " in made.report()


def test_floats_of_what_is_quantized_are_kept_by_nobody(tmp_path: Path) -> None:
    """Also where the caller still holds the model: its weights stay views of the file."""
    pytest.importorskip("torchao")
    import transformers

    make_model("Llama").to(torch.bfloat16).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    options: Any = {"quantize": "8w", "embedding": 8, "dtype": torch.float32}
    made = lostwax.llm.export(model, context=8, reads_late=True, **options)
    assert {p.dtype for n, p in model.named_parameters() if "norm" not in n} == {torch.bfloat16}
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}
