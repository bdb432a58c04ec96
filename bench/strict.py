"""What strict capture costs: `export(strict=True)` beside the default, and beside torch's strict
capture, on the models of examples/models.

Bars: at most 2.5 times the default, at least 20 times faster than `torch.export(strict=True)`, for
each. Exits with 1 when one is missed.

    python -m bench.strict [--ours-only]
"""

from __future__ import annotations

import sys
import warnings
from functools import partial

import torch

from bench.clock import processor_seconds
from bench.export_speed import torch_strict
from examples.models import MODELS
from lostwax import export

OVER_DEFAULT, OVER_OURS, TURNS = 2.5, 20.0, 10


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    is_missed = False
    for name, example in MODELS.items():
        torch.manual_seed(0)
        model, inputs = example.full().eval(), example.full_inputs()
        sides = [partial(export, model, inputs, strict=strict) for strict in (False, True)]
        turns = [[processor_seconds(side) for side in sides] for _ in range(TURNS)]
        default, strict = (min(each) for each in zip(*turns, strict=True))
        text = f"{name:<13}{default * 1e3:>8.1f} ms{strict * 1e3:>8.1f} ms{strict / default:>7.2f}×"
        is_missed |= strict / default > OVER_DEFAULT
        if "--ours-only" not in sys.argv:
            torch._dynamo.reset()
            theirs = processor_seconds(partial(torch_strict, model, inputs))
            text += f"   torch's strict {theirs:>6.2f} s{theirs / strict:>7.1f}×"
            is_missed |= theirs / strict < OVER_OURS
        print(text, flush=True)
    print(f"bars (≤ {OVER_DEFAULT:g}×, ≥ {OVER_OURS:g}×): {'missed' if is_missed else 'all held'}")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
