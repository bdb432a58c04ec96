"""`export_onnx`: a decoder of transformers as an ONNX model that takes what it keeps, and gives it
back longer, in the form that onnxruntime-genai and optimum's `ORTModelForCausalLM` load.

Inputs are `input_ids`, `attention_mask`, `position_ids` and `past_key_values.N.key`, `.value`;
results `logits` and `present.N.key`, `.value`. Needs `onnx-ir`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from lostwax.ir.program import ExportedProgram
from lostwax.llm.loading import find_model
from lostwax.undo.replace_files import replace_files

MODEL, GENAI = "model.onnx", "genai_config.json"


def export_onnx(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    opset: int = 23,
    external_data: bool | None = None,
    dtype: torch.dtype | None = None,
    matmul_nbits: bool = False,
) -> ExportedProgram:
    """Write a decoder of transformers, a model, the configuration of one or the path of one, into a
    folder: `model.onnx`, `config.json` and `generation_config.json`, which transformers and optimum
    read, and `genai_config.json`, which onnxruntime-genai reads.

    One file serves for prompts and for single tokens, any number of texts side by side, and any
    number of tokens before. `opset`, `external_data` and `matmul_nbits` are those of
    `lostwax.onnx.save`; a model has the `dtype` that it has, and one that is loaded float32, unless
    another is asked for.
    Returns the program that was written.
    """
    from lostwax.onnx.model import to_onnx  # needs onnx-ir
    from lostwax.onnx.saving import save_model

    found, wanted, _ = find_model(model, dtype, False)
    if wanted is not None and wanted is not found.dtype:
        found = found.to(wanted)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    from lostwax.llm.past import PastDecoder, export_decoder  # transformers is loaded by now

    decoder = PastDecoder(found)
    program = export_decoder(decoder)
    made = to_onnx(program, opset=opset, matmul_nbits=matmul_nbits)
    for values, names in (
        (made.graph.inputs, decoder.input_names),
        (made.graph.outputs, decoder.output_names),
    ):
        for value, name in zip(values, names, strict=True):
            value.name = name
    save_model(made, target / MODEL, external_data)
    found.config.save_pretrained(target)
    if getattr(found, "generation_config", None) is not None:
        found.generation_config.save_pretrained(target)
    text = json.dumps(describe_for_genai(found, decoder), indent=2).encode()
    replace_files({str(target / GENAI): lambda file: file.write(text)})
    return program


def describe_for_genai(model: Any, decoder: Any) -> dict[str, Any]:
    """What onnxruntime-genai reads beside the model."""
    config = model.config.get_text_config(decoder=True)
    settings = getattr(model, "generation_config", None)

    def find(name: str, usual: Any = None) -> Any:
        found = getattr(settings, name, None)
        return (
            usual
            if (found := getattr(config, name, None) if found is None else found) is None
            else found
        )

    context = getattr(config, "max_position_embeddings", None) or 2048
    heads = getattr(config, "num_attention_heads", 0)
    keys = decoder.sizes[0][0]
    ends = find("eos_token_id", 0)
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    if decoder.takes_positions:
        names["position_ids"] = "position_ids"
    kept = {
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    given = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    return {
        "model": {
            "type": config.model_type,
            "bos_token_id": find("bos_token_id", 0),
            "eos_token_id": ends,
            "pad_token_id": find("pad_token_id", ends[0] if isinstance(ends, list) else ends),
            "vocab_size": config.vocab_size,
            "context_length": context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": MODEL,
                "head_size": keys[3],
                "hidden_size": config.hidden_size,
                "num_attention_heads": heads,
                "num_key_value_heads": keys[1],
                "num_hidden_layers": len(decoder.sizes),
                "inputs": {**names, **kept},
                "outputs": {"logits": "logits", **given},
            },
        },
        "search": {
            "do_sample": bool(find("do_sample", False)),
            "max_length": context,
            "min_length": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": False,
            "repetition_penalty": 1.0,
            "temperature": float(find("temperature", 1.0)),
            "top_k": int(find("top_k", 50)),
            "top_p": float(find("top_p", 1.0)),
        },
    }
