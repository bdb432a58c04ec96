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
LENGTH = {1: "length"}
IMAGE = {2: "height", 3: "width"}


class Example(NamedTuple):
    """How to build a model and its inputs, in full size and tiny, and for each input the
    dimensions that may vary, by name: equal names are equal sizes; `4*height` is a multiple.

    `dynamic` are those that every export can keep, `more` those that only a good one does: lengths
    that a recurrent layer runs over, sides of images."""

    full: Callable[[], nn.Module]
    tiny: Callable[[], nn.Module]
    full_inputs: Callable[[], tuple[Tensor, ...]]
    tiny_inputs: Callable[[], tuple[Tensor, ...]]
    dynamic: tuple[dict[int, str], ...]
    more: dict[int, str]
    """Of the first input."""


def _of(module: object, *dynamic: dict[int, str], more: dict[int, str] | None = None) -> Example:
    names = ("full", "tiny", "full_inputs", "tiny_inputs")
    return Example(*(getattr(module, name) for name in names), dynamic=dynamic, more=more or {})


MODELS = {
    "resnet50": _of(resnet, BATCH, more=IMAGE),
    "vit": _of(vit, BATCH),
    "bert": _of(bert, BATCH_AND_LENGTH, BATCH_AND_LENGTH, BATCH_AND_LENGTH),
    "llama": _of(llama, BATCH_AND_LENGTH),
    "unet": _of(unet, BATCH, more={2: "4*height", 3: "4*width"}),
    "lstm": _of(lstm, BATCH, more=LENGTH),
    "gpt2": _of(gpt2, BATCH_AND_LENGTH),
    "efficientnet": _of(efficientnet, BATCH, more=IMAGE),
    "swin": _of(swin, BATCH),
}
