"""Files that every version of torch writes, by `torch.export.save` and by `lostwax.save`, kept in
`corpus/`: what one version writes, others read. Anew for the torch at hand, in its own folder:

    python -m tests.pt2.corpus
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import lostwax

FOLDER = Path(__file__).parent / "corpus"


class Linear(nn.Module):
    """A dynamic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Counting(nn.Module):
    """State that is written, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.offset = torch.tensor([1.0, 2.0])

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(x.sum())
        return x * self.count + self.offset


class Sizes(nn.Module):
    """Sizes in arithmetic, trees, and results that are no tensors."""

    def forward(self, x: Tensor, more: dict[str, Tensor]) -> dict[str, Any]:
        n = x.shape[0]
        return {
            "flat": x.reshape(n * 2, -1) + more["y"].mean(),
            "places": torch.arange(n, device=x.device) * 2,
            "count": n * x.shape[1] + 1,
            "rest": (True, 1.5, None),
        }


class Program(NamedTuple):
    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    other: tuple[Any, ...]
    """Arguments of other sizes, where sizes vary."""
    dynamic: Callable[[Any], Any]
    """The dynamic_shapes, of a class `Dim`."""


def numbers(*size: int) -> Tensor:
    count = torch.Size(size).numel()
    return torch.linspace(-1, 1, count).reshape(size)


PROGRAMS = {
    "linear": Program(
        Linear, (numbers(4, 3),), (numbers(7, 3),), lambda dim: {"x": {0: dim("batch", max=64)}}
    ),
    "counting": Program(Counting, (numbers(3, 2),), (numbers(3, 2),), lambda dim: None),
    "sizes": Program(
        Sizes,
        (numbers(4, 6), {"y": numbers(5)}),
        (numbers(6, 6), {"y": numbers(2)}),
        lambda dim: {"x": {0: dim("n", min=2, max=32)}, "more": {"y": {0: dim("m")}}},
    ),
}


def module(name: str) -> nn.Module:
    """The module, with the same weights everywhere."""
    made = PROGRAMS[name].make()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(numbers(*parameter.shape))
    return made


def write() -> None:
    folder = FOLDER / ".".join(torch.__version__.split(".")[:2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in PROGRAMS.items():
        for who, package in (("torch", torch.export), ("lostwax", lostwax)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = package.export(
                    module(name), program.args, dynamic_shapes=program.dynamic(package.Dim)
                )
                package.save(exported, folder / f"{name}-{who}.pt2")
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) // 1024} KiB")


if __name__ == "__main__":
    write()
