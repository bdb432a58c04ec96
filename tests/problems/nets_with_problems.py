"""A module with many problems, none of which hides another: what `lostwax.report` is for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SCALE = 0.5

library = torch.library.Library("problems", "DEF")
library.define("halve(Tensor x) -> Tensor")
library.impl("halve", lambda x: x / 2, "CPU")  # and no fake kernel


@torch.library.custom_op("problems::smooth", mutates_args=())
def smooth(x: Tensor) -> Tensor:
    return x.clone()


@smooth.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.weights = [1.0, 2.0, 3.0]

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = self.linear(x)
        x = x + float(x.detach().numpy().sum())  # numpy needs data
        x = torch.ops.problems.halve(x)  # no fake kernel
        torch.manual_seed(0)  # a program seeds nothing
        if str(x.sum().item()) == "0":  # Python asks data for a text
            x = x + 1
        x = x * int.from_bytes(x[0, 0].detach().numpy().tobytes()[:0])  # and again
        y = y.view(2, -1).sum() + y  # only for even sizes
        if x.shape[0] > 3:  # more than the example's
            x = x * SCALE  # baked in
        x = torch.ops.problems.smooth(x)  # not core, and no kernel
        x = x + torch.linalg.qr(x.t() @ x)[0].sum()  # not in Edge
        if z.shape[0] != 7:  # a guard
            y = y + 1
        return torch.special.bessel_j0(x) + y.sum() + z.sum()


def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Many(), (torch.randn(5, 6), torch.randn(8), torch.randn(4))


class Mended(nn.Module):
    """The same as the report says that it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = self.linear(x)
        x = x + x.detach().sum()
        x = x / 2
        x = torch.where(x.sum() == 0, x + 1, x)
        x = x * 0
        y = y.view(2, -1).sum() + y
        if x.shape[0] > 3:
            x = x * SCALE
        if z.shape[0] != 7:
            y = y + 1
        return torch.tanh(x) + y.sum() + z.sum()


def make_mended() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Mended(), make()[1]


class Shared(nn.Module):
    """Two threads work with it at once."""

    def forward(self, x: Tensor) -> Tensor:
        k = [float(v) for v in x.detach().numpy()]
        x[0] = float(str(x[0].item()))
        scale = sum(float(str(v.item())) * s for v, s in zip(x, k, strict=True))
        return x * scale


class Counting(nn.Module):
    """Other threads cannot do in the place of a variable what a report has replaced."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float((y := x.detach()).numpy().sum()) + y


def _lw(number: int) -> float:
    return number / 2


class OwnNames(nn.Module):
    """What a report puts into this text must not have this name; and data decide beside it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * float(x.numpy()[0]) + _lw(3)
        if x.sum() > 0:
            y = y + _lw(4)
        return y
