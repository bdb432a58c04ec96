"""The models for which `transformers.exporters` patches its own code, small, with random weights.

Nearly all are encoders of images or audio that pack what they are given into one row, and attend to
each piece by itself: a loop over `cu_seqlens`. Must not import transformers: `build` gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

Sizes = Sequence[tuple[int, int, int]]
"""Frames, rows and columns of patches, for each image."""
EXAMPLE: Sizes = ((1, 4, 6), (1, 4, 4))
OTHERS: Sequence[Sizes] = (((1, 4, 4), (1, 4, 6)), ((1, 4, 4), (1, 4, 8)))
"""Other images: as many patches in all, and more of them."""


@dataclass(frozen=True)
class Encoder:
    """One model: where it is in transformers, how to make it small, what it is called with."""

    module: str
    name: str
    inputs: Callable[[Encoder, Sizes], dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    patch: tuple[int, ...] = (3 * 2 * 4 * 4,)
    """The size of one patch."""


def build(encoder: Encoder) -> nn.Module:
    module = import_module(f"transformers.models.{encoder.module}.modeling_{encoder.module}")
    cls = getattr(module, encoder.name)
    model: nn.Module = cls(cls.config_class(**encoder.options))
    for parameter in model.parameters():  # some are left uninitialized
        nn.init.normal_(parameter, std=0.1)
    return model.to(torch.float64).eval()


def _hidden(encoder: Encoder, sizes: Sizes, name: str = "hidden_states") -> dict[str, Any]:
    return {name: _patches(encoder, sizes), "grid_thw": torch.tensor(sizes)}


def _pixels(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    return _hidden(encoder, sizes, "pixel_values")


def _row(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    found = _pixels(encoder, sizes)
    return {**found, "pixel_values": found["pixel_values"].unsqueeze(0)}


def _merged(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    return {**_pixels(encoder, sizes), "merge_sizes": torch.full((len(sizes),), 2)}


def _navit(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    (side,) = encoder.patch
    pixels = torch.randn(1, 3, side, side * _count(sizes), dtype=torch.float64)
    return {"pixel_values": pixels, "target_sizes": torch.tensor(sizes)[:, 1:]}


def _audio(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    """Five frames for each patch."""
    lengths = 5 * torch.tensor(sizes).prod(1)
    features = torch.randn(*encoder.patch, 5 * _count(sizes), dtype=torch.float64)
    return {"input_features": features, "feature_lens": lengths}


def _masked_audio(encoder: Encoder, sizes: Sizes) -> dict[str, Any]:
    """All are padded to whole chunks."""
    lengths = 5 * torch.tensor(sizes).prod(1)
    frames = -(-int(lengths.max()) // 100) * 100
    mask = torch.arange(frames) < lengths[:, None]
    features = torch.randn(len(sizes), *encoder.patch, frames, dtype=torch.float64)
    return {"input_features": features, "input_features_mask": mask.long()}


def _patches(encoder: Encoder, sizes: Sizes) -> torch.Tensor:
    return torch.randn(_count(sizes), *encoder.patch, dtype=torch.float64)


def _count(sizes: Sizes) -> int:
    return int(torch.tensor(sizes).prod(1).sum())


_QWEN = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "intermediate_size": 37,
         "out_hidden_size": 24}  # fmt: skip
_WINDOWS = {**_QWEN, "window_size": 16, "fullatt_block_indexes": [1]}
_TABLE = {**_QWEN, "num_position_embeddings": 64}
_DEEP = {**_TABLE, "deepstack_visual_indexes": [0]}
_GLM = {**_QWEN, "image_size": 32}
_PLAIN = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "patch_size": 4,
          "intermediate_size": 37}  # fmt: skip
_GRID = {**_PLAIN, "pos_emb_height": 8, "pos_emb_width": 8}
_MUSE = {**_GRID, "layer_types": ["window_attention", "full_attention"],
         "max_position_embeddings": 64}  # fmt: skip
_NAVIT = {**_PLAIN, "image_size": 32, "insert_layer_id": 0}
_SPEECH = {"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "d_model": 32,
           "encoder_ffn_dim": 37, "n_window": 50, "output_dim": 24}  # fmt: skip
_CHUNKS = {**_SPEECH, "n_window_infer": 100, "downsample_hidden_size": 8}
_SQUARE = (3, 4, 4)

ENCODERS = [
    Encoder("qwen2_vl", "Qwen2VisionTransformerPretrainedModel", _hidden,
            {"depth": 2, "embed_dim": 32, "hidden_size": 24, "num_heads": 2, "patch_size": 4,
             "mlp_ratio": 2}),
    Encoder("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel", _hidden, _WINDOWS),
    Encoder("qwen3_vl", "Qwen3VLVisionModel", _hidden, _DEEP),
    Encoder("qwen3_vl_moe", "Qwen3VLMoeVisionModel", _hidden, _DEEP),
    Encoder("qwen3_5", "Qwen3_5VisionModel", _hidden, _TABLE),
    Encoder("qwen3_5_moe", "Qwen3_5MoeVisionModel", _hidden, _TABLE),
    Encoder("qwen3_omni_moe", "Qwen3OmniMoeVisionEncoder", _hidden, _DEEP),
    Encoder("glm4v", "Glm4vVisionModel", _hidden, _GLM),
    Encoder("glm4v_moe", "Glm4vMoeVisionModel", _hidden, _GLM),
    Encoder("glm_ocr", "GlmOcrVisionModel", _hidden, _GLM),
    Encoder("ernie4_5_vl_moe", "Ernie4_5_VLMoeVisionTransformerPretrainedModel", _hidden,
            {k: v for k, v in _QWEN.items() if k != "out_hidden_size"}, (3 * 4 * 4,)),
    Encoder("cohere_compass", "CohereCompassVisionModel", _hidden, _DEEP),
    Encoder("exaone4_5", "Exaone4_5_VisionModel", _hidden,
            {**_WINDOWS, "num_heads": 4, "num_key_value_heads": 2}),
    Encoder("qwen2_5_omni", "Qwen2_5OmniVisionEncoder", _hidden, _WINDOWS),
    Encoder("kimi_k25", "Kimi_K25VisionModel", _pixels, _GRID, _SQUARE),
    Encoder("muse_glimmer", "MuseGlimmerVisionModel", _pixels, _MUSE),
    Encoder("muse_spark", "MuseSparkVisionModel", _pixels, _MUSE),
    Encoder("video_llama_3", "VideoLlama3VisionModel", _merged, _PLAIN, _SQUARE),
    Encoder("paddleocr_vl", "PaddleOCRVisionModel", _row, {**_PLAIN, "image_size": 32}, _SQUARE),
    Encoder("minicpm_ocr", "MiniCPMOcrVisionModel", _navit, _NAVIT, (4,)),
    Encoder("minicpmv4_6", "MiniCPMV4_6VisionModel", _navit, _NAVIT, (4,)),
    Encoder("minicpmv4_7", "MiniCPMV4_7VisionModel", _navit, _NAVIT, (4,)),
    Encoder("qwen2_5_omni", "Qwen2_5OmniAudioEncoder", _audio, _SPEECH, (16,)),
    Encoder("qwen3_omni_moe", "Qwen3OmniMoeAudioEncoder", _audio, _CHUNKS, (16,)),
    Encoder("qwen3_asr", "Qwen3ASREncoder", _masked_audio, _CHUNKS, (16,)),
]  # fmt: skip
