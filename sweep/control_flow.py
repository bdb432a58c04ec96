"""Exports models of transformers whose Python asks for data, or for sizes that data decide.

    python -m sweep.control_flow [--only Longformer ...] [--traceback]

Each is exported as it is called, and with a batch and lengths that vary, where branches on sizes
are kept (`control_flow="sizes"`). Each program is called with other inputs than those that it was
captured with, which take other ways through the model's Python (padding, global attention, no
attention at all), the second also at other sizes, and must do what the module does. The table has
a line for each; exits with 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import Dim, export
from sweep.compare import check, run
from sweep.dynamic import aligned
from sweep.libraries import load_transformers

Call = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model: how to make it small, and what it is called with."""

    name: str
    make: Callable[[int, int, int], Call]
    """The inputs of a batch, a length and a kind of data: 0 is what it is captured with."""
    lengths: dict[str, str] = field(default_factory=dict)
    """The inputs whose second size varies, with the name of that length."""
    kinds: int = 2
    sizes: tuple[tuple[int, int], ...] = ((1, 8), (3, 16), (5, 24), (2, 9))
    """Batches and lengths to call the dynamic program with; it is captured at (2, 12)."""
    config: dict[str, Any] = field(default_factory=dict)
    least: int = 1
    shortest: int = 2
    longest: int | None = None
    """The lengths that are declared."""
    fixed: tuple[str, ...] = ()
    """The inputs whose sizes do not vary."""

    def build(self, transformers: Any) -> nn.Module:
        torch.manual_seed(0)
        cls = getattr(transformers, self.name)
        config = {k: v(transformers) if callable(v) else v for k, v in self.config.items()}
        return cls(cls.config_class(**config)).eval()  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------- inputs


def _make_text(batch: int, length: int, kind: int) -> Call:
    mask = torch.ones(batch, length, dtype=torch.long)
    if kind == 0:
        mask[1:, length - 2 :] = 0
    return {"input_ids": _draw_tokens(batch, length), "attention_mask": mask}


def _make_plain(batch: int, length: int, kind: int) -> Call:
    return {"input_ids": _draw_tokens(batch, length)}


def _make_global(batch: int, length: int, kind: int) -> Call:
    """The first token sees all of the text; each text has others that do; none has."""
    chosen = torch.zeros(batch, length, dtype=torch.long)
    if kind == 0:
        chosen[:, 0] = 1
    elif kind == 1:
        for i in range(batch):
            chosen[i, : i + 1] = 1
            chosen[i, length // 2] = 1
    return {**_make_text(batch, length, kind), "global_attention_mask": chosen}


def _make_global_pair(batch: int, length: int, kind: int) -> Call:
    return {
        **_make_global(batch, length, kind),
        "decoder_input_ids": _draw_tokens(batch, length // 2 + 1),
    }


def _make_pair(batch: int, length: int, kind: int) -> Call:
    return {
        **_make_text(batch, length, kind),
        "decoder_input_ids": _draw_tokens(batch, length // 2 + 1),
    }


def _make_pictured(batch: int, length: int, kind: int) -> Call:
    """A text, and a picture that fills its frame or a part of it."""
    filled = torch.ones(batch, 32, 32, dtype=torch.long)
    if kind == 0:
        filled[0, :, 16:] = 0
    return {
        **_make_text(batch, length, kind),
        "pixel_values": torch.randn(batch, 3, 32, 32),
        "pixel_mask": filled,
    }


def _make_images(batch: int, length: int, kind: int) -> Call:
    """The texts have the places of the four patches of two pictures in them."""
    text = _draw_tokens(batch, length)
    places = text.flatten()
    places[kind * 3 : kind * 3 + 8] = 98
    return {"input_ids": text, "pixel_values": torch.randn(2, 3, 16, 16)}


def _draw_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, 90, (batch, length))


_TINY = {
    "vocab_size": 99,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_SPARSE = {**_TINY, "attention_window": [4, 4], "max_position_embeddings": 80, "pad_token_id": 1}
_LENGTH = {"input_ids": "length"}
_MASKED = {**_LENGTH, "attention_mask": "length"}
_GLOBAL = {**_MASKED, "global_attention_mask": "length"}
_DECODED = {"decoder_input_ids": "decoder_length"}

MODELS = [
    Model("LongformerModel", _make_global, _GLOBAL, 3, config=_SPARSE),
    Model(
        "LEDModel", _make_global_pair, {**_GLOBAL, **_DECODED}, 3,
        config={
            "vocab_size": 99, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32, "attention_window": [4, 4], "use_cache": False,
            "max_encoder_position_embeddings": 80, "max_decoder_position_embeddings": 80,
        },
    ),
    # With fewer landmarks than tokens it fails where it is given a mask, in eager, too: and of an
    # exporter transformers asks nothing before it makes one.
    Model(
        "NystromformerModel", _make_text, _MASKED,
        config={**_TINY, "num_landmarks": 64, "segment_means_seq_len": 64,
                "max_position_embeddings": 64},
    ),
    Model(
        "SwitchTransformersModel", _make_pair, {**_MASKED, **_DECODED},
        config={
            "vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2,
            "num_decoder_layers": 2, "num_heads": 2, "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1, "num_experts": 3, "expert_capacity": 4,
            "use_cache": False,
        },
    ),
    # Lists whose length data decide, of tensors of different sizes: [... for u in rows.unique()].
    Model(
        "ViltModel", _make_pictured, _MASKED,
        config={**_TINY, "image_size": 32, "patch_size": 8, "max_position_embeddings": 64},
    ),
    # `for index in range(length)`, whose results are stacked: a `scan`.
    Model(
        "MambaModel", _make_plain, _LENGTH,
        config={"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4,
                "use_cache": False},
    ),
    Model(
        "JambaModel", _make_text, _MASKED,
        config={
            **_TINY, "num_key_value_heads": 2, "use_mamba_kernels": False, "use_cache": False,
            "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
            "expert_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2,
            "mamba_d_state": 4, "mamba_dt_rank": 4,
        },
    ),
    Model(
        "LlavaForConditionalGeneration", _make_images, _LENGTH, fixed=("pixel_values",),
        sizes=((1, 16), (3, 16), (5, 24)),
        config={
            "text_config": lambda t: t.LlamaConfig(
                **_TINY, num_key_value_heads=2, max_position_embeddings=64
            ),
            "vision_config": lambda t: t.CLIPVisionConfig(
                hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                image_size=16, patch_size=8, projection_dim=16,
            ),
            "image_token_id": 98,
            "vision_feature_layer": -2,
        },
    ),
    # It attends in windows, and the last one is shorter: what is appended has other sizes. One
    # window takes texts of any length that it has.
    Model(
        "CanineModel", _make_text, _MASKED, shortest=4, longest=32,
        config={
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 32, "max_position_embeddings": 64, "num_hash_functions": 4,
            "num_hash_buckets": 50, "downsampling_rate": 4, "local_transformer_stride": 32,
        },
    ),
]  # fmt: skip


# ------------------------------------------------------------------------------------------ sweep


def make_call(model: Model, batch: int = 2, length: int = 12, kind: int = 0) -> Call:
    torch.manual_seed(batch * 100 + length + kind)
    return model.make(batch, length, kind)


def sweep_static(model: Model, module: nn.Module) -> None:
    """Raises what is wrong."""
    program = export(module, (), make_call(model)).module()
    for kind in range(model.kinds):
        compare(program, module, make_call(model, kind=kind))


def sweep_dynamic(model: Model, module: nn.Module) -> None:
    call = make_call(model)
    batch = Dim("batch", min=model.least)
    shapes: dict[str, Any] = {name: {} if name in model.fixed else {0: batch} for name in call}
    for name, length in model.lengths.items():
        shapes[name][1] = Dim(length, min=model.shortest, max=model.longest)
    program = export(module, (), call, dynamic_shapes=shapes, control_flow="sizes").module()
    for size in ((2, 12), *model.sizes):
        for kind in range(model.kinds):
            if size[0] >= model.least:
                compare(program, module, make_call(model, *size, kind))


def compare(program: nn.Module, module: nn.Module, call: Call) -> None:
    want, got = run(module, (), call), run(program, (), call)
    got.outputs = [aligned(a, b) for a, b in zip(got.outputs, want.outputs, strict=True)]
    check(got, want)


def describe(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = next((line for line in lines if line.startswith("at ")), "")
    return f"{type(error).__name__}: {lines[0] if lines else '?'} {where}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.control_flow", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of models' names")
    parser.add_argument("--traceback", action="store_true", help="print each failure's traceback")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers = load_transformers()
    wrong = 0
    for model in MODELS:
        if options.only and not any(text.lower() in model.name.lower() for text in options.only):
            continue
        for name, sweep in (("static", sweep_static), ("dynamic", sweep_dynamic)):
            module = model.build(transformers)
            start = time.perf_counter()
            try:
                sweep(model, module)
                verdict = "ok"
            except Exception as error:
                wrong += 1
                verdict = describe(error)
                if options.traceback:
                    traceback.print_exception(error)
            spent = time.perf_counter() - start
            print(f"{model.name:<32}{name:<9}{spent:>6.1f} s  {verdict}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
