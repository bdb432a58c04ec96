"""The options of all commands that build models. Must not import torch, nor what does."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, **more)


BUILDING = {
    "weights": (
        Annotated[
            str,
            option(
                "--weights", help="Trained weights: a .safetensors or .pth file.", metavar="FILE"
            ),
        ],
        "",
    ),
    "shapes": (
        Annotated[
            list[str] | None,
            option(
                "--input-shape",
                help="An example input: x=1x3x224x224, ids=1x8:int64, or in order 1x3x224x224.",
                metavar="SHAPE",
            ),
        ],
        None,
    ),
    "dtype": (
        Annotated[
            str, option("--dtype", help="Of the weights and inputs: float16.", metavar="DTYPE")
        ],
        "",
    ),
    "device": (
        Annotated[str, option("--device", help="Where they are: cuda.", metavar="DEVICE")],
        "",
    ),
    "seed": (
        Annotated[int, option("--seed", help="For random weights and inputs.", metavar="N")],
        0,
    ),
}
"""The options of all commands that build models, with their defaults."""
