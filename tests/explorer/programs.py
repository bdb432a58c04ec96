"""The programs that the tests of the explorer share: small, with modules, a size that varies,
control flow, a decomposition, and something that XNNPACK does not take."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

import lostwax
from lostwax.backends import XnnpackPartitioner


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.act = nn.SiLU()
        self.second = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.act(self.second(self.act(self.first(x)))) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return self.head(x)


class Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.inner(torch.erf(self.inner(x)))


@cache
def net() -> Any:
    """A program with a dynamic batch."""
    batch = lostwax.Dim("batch", min=1, max=9)
    return lostwax.export(Net().eval(), (torch.randn(2, 8),), dynamic_shapes=({0: batch},))


@cache
def lowered() -> Any:
    """A program, in Edge, and with delegates around an operator that XNNPACK does not have."""
    program = lostwax.export(Straight().eval(), (torch.randn(2, 4),))
    edge = program.to_edge()
    return program, edge, edge.to_backend(XnnpackPartitioner())
