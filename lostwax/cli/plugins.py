"""What the command line finds by name: libraries of models, and quantizers. (Backends are found in
`lostwax/late_imports.py`.)

A library of models is a line of `LIBRARIES`; other packages declare theirs as entry points. Must
not import torch, nor what does, before one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from lostwax.errors import CommandError

MODELS = "lostwax.models"
"""The group of entry points: of functions that build models."""


LIBRARIES = {
    "timm": "lostwax.cli.models.libraries:build_timm",
    "transformers": "lostwax.cli.models.libraries:build_transformers",
    "hf": "lostwax.cli.models.hugging_face:build_hf",
}


def list_libraries() -> dict[str, EntryPoint]:
    """All libraries of models, by the name before the colon: each is a function that builds one,
    from its name and options, and returns what a factory does."""
    own = [EntryPoint(name, home, MODELS) for name, home in LIBRARIES.items()]
    return {each.name: each for each in (*entry_points(group=MODELS), *own)}


def check_library(name: str) -> None:
    """Refuse a library that is not installed."""
    if find_spec(name) is None:
        raise CommandError(f"{name} is not installed\n  instead: pip install {name}")


def find_library(name: str) -> Callable[[str, dict[str, Any]], tuple[Any, ...]] | None:
    """What builds the models of a library, by their names and options; None if none is known."""
    found = list_libraries().get(name)
    return None if found is None else found.load()


_XNNPACK = "executorch.backends.xnnpack.quantizer.xnnpack_quantizer"
_X86 = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
QUANTIZERS = {
    "xnnpack": (_XNNPACK, "XNNPACKQuantizer", "get_symmetric_quantization_config"),
    "x86": (_X86, "X86InductorQuantizer", "get_default_x86_inductor_quantization_config"),
}
"""Those with a name: a module, the class, and the function whose options are theirs."""
