"""Models in plain torch with random weights: nothing is downloaded, nothing but torch is imported.

    from examples.models import MODELS
    model, inputs = MODELS["resnet50"].tiny(), MODELS["resnet50"].tiny_inputs()

The demo, the benchmarks and the tests take them from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from examples.models import bert, efficientnet, gpt2, llama, lstm, resnet, swin, unet, vit

BATCH = {0: "batch"}
BATCH_AND_LENGTH = {0: "batch", 1: "length"}


class Example(NamedTuple):
    """How to build a model and its inputs, in full size and tiny, and for each input the
    dimensions that may vary, by name: equal names are equal sizes."""

    full: Callable[[], nn.Module]
    tiny: Callable[[], nn.Module]
    full_inputs: Callable[[], tuple[Tensor, ...]]
    tiny_inputs: Callable[[], tuple[Tensor, ...]]
    dynamic: tuple[dict[int, str], ...]


def _of(module: object, *dynamic: dict[int, str]) -> Example:
    names = ("full", "tiny", "full_inputs", "tiny_inputs")
    return Example(*(getattr(module, name) for name in names), dynamic=dynamic)


MODELS = {
    "resnet50": _of(resnet, BATCH),
    "vit": _of(vit, BATCH),
    "bert": _of(bert, BATCH_AND_LENGTH, BATCH_AND_LENGTH, BATCH_AND_LENGTH),
    "llama": _of(llama, BATCH_AND_LENGTH),
    "unet": _of(unet, BATCH),
    "lstm": _of(lstm, BATCH),
    "gpt2": _of(gpt2, BATCH_AND_LENGTH),
    "efficientnet": _of(efficientnet, BATCH),
    "swin": _of(swin, BATCH),
}
