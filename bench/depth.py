"""Whether an export costs the same for the first layer and the four-thousandth.

    python -m bench.depth [--depths 64 256 1024 4096] [--repeats 8] [--json]

One model of identical layers (norm, linear, GELU, linear, residual: seven operators and six
parameters each) at several depths, on `meta`. The figure is the processor time of
`lostwax.export` divided by the number of layers. The depths take turns, and every depth exports as
many layers in its turn and keeps the programs till its end: 64 of 64 layers stand beside one of
4,096, so that a change in the machine's mood meets them alike. Of the turns the least counts: what
else runs on the machine can only add to a turn. (The median is shown for information.) The bar: the
dearest layer costs at most 20 % more than the cheapest. Exits with 1 when it is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time

import torch
from torch import Tensor, nn

from lostwax.capture import export

DEPTHS = (64, 256, 1024, 4096)
BAR = 0.20
WIDTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def deep(depth: int) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*[Layer() for _ in range(depth)]).eval()


def measure(depths: list[int], repeats: int) -> dict[int, list[float]]:
    """Microseconds a layer, for each depth, in each of its turns."""
    models = {depth: deep(depth) for depth in depths}
    layers = max(depths)
    found: dict[int, list[float]] = {depth: [] for depth in depths}
    turn(models[min(depths)], 1)  # first-time tables are not counted
    for _ in range(repeats):
        for depth, model in models.items():
            exports = max(1, layers // depth)
            found[depth].append(1e6 * turn(model, exports) / (exports * depth))
    return found


def turn(model: nn.Module, exports: int) -> float:
    """Processor time of so many exports, without what happens between them."""
    inputs = (torch.zeros(2, WIDTH, device="meta"),)
    gc.collect()
    spent, programs = 0.0, []
    for _ in range(exports):
        start = time.process_time()
        programs.append(export(model, inputs))
        spent += time.process_time() - start
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.depth", description=__doc__)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    turns = measure(list(options.depths), options.repeats)
    least = {depth: min(found) for depth, found in turns.items()}
    spread = max(least.values()) / min(least.values()) - 1
    if options.json:
        rounded = {depth: round(value, 1) for depth, value in least.items()}
        print(json.dumps({"us_per_layer": rounded, "spread": round(spread, 3)}, indent=2))
    else:
        for depth, value in least.items():
            total, median = 1e-3 * value * depth, statistics.median(turns[depth])
            print(f"{depth:>6} layers {value:>9.1f} µs a layer {total:>10.1f} ms", end="")
            print(f"   (median {median:.1f} µs)")
        verdict = "held" if spread <= BAR else "missed"
        print(f"spread {spread:.0%} (bar: {BAR:.0%}): {verdict}")
    return 0 if spread <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
