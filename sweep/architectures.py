"""The architectures of the sweep: one line each, small, with random weights and no downloads.

timm's are its own smallest variants on small images; transformers' are built from configurations
of a few layers. Must not import either library: `build` gets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

Call = dict[str, Any]
"""The keyword arguments of an example call; an image model's one input goes by position."""


@dataclass(frozen=True)
class Architecture:
    """One model: its library, its name there, how to make it small, what it is called with."""

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: str = "image"
    side: int = 64
    refused: tuple[str, ...] = ()
    """In these modes ("eval", "train") its Python branches on data, which export may refuse."""
    dtype: torch.dtype = torch.float64
    least: int = 0
    """The least batch that the dynamic program is declared for: 1 or 2 where less is refused."""
    prepares: bool = False
    """Its first call in a mode changes its weights, later ones do not: it is called once before it
    is exported, as the refusal says."""


def _timm(name: str, side: int = 64, **options: Any) -> Architecture:
    return Architecture("timm", name, options, "image", side)


def _hf(
    name: str,
    inputs: str = "text",
    side: int = 32,
    refused: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float64,
    least: int = 0,
    prepares: bool = False,
    **config: Any,
) -> Architecture:
    return Architecture("transformers", name, config, inputs, side, refused, dtype, least, prepares)


# Sizes under the names that most configurations use.
_TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
_DECODER = {**_TINY, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
_VISION = {**_TINY, "image_size": 32, "patch_size": 8}
del _VISION["vocab_size"]
_GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_SPEECH = {
    **_TINY,
    "conv_dim": (32, 32),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "mask_time_prob": 0.0,  # numpy draws the masks
}
_SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "use_cache": False,  # its pair of caches is no pytree
}
_T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}

# Layers are dropped at random in training: `if torch.rand([]) < ...`.
_LAYERDROP = ("train",)

ARCHITECTURES = [
    _timm("resnet18"),
    _timm("resnetv2_18"),
    _timm("res2net50_14w_8s"),
    _timm("resnest14d"),
    _timm("skresnet18"),
    _timm("regnety_002"),
    _timm("densenet121"),
    _timm("dla46_c"),
    _timm("cspresnet50"),
    _timm("repvgg_a0"),
    _timm("selecsls42"),
    _timm("ese_vovnet19b_slim"),
    _timm("hardcorenas_a"),
    _timm("ghostnet_050"),
    _timm("mobilenetv2_050"),
    _timm("mobilenetv3_small_050"),
    _timm("mobilenetv4_conv_small_035"),
    _timm("efficientnet_b0"),
    _timm("tf_efficientnetv2_b0"),
    _timm("rexnet_100"),
    _timm("hrnet_w18_small"),
    _timm("inception_v3", side=139),  # at 96 batch norms see one number of each image
    _timm("convnext_atto"),
    _timm("convnextv2_atto"),
    _timm("convmixer_768_32", side=32),
    _timm("edgenext_xx_small"),
    _timm("fastvit_t8"),
    _timm("repvit_m0_9"),
    _timm("starnet_s1"),
    _timm("mambaout_femto"),
    _timm("poolformer_s12"),
    _timm("mobilevit_xxs"),
    _timm("mobilevitv2_050"),
    _timm("coatnet_nano_rw_224", side=224),
    _timm("maxvit_tiny_tf_224", side=224),
    _timm("botnet26t_256", side=256),
    _timm("halonet26t", side=256),
    _timm("lambda_resnet26t", side=256),
    _timm("levit_128s", side=224),
    _timm("mixer_s32_224", side=224),
    _timm("vit_tiny_patch16_224", img_size=64),
    _timm("deit_tiny_patch16_224", img_size=64),
    _timm("beit_base_patch16_224", img_size=64, depth=2),
    _timm("eva02_tiny_patch14_224", img_size=56, side=56),
    _timm("vit_relpos_small_patch16_224", img_size=64),
    _timm("cait_xxs24_224", img_size=64),
    _timm("convit_tiny", img_size=64),
    _timm("crossvit_tiny_240", side=240),
    _timm("pit_ti_224", side=224),
    _timm("pvt_v2_b0"),
    _timm("tnt_s_patch16_224", img_size=64),
    _timm("twins_svt_small", img_size=64),
    _timm("xcit_nano_12_p16_224", img_size=64),
    _timm("swin_tiny_patch4_window7_224", side=224, depths=(1, 1, 2, 1)),
    _timm("swinv2_tiny_window8_256", side=256, depths=(1, 1, 2, 1)),
    _timm("focalnet_tiny_srf"),
    _timm("davit_tiny"),
    _timm("gcvit_xxtiny", side=224),
    _timm("hiera_tiny_224", side=224),
    _timm("mvitv2_tiny", side=224),
    _timm("sequencer2d_s", side=224),
    _timm("visformer_tiny", side=224),
    _timm("volo_d1_224", side=224),
    _timm("efficientformer_l1", side=224),
    _timm("efficientvit_b0"),
    _timm("tiny_vit_5m_224", side=224),
    _hf("BertModel", "masked", **_TINY),
    _hf("RobertaForSequenceClassification", "masked", **_TINY),
    _hf("DistilBertModel", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
    _hf("AlbertModel", embedding_size=16, **_TINY),
    _hf("ElectraForPreTraining", embedding_size=16, **_TINY),
    _hf("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], **_TINY),
    _hf("MPNetModel", **_TINY),
    _hf("MobileBertModel", embedding_size=16, true_hidden_size=32, intra_bottleneck_size=32,
        **_TINY),
    _hf("ModernBertModel", pad_token_id=0, **_TINY),
    _hf("FNetModel", **{k: v for k, v in _TINY.items() if k != "num_attention_heads"}),
    _hf("XLNetModel", vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=37),
    _hf("YosoModel", **_TINY),
    _hf("MraModel", dtype=torch.float32, least=2, max_position_embeddings=64, **_TINY),
    _hf("RwkvModel", prepares=True, attention_hidden_size=32, context_length=64, use_cache=False,
        **{k: v for k, v in _TINY.items() if k != "num_attention_heads"}),
    _hf("FunnelModel", vocab_size=99, d_model=32, n_head=4, d_head=8, d_inner=37,
        block_sizes=[1, 1], num_decoder_layers=1),
    _hf("GPT2LMHeadModel", **_GPT),
    _hf("GPTNeoXForCausalLM", **_TINY),
    _hf("GPTJForCausalLM", rotary_dim=4, **_GPT),
    _hf("OPTForCausalLM", refused=_LAYERDROP, vocab_size=99, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=37, word_embed_proj_dim=32, max_position_embeddings=64),
    _hf("BloomForCausalLM", vocab_size=99, hidden_size=32, n_layer=2, n_head=4),
    _hf("FalconForCausalLM", **_TINY),
    _hf("MptForCausalLM", vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    _hf("LlamaForCausalLM", "masked", **_DECODER),
    _hf("MistralForCausalLM", "masked", **_DECODER),
    _hf("Qwen2ForCausalLM", **_DECODER),
    _hf("Qwen3ForCausalLM", head_dim=8, **_DECODER),
    _hf("PhiForCausalLM", **_DECODER),
    _hf("Phi3ForCausalLM", **_DECODER),
    _hf("GemmaForCausalLM", head_dim=8, **_DECODER),
    _hf("Gemma2ForCausalLM", head_dim=8, **_DECODER),
    _hf("Gemma3ForCausalLM", head_dim=8, **_DECODER),
    _hf("OlmoForCausalLM", **_DECODER),
    _hf("CohereForCausalLM", **_DECODER),
    _hf("StableLmForCausalLM", **_DECODER),
    _hf("MixtralForCausalLM", dtype=torch.float32,  # its grouped matmul wants rows of 16 bytes
        **{**_DECODER, **_EXPERTS, "intermediate_size": 32}),
    _hf("Qwen3MoeForCausalLM", dtype=torch.float32, moe_intermediate_size=32, head_dim=8,
        **{**_DECODER, **_EXPERTS}),
    _hf("MambaForCausalLM", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8,
        use_cache=False),
    _hf("RecurrentGemmaForCausalLM", least=2, lru_width=32, attention_window_size=16,
        num_key_value_heads=1, pad_token_id=0, use_cache=False,
        **{**_TINY, "num_hidden_layers": 3}),
    _hf("T5ForConditionalGeneration", "seq2seq", **_T5),
    _hf("BartForConditionalGeneration", "seq2seq", refused=_LAYERDROP, **_SEQ2SEQ),
    _hf("PegasusForConditionalGeneration", "seq2seq", refused=_LAYERDROP, **_SEQ2SEQ),
    _hf("WhisperModel", "mel", side=60, refused=_LAYERDROP, num_mel_bins=16,
        max_source_positions=30, **_SEQ2SEQ),
    _hf("ViTModel", "pixels", **_VISION),
    _hf("DeiTModel", "pixels", **_VISION),
    _hf("Dinov2Model", "pixels", **_VISION),
    _hf("SiglipVisionModel", "pixels", **_VISION),
    _hf("CLIPVisionModel", "pixels", **_VISION),
    _hf("CLIPTextModel", **_TINY),
    _hf("ConvNextModel", "pixels", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]),
    _hf("SegformerModel", "pixels", side=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4]),
    _hf("SwinModel", "pixels", image_size=32, patch_size=4, window_size=2, embed_dim=16,
        depths=[1, 2], num_heads=[2, 4]),
    _hf("Wav2Vec2Model", "wave", side=1000, refused=_LAYERDROP, **_SPEECH),
    _hf("HubertModel", "wave", side=1000, refused=_LAYERDROP, **_SPEECH),
]  # fmt: skip


def build(architecture: Architecture, timm: Any, transformers: Any) -> nn.Module:
    """The model, with random weights."""
    if architecture.library == "timm":
        return timm.create_model(  # type: ignore[no-any-return]
            architecture.name, pretrained=False, num_classes=10, **architecture.options
        )
    cls = getattr(transformers, architecture.name)
    return cls(cls.config_class(**architecture.options))  # type: ignore[no-any-return]


def example(
    architecture: Architecture, batch: int = 2, length: int = 12
) -> tuple[tuple[Tensor, ...], Call]:
    """Positional and keyword arguments of an example call; `length` is that of texts."""
    side = architecture.side
    match architecture.inputs:
        case "image":
            return (torch.randn(batch, 3, side, side),), {}
        case "pixels":
            return (), {"pixel_values": torch.randn(batch, 3, side, side)}
        case "text":
            return (), {"input_ids": tokens(batch, length)}
        case "masked":
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[1:, 8:] = 0
            return (), {"input_ids": tokens(batch, length), "attention_mask": mask}
        case "seq2seq":
            return (), {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, 7)}
        case "mel":
            return (), {
                "input_features": torch.randn(batch, 16, side),
                "decoder_input_ids": tokens(batch, 7),
            }
        case "wave":
            return (), {"input_values": torch.randn(batch, side)}
    raise ValueError(f"no inputs of the kind {architecture.inputs!r}")


def cast(call: Any, dtype: torch.dtype) -> Any:
    """The floating-point tensors of a call in another dtype."""

    def convert(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if floats else value

    return pytree.tree_map(convert, call)


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, 99, (batch, length))
