"""Capture of control flow: 100 conditions beside their bodies captured plain, and beside torch.

Bars: at most 2 times the bodies alone, at least 30 times faster than `torch.export`.

    python -m bench.control [--ours-only]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

import lostwax
from bench.clock import processor_seconds

COUNT = 100


class Conditions(nn.Module):
    """So many conditions in a row, each with a body of a few operators that reads state."""

    def __init__(self, control: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(COUNT)])
        self.control = control

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:

            def true(x: Tensor, layer: nn.Module = layer) -> Tensor:
                return torch.relu(layer(x) * 2 + x.sin()).tanh()

            def false(x: Tensor, layer: nn.Module = layer) -> Tensor:
                return torch.sigmoid(layer(x) - x.cos() * 3).neg()

            holds = x.sum() > 0
            if self.control:
                x = torch.cond(holds, true, false, (x,))
            else:
                x = true(x) + false(x)
        return x


class Loops(nn.Module):
    def forward(self, x: Tensor) -> Any:
        for _ in range(20):
            _, x = while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.zeros(()), x)
            )
            _, x = scan(lambda c, row: (c + row, c * row), x[0], x)
        return x


def export_ours(module: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: lostwax.export(module, (x,))


def export_theirs(module: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: torch.export.export(module, (x,))


def least_times(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """The least time of each; they take turns."""
    found = [[processor_seconds(call) for call in calls] for _ in range(rounds)]
    return [min(each) for each in zip(*found, strict=True)]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    x = torch.randn(4, 8)
    whole, bodies, loops = Conditions(True), Conditions(False), Loops()
    found = least_times([export_ours(m, x) for m in (whole, bodies, loops)], rounds=7)
    ours, plain, looping = (seconds * 1e3 for seconds in found)
    print(
        f"{COUNT} conditions: {ours:.1f} ms, their bodies captured plain {plain:.1f} ms, "
        f"ratio {ours / plain:.2f} (bar 2)"
    )
    print(f"20 loops and 20 scans: {looping:.1f} ms")
    if "--ours-only" in sys.argv:
        return
    (theirs,) = least_times([export_theirs(whole, x)], rounds=1)
    print(
        f"torch.export of the conditions: {theirs:.1f} s, {theirs * 1e3 / ours:.0f} times (bar 30)"
    )
    (theirs,) = least_times([export_theirs(loops, x)], rounds=1)
    print(f"torch.export of the loops: {theirs:.1f} s, {theirs * 1e3 / looping:.0f} times (bar 30)")


if __name__ == "__main__":
    main()
