"""Models of transformers, from what names one: the model, its configuration, or its checkpoint.

Weights of `.safetensors` files are not read here: transformers puts views of the files in their
places, and pages of them come and go as they are computed with. Must not know how programs are
made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from lostwax.errors import CaptureError, LoadError
from lostwax.location import warn

DECODERS = "AutoModelForCausalLM"


def find_model(
    given: Any,
    dtype: torch.dtype | None,
    is_own: bool,
    choose: Callable[[Any], str] = lambda config: DECODERS,
) -> tuple[Any, torch.dtype | None, bool]:
    """The model, the dtype that it is to have, if that is another, and whether we may change it,
    and nobody else does: it was made here, or we are told so. `choose` says by its configuration
    which class of transformers makes it."""
    transformers = import_transformers()
    if isinstance(given, transformers.PreTrainedModel):
        if not is_own and dtype not in (None, given.dtype):
            raise CaptureError(
                f"the model has {given.dtype}, and stays as it is\n  instead: model.to({dtype})"
            )
        return given, dtype, is_own
    if isinstance(given, transformers.PreTrainedConfig):
        made = getattr(transformers, choose(given)).from_config(given)
    elif isinstance(given, (str, os.PathLike)):
        made = _load(getattr(transformers, choose(_read_config(given))), os.fspath(given))
    else:
        raise CaptureError(
            f"a language model is a model of transformers, not a {type(given).__name__}\n"
            "  instead: a model, its configuration, or the path of its checkpoint"
        )
    return made, dtype or torch.float32, True


def _read_config(path: str | os.PathLike[str]) -> Any:
    try:
        return import_transformers().AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:  # no folder, or none with a configuration
        raise LoadError(
            f"{os.fspath(path)} is no checkpoint: {error}\n"
            "  instead: a folder that save_pretrained wrote, or one of the hub's"
        ) from error


def _load(build: Any, path: str) -> Any:
    model, lacking, unread = load_checked(build, path)
    if lacking:
        raise LoadError(f"{path}: {lacking}\n  instead: the configuration of what was saved")
    if unread:
        warn(f"{path}: {unread}")
    return model


def load_checked(build: Any, path: str, **options: Any) -> tuple[Any, str, str]:
    """The model of a checkpoint; which of its weights are not in the files, and would be random;
    and which of the files' it does not read."""
    import_transformers().utils.logging.disable_progress_bar()
    model, told = build.from_pretrained(
        path, **options, output_loading_info=True, ignore_mismatched_sizes=True
    )
    name, lacking, unread = type(model).__name__, "", ""
    for what, how in (
        ("missing_keys", "are not in the file"),
        ("mismatched_keys", "have other sizes there"),
    ):
        names = sorted(str(k[0] if isinstance(k, tuple) else k) for k in told[what])
        if names and not lacking:
            lacking = (
                f"{len(names)} of the weights of {name} {how}, and would be random: {_some(names)}"
            )
    if told["unexpected_keys"]:
        names = sorted(told["unexpected_keys"])
        unread = f"{len(names)} weights of the file have no place in {name}: {_some(names)}"
    return model, lacking, unread


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{', …' * (len(names) > 3)}"


def import_transformers() -> Any:
    try:
        transformers = import_module("transformers")
        _ = transformers.PreTrainedModel, transformers.PreTrainedConfig  # loaded when asked for
        return transformers
    except ImportError as error:
        raise LoadError(
            f"models are those of transformers, which does not load: {error}\n"
            "  instead: pip install 'transformers>=5.23'"
        ) from error
