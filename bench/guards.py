"""What it costs to check a call: the guards and ranges of a program with dynamic sizes.

    python -m bench.guards [--calls 2000] [--json]

One function of three inputs that are related to each other (`b` of them shared, one size twice
another, one divisible by 8), exported by both sides with the same Dims. Measured is a call of the
running module on tiny tensors, less the same three operators called directly: what the calling
convention takes. No bar: the figure is for information. `check alone` is the generated function
without anything around it.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import lostwax
from bench.clock import processor_seconds
from lostwax.ir.run.module import call_convention

ROUNDS = 9


class Related(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x * 2 + y[: x.shape[0]] + z


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.ones(4, 16), torch.ones(8, 16), torch.ones(4, 16)


def shapes(dim: Any) -> dict[str, Any]:
    batch, width = dim("batch", min=2, max=1024), 8 * dim("width", min=1, max=64)
    return {"x": {0: batch, 1: width}, "y": {0: 2 * batch, 1: width}, "z": {0: batch, 1: width}}


def microseconds(call: Callable[[], Any], calls: int) -> float:
    def many() -> None:
        for _ in range(calls):
            call()

    many()
    return 1e6 * min(processor_seconds(many) for _ in range(ROUNDS)) / calls


def measure(calls: int) -> dict[str, float]:
    module, args = Related(), inputs()
    ours = lostwax.export(module, args, dynamic_shapes=shapes(lostwax.Dim))
    theirs = torch.export.export(module, args, dynamic_shapes=shapes(torch.export.Dim))
    bind = call_convention(ours, True, {}).bind
    running, running_theirs = ours.module(), theirs.module()
    with torch.no_grad():
        bare = microseconds(lambda: module.forward(*args), calls)
        return {
            "the module itself": bare,
            "ours": microseconds(lambda: running(*args), calls) - bare,
            "torch.export": microseconds(lambda: running_theirs(*args), calls) - bare,
            "check alone": microseconds(lambda: bind(args, {}), calls),
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.guards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = measure(options.calls)
    if options.json:
        print(json.dumps({k: round(v, 2) for k, v in found.items()}, indent=2))
    else:
        for side, value in found.items():
            print(f"{side:<20}{value:>8.1f} µs a call")
    return 0


if __name__ == "__main__":
    sys.exit(main())
