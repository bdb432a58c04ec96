"""Models of timm and transformers, with random weights and without a network; with
`?pretrained=true`, those of timm with trained ones, which timm fetches."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from lostwax.cli.plugins import check_library
from lostwax.errors import CommandError, did_you_mean

BATCH, LENGTH = 2, 8


def build_timm(name: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """A model of timm, on a batch of two images of its size."""
    options = {"pretrained": False, **options}
    timm = import_library("timm", offline=not options["pretrained"] or not _is_hub_there())
    if not timm.is_model(name.partition(".")[0]):  # `resnet50.a1_in1k` says which weights
        raise CommandError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    try:
        model = timm.create_model(name, **options).eval()
    except Exception as error:
        if strange := _UNKNOWN.search(str(error)):
            hint = did_you_mean(strange[1], ("pretrained", "num_classes", "in_chans", "img_size"))
            raise CommandError(f"timm:{name} has no option {strange[1]!r}{hint}") from error
        if not options["pretrained"]:
            raise
        raise _make_not_fetched(f"timm:{name}", error) from error
    channels, *side = model.default_cfg.get("input_size", (3, 224, 224))
    channels = options.get("in_chans", channels)
    side = options.get("img_size", side)
    sides = side if isinstance(side, (list, tuple)) else (side, side)
    return model, (torch.randn(BATCH, channels, *sides),)


_TINY = {
    "vocab_size": 99,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 32),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "encoder_layers",
            "decoder_layers",
            "n_layer",
            "n_layers",
            "num_layers",
        ),
        2,
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 37),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size"), 8),
    "num_key_value_heads": 2,
    "image_size": 32,
}
"""Small sizes, under the names that most configurations use."""


def build_transformers(name: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """A model of transformers from its configuration: by its type (`llama`), by its class
    (`LlamaForCausalLM`) or by a file `config.json`. `tiny` makes it small."""
    transformers = import_library("transformers")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    tiny, given = options.pop("tiny", False), {}
    if not options.get("pretrained", True):
        del options["pretrained"]
    build = transformers.AutoModel.from_config
    if name.endswith(".json") or Path(name).is_dir():
        if not Path(name).exists():
            raise CommandError(f"there is no file {name!r}")
        config = transformers.AutoConfig.from_pretrained(name)
        given = config.to_dict()
    elif name in known:
        config = transformers.AutoConfig.for_model(name)
    elif hasattr(getattr(transformers, name, None), "config_class"):
        build = getattr(transformers, name)
        config = build.config_class()
    else:
        raise CommandError(f"transformers has no model {name!r}{did_you_mean(name, known)}")
    if options.get("pretrained"):
        raise CommandError(
            f"transformers:{name}?pretrained: there are many sets of weights for it\n  instead: "
            "hf download ORGANIZATION/MODEL --local-dir model; hf:model"
        )
    strange = [key for key in options if not hasattr(config, key)]
    if strange:
        hint = did_you_mean(strange[0], vars(config))
        raise CommandError(f"the configuration of {name!r} has no {strange[0]!r}{hint}")
    small = {key: size for key, size in _TINY.items() if tiny and hasattr(config, key)}
    plain = {"use_cache": False} if hasattr(config, "use_cache") else {}
    config = type(config)(
        **{**given, **plain, **small, **options}
    )  # derived sizes are computed again
    model = build(config).eval()
    if not options.get("return_dict"):
        return_tuples(model)
    return model, (), make_inputs(model, name)


def return_tuples(model: Any) -> Any:
    """The model, made to return tuples: a file with transformers' own classes in it could only be
    loaded beside transformers. What is inside of a model reads results by their names: those
    stay."""
    model.register_forward_hook(_return_tuple)
    return model


def _return_tuple(model: Any, args: Any, result: Any) -> Any:
    return result.to_tuple() if hasattr(result, "to_tuple") else result


def make_inputs(model: Any, name: str) -> dict[str, Any]:
    """A batch of two texts, images or sounds, whichever a model of transformers is for."""
    config, main = model.config, model.main_input_name
    if main == "input_ids":
        high = getattr(config, "vocab_size", None) or 99
        ids = torch.randint(3, high, (BATCH, LENGTH))
        more = {"decoder_input_ids": ids.clone()} if config.is_encoder_decoder else {}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
    if main == "pixel_values" and hasattr(config, "image_size"):
        side = config.image_size
        sides = side if isinstance(side, (list, tuple)) else (side, side)
        return {"pixel_values": torch.randn(BATCH, getattr(config, "num_channels", 3), *sides)}
    if main == "input_values":
        return {"input_values": torch.randn(BATCH, 4000)}
    raise CommandError(
        f"nothing is known of what {name!r} is called with: its main input is {main!r}\n"
        "  instead: a factory of your own, which returns module, args, kwargs"
    )


_declared: list[Any] = []  # a torch.library.Library takes its operators with it when it dies


_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")


def _is_hub_there() -> bool:
    """Can the hub's name be found? Its library would try for a minute."""
    if getproxies():  # who has a proxy need not know the name
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _make_not_fetched(name: str, error: Exception) -> CommandError:
    what = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CommandError(
        f"{name}: its trained weights cannot be had: {what}\n"
        "  instead: without ?pretrained=true, and --weights FILE with what you have fetched"
    )


def import_library(name: str, offline: bool = True) -> Any:
    """A library, which is not to look for anything in a network unless it was asked to."""
    if offline:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    check_library(name)
    if find_spec("torchvision") is not None:
        _import_torchvision()
    return importlib.import_module(name)


def _import_torchvision() -> None:
    """Both libraries import torchvision if it is there. If its compiled operators do not fit this
    torch, it fails where it registers fakes for them: we declare them, as no model calls them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for each in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[each]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        importlib.import_module("torchvision")
