"""Checkpoints that were quantized before, as transformers' `TorchAoConfig` writes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from sweep.libraries import import_torchvision
from tests.llm.families import make_model

pytest.importorskip("transformers", minversion="5.23")
pytest.importorskip("torchao")
pytest.importorskip("executorch")
import_torchvision()
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def save(folder: Path, dtype: torch.dtype, linear: Any) -> tuple[Path, Any]:
    """The quantized checkpoint of a model, and the model."""
    import torchao.quantization as ao
    from torchao.quantization.granularity import PerAxis
    from transformers import AutoModelForCausalLM, TorchAoConfig

    table = ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    parts = {"_default": linear, "model.embed_tokens": table}
    make_model("Llama", **WIDE).to(dtype).save_pretrained(folder / "floats")
    model = AutoModelForCausalLM.from_pretrained(
        folder / "floats",
        dtype=dtype,
        quantization_config=TorchAoConfig(
            ao.ModuleFqnToConfig(parts), include_input_output_embeddings=True
        ),
    )
    model.save_pretrained(folder / "small")
    return folder / "small", model


def make_linear(**more: Any) -> Any:
    import torchao.quantization as ao
    from torchao.quantization.granularity import PerGroup

    return ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32), **more
    )


def test_a_quantized_checkpoint_says_what_its_model_says(tmp_path: Path) -> None:
    """Half floats, as on the hub; computed in float32, like every checkpoint."""
    linear = make_linear(weight_scale_dtype=torch.bfloat16)
    folder, model = save(tmp_path, torch.bfloat16, linear)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the scales")
        made = lostwax.llm.export(folder, context=40, length=16)
    assert {each.dtype for each in made.model.parameters()} == {torch.float32}
    made.check().raise_on_difference()
    assert len(made.buffer) < 0.5 * 4 * sum(p.numel() for p in model.parameters())
    with pytest.raises(CaptureError, match=r"gives torch.bfloat16, and what is .*\n  instead: mod"):
        lostwax.llm.export(model, context=40)


def test_scales_that_the_backend_has_not_are_rounded_and_told(tmp_path: Path) -> None:
    _, model = save(tmp_path, torch.float32, make_linear())
    scale = model.lm_head.weight.scale.clone()
    with pytest.warns(UserWarning, match="the scales of 15 layers were rounded to bfloat16"):
        made = lostwax.llm.export(model, context=40)
    made.check().raise_on_difference()
    assert torch.equal(model.lm_head.weight.scale, scale), "the model stays as it is"
    assert not torch.equal(made.model.lm_head.weight.scale, scale)


def test_what_is_quantized_is_computed_in_float32() -> None:
    model = make_model("Llama", **WIDE).to(torch.bfloat16)
    with pytest.raises(CaptureError, match="what is quantized is computed in float32"):
        lostwax.llm.export(model, context=8, quantize="8da4w")
