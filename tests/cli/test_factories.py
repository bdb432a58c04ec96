"""Models by name."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch

from lostwax.cli.models.factories import build_model
from lostwax.cli.models.names import Building
from lostwax.cli.models.sizes import read_dynamic
from lostwax.errors import CommandError


def test_options_and_seeds(folder):
    model = build_model("nets.py:tiny?wide=5", Building(3))
    assert model.module.first.out_features == 5
    assert torch.equal(build_model("nets.py:tiny?wide=5", Building(3)).args[0], model.args[0])
    assert not torch.equal(build_model("nets.py:tiny?wide=5", Building(4)).args[0], model.args[0])


def test_a_module_in_the_working_directory(folder):
    (folder / "own_nets.py").write_text((folder / "nets.py").read_text())
    assert build_model("own_nets:scaled").kwargs.keys() == {"scale"}


def test_sizes_that_vary_are_those_of_the_first_size(folder):
    model = build_model("nets.py:scaled")
    spec = read_dynamic(["batch", "x.-1=width:4..8"], model)
    assert {a: {k: d.__name__ for k, d in s.items()} for a, s in spec.items()} == {
        "x": {0: "batch", 1: "width"},
        "scale": {0: "batch"},
    }
    assert spec["x"][0] is spec["scale"][0]
    assert (spec["x"][1].min, spec["x"][1].max) == (4, 8)


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_timm(lostwax, folder):
    words = ("timm:resnet10t?num_classes=7", "-o", "r.pt2", "--dynamic", "batch")
    assert lostwax("export", *words).code == 0
    with pytest.raises(CommandError, match=r"did you mean 'resnet50'"):
        build_model("timm:resnet-50")


needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers"
)


@needs_transformers
@pytest.mark.parametrize(
    "name",
    [
        "llama?tiny&initializer_range=0.01",
        "LlamaForCausalLM?tiny&num_hidden_layers=1",
        "GPT2LMHeadModel?tiny",
        "Qwen2ForCausalLM?tiny",
        "ViTForImageClassification?tiny",
        "BertForSequenceClassification?tiny&initializer_range=0.01",
        "vit?tiny",
        "t5?tiny",
        "BartForConditionalGeneration?tiny",
        "config.json",
    ],
)
def test_transformers(name, lostwax, folder):
    config = {"model_type": "llama", "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 37}
    (folder / "config.json").write_text(json.dumps(config))
    model = build_model(f"transformers:{name}")
    assert sum(p.numel() for p in model.module.parameters()) < 300_000
    result = model.module(*model.args, **model.kwargs)
    assert type(result) is tuple
    assert lostwax("export", f"transformers:{name}", "-o", "m.pt2").code == 0
    assert b"modeling_outputs" not in (folder / "m.pt2").read_bytes(), "it can be loaded without"


@needs_transformers
def test_transformers_with_a_batch_and_a_length_that_vary(lostwax, folder):
    words = ["transformers:bert?tiny", "-o", "b.pt2", "-d", "batch:1..64", "-d", "1=length:2..64"]
    assert lostwax("export", *words).code == 0
    assert b"modeling_outputs" not in (folder / "b.pt2").read_bytes(), "it can be loaded without"
    with pytest.raises(CommandError, match="has no 'num_layerz'"):
        build_model("transformers:bert?tiny&num_layerz=2")
