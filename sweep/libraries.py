"""Imports timm and transformers, quietly and without a network.

timm imports torchvision, whose wheel may not carry its compiled operators for the torch at hand. No
model of the sweep calls them, but torchvision registers fakes for two of them at import: then we
declare the two, so that the import goes through. Must not touch lostwax.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

_DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []  # a torch.library.Library takes its operators with it when it dies


@cache
def load() -> tuple[ModuleType, ModuleType]:
    """timm and transformers."""
    return load_timm(), load_transformers()


def load_timm() -> ModuleType:
    return _load("timm")


def load_transformers() -> ModuleType:
    transformers = _load("transformers")
    register_caches()
    return transformers


def register_caches() -> None:
    """Caches among a decoder's outputs: transformers leaves the registration to the user."""
    import_module("transformers.integrations.executorch").register_dynamic_cache_export_support()


def _load(name: str) -> ModuleType:
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    # transformers imports torchao where it finds it, and that imports torch's compiler: what either
    # exporter imports by itself would not be seen.
    sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]
    try:
        if find_spec("torchvision") is not None:  # transformers goes without, timm says why not
            import_torchvision()
        return import_module(name)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: `make sweep` installs it") from error


def import_torchvision() -> None:
    """Import torchvision, which transformers imports where it finds it, with its operators declared
    if the torch that is here is not the one they were built for."""
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for schema in _DECLARED:
            library.define(schema)
        _libraries.append(library)
        import_module("torchvision")
