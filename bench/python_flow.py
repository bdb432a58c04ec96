"""Capture of Python's own control flow on data: what it costs where there is none, 40 `if`s in a
row, and 80; and a captured loop of 1,000 steps beside eager's own.

Bars: at most 1.03 times `control_flow="refuse"` where nothing asks data; 40 below 1 s, growth
linear; the loop at most 1.5 times eager's. Exits with 1 when one is missed.

    python -m bench.python_flow
"""

from __future__ import annotations

import linecache
import sys
import warnings
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import lostwax
from bench.clock import processor_seconds
from examples.models import MODELS

EXTRA, SECONDS, GROWTH, OVER_EAGER, TURNS = 1.03, 1.0, 2.6, 1.5, 25
_IF = "    if x.sum() > {0}:\n        x = x + {0}\n    else:\n        x = x * 0.5\n"


def write_choices(count: int, turn: int = 0) -> Any:
    """A function with so many `if`s in a row, in a file of its own for each turn."""
    text = "def choose(x):\n" + "".join(map(_IF.format, range(count))) + "    return x\n"
    file = f"/generated/choices_{count}_{turn}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    return names["choose"]


def repeat(x: Tensor) -> Tensor:
    n = torch.zeros(())
    while n < 1000:
        x = x * 1.001 + 1
        n = n + 1
    return x


def compare_plain(name: str) -> float:
    """The cost of a model that asks nothing, over that with `control_flow="refuse"`: the median of
    what each turn shows, in which both are exported one after the other."""
    torch.manual_seed(0)
    example = MODELS[name]
    model, inputs = example.full().eval(), example.full_inputs()
    sides = [partial(lostwax.export, model, inputs, control_flow=c) for c in ("refuse", "capture")]
    for side in sides:
        side()
    ratios = []
    for i in range(TURNS):
        order = sides if i % 2 else sides[::-1]
        seconds = {side: processor_seconds(side) for side in order}
        ratios.append(seconds[sides[1]] / seconds[sides[0]])
    return median(ratios)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ratios = {name: compare_plain(name) for name in MODELS}
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    most = median(ratios.values())
    print(
        f'no branch on data, over control_flow="refuse": {shown}; median {most:.3f} (bar {EXTRA})'
    )
    x = torch.ones(3)
    lostwax.export(write_choices(2), (x,))
    seconds = {}
    for count in (20, 40, 80):
        # a function of its own each time: what was found for one is kept
        exports = [partial(lostwax.export, write_choices(count, i), (x,)) for i in range(3)]
        seconds[count] = min(map(processor_seconds, exports))
        print(f"{count} ifs: {seconds[count]:.2f} s")
    run = lostwax.export(repeat, (x,)).module()
    ours, eager = (
        min(processor_seconds(lambda f=f: f(x)) for _ in range(7)) for f in (run, repeat)
    )
    print(f"1,000 steps: {ours / eager:.2f} times eager's own loop")
    is_linear = seconds[80] < GROWTH * seconds[40]
    is_held = most <= EXTRA and seconds[40] <= SECONDS and is_linear and ours <= OVER_EAGER * eager
    print(f"bars: {'all held' if is_held else 'missed'}")
    return int(not is_held)


if __name__ == "__main__":
    sys.exit(main())
