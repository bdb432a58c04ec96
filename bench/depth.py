"""Whether an export costs the same for the first layer and the four-thousandth.

    python -m bench.depth [--depths 64 256 1024 4096] [--repeats 5] [--json]

One model of identical layers (norm, linear, GELU, linear, residual: seven operators and six
parameters each) at several depths, on `meta`. The figure is the processor time of
`lostwax.export` divided by the number of layers, in the median; the depths take turns. The bar: the
dearest layer costs at most 20 % more than the cheapest. Exits with 1 when it is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import torch
from torch import Tensor, nn

from bench.clock import processor_seconds
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


def measure(depths: list[int], repeats: int) -> dict[int, float]:
    """Microseconds a layer, for each depth."""
    inputs = (torch.zeros(2, WIDTH, device="meta"),)
    models = {depth: deep(depth) for depth in depths}
    seconds: dict[int, list[float]] = {depth: [] for depth in depths}
    export(models[min(depths)], inputs)  # first-time tables are not counted
    for _ in range(repeats):
        for depth, model in models.items():
            seconds[depth].append(processor_seconds(lambda m=model: export(m, inputs)))
    return {depth: 1e6 * statistics.median(found) / depth for depth, found in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.depth", description=__doc__)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    found = measure(list(options.depths), options.repeats)
    spread = max(found.values()) / min(found.values()) - 1
    if options.json:
        rounded = {depth: round(value, 1) for depth, value in found.items()}
        print(json.dumps({"us_per_layer": rounded, "spread": round(spread, 3)}, indent=2))
    else:
        for depth, value in found.items():
            print(f"{depth:>6} layers {value:>9.1f} µs a layer {1e-3 * value * depth:>10.1f} ms")
        verdict = "held" if spread <= BAR else "missed"
        print(f"spread {spread:.0%} (bar: {BAR:.0%}): {verdict}")
    return 0 if spread <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
