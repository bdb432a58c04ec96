"""`hf:DIR`: folders as Hugging Face's hub has them."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import lostwax as face
from lostwax.cli.models.factories import build_model
from lostwax.cli.models.hugging_face import find_checkpoint, load_checkpoint
from lostwax.errors import CommandError

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers"
)
SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 37}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder that transformers itself wrote, in parts, in bfloat16."""
    from lostwax.cli.models.libraries import import_library

    transformers = import_library("transformers")
    folder = tmp_path_factory.mktemp("hub") / "llama"
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).bfloat16()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    return folder


@pytest.fixture
def llama(saved, folder) -> Path:
    shutil.copytree(saved, folder / "llama")
    return folder / "llama"


@needs_transformers
def test_a_folder_is_exported_with_its_weights(lostwax, saved, llama):
    transformers = pytest.importorskip("transformers")
    ran = lostwax("export", "hf:llama", "-o", "m.pt2", "-d", "1=length:2..64", "--json")
    assert (ran.code, ran.json["warnings"]) == (0, [])
    want = transformers.LlamaForCausalLM.from_pretrained(saved)
    ids = torch.arange(3, 9).reshape(1, 6).repeat(2, 1)
    mask = torch.ones_like(ids)
    program = face.load("m.pt2")
    for name, weight in want.state_dict().items():
        assert torch.equal(program.state_dict[name], weight)
    got = program.module()(input_ids=ids, attention_mask=mask)[0]
    near = {"atol": 0.01, "rtol": 0.02}  # eager leaves out a mask of ones: other sums
    torch.testing.assert_close(got, want(ids, attention_mask=mask, use_cache=False)[0], **near)


@needs_transformers
def test_without_weights_they_are_random_and_that_is_said(lostwax, llama):
    for file in llama.glob("*.safetensors*"):
        file.unlink()
    for name in ("hf:llama", "hf:llama/config.json?num_hidden_layers=1"):
        with pytest.warns(UserWarning, match="has no weights: the model's are random"):
            model = build_model(name)
        assert model.module.dtype == torch.bfloat16
        assert len(model.module.model.layers) == (1 if "?" in name else 2)
    ran = lostwax("export", name, "-o", "m.pt2")
    assert ran.code == 0
    assert ran.err.startswith("warning: hf:llama/config.json has no weights"), ran.err


@needs_transformers
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"architecture": "LlamaForQuestionAnswering"}, "are not in the file, and would be random"),
        ({"intermediate_size": 40}, "have other sizes there, and would be random: model.layers.0"),
        ({"architecture": "LlamaFor"}, r"has no class 'LlamaFor' \(did you mean 'Llama"),
        ({"hiden_size": 3}, r"has no 'hiden_size' \(did you mean 'hidden_size'"),
    ],
)
def test_weights_that_would_be_random_are_refused(llama, options, told):
    with pytest.raises(CommandError, match=told):
        load_checkpoint("llama", options)


@needs_transformers
def test_weights_without_a_place_are_told(llama):
    with pytest.warns(UserWarning, match="9 weights of the file have no place in Llama"):
        loaded = load_checkpoint("llama", {"num_hidden_layers": 1})
    assert loaded.inputs["input_ids"].dtype == torch.int64


def _break(folder: Path, how: str) -> None:
    part = min(folder.glob("*.safetensors"))
    if how == "config":
        (folder / "config.json").write_text("{")
    elif how == "list":
        (folder / "config.json").write_text("[]")
    elif how == "no config":
        (folder / "config.json").unlink()
    elif how == "type":
        (folder / "config.json").write_text(
            json.dumps({"model_type": "lama", "auto_map": {"a": 1}})
        )
    elif how == "part":
        part.unlink()
    elif how == "pointer":
        part.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    elif how == "cut":
        part.write_bytes(part.read_bytes()[:200])
    elif how == "names":
        (folder / "model.safetensors.index.json").unlink()


@pytest.mark.parametrize(
    ("how", "told", "needs"),
    [
        ("config", "config.json is no JSON: .*\n  instead: fetch the file again", False),
        ("list", "config.json is no object of JSON", False),
        ("no config", "the folder has no config.json\n  instead: a folder that save_pretr", False),
        ("part", "model-00001-of.* is missing, a part of the weights\n  instead: fetch", False),
        (
            "pointer",
            "is a pointer of git-lfs, not the weights\n  instead: git -C .* lfs pull",
            False,
        ),
        (
            "names",
            "but no model.safetensors, .*\n  instead: hf:.*/config.json and --weights",
            False,
        ),
        ("type", "model_type 'lama', .*code of its own, which is not run.*'llama'", True),
        ("cut", "the weights cannot be read: .*\n  instead: fetch the folder again, whole", True),
    ],
)
def test_a_folder_that_is_not_whole(tmp_path, request, how, told, needs):
    if needs:
        pytest.importorskip("transformers")
        shutil.copytree(request.getfixturevalue("saved"), tmp_path, dirs_exist_ok=True)
    else:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        part = tmp_path / "model-00001-of-00001.safetensors"
        part.write_bytes(b"weights")
        listed = {"weight_map": {"a": part.name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listed))
    _break(tmp_path, how)
    with pytest.raises(CommandError, match=f"(?s){told}"):
        (load_checkpoint if needs else find_checkpoint)(str(tmp_path))


def test_a_folder_that_is_not_here(lostwax, folder):
    ran = lostwax("export", "hf:meta-llama/Llama-3.2-1B")
    assert ran.code == 2
    assert "instead: hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B" in ran.err
