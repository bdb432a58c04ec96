"""What passes cost beside an export: each provided pass on a decoder of sixteen layers.

    python -m bench.passes [--model llama] [--rounds 5] [--json]

Rows are processor time in milliseconds on one thread (threads that wait for each other would count
as work), the least of turns taken with the export, so that a change in the machine's mood meets all
of them: the pass by itself, and with the verification that follows it
in a pipeline. The bars: a pass by itself costs at most 0.75 of an export, verified 1.5. Passes that
convert all weights are shown without a bar: their cost is the weights'.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bench.clock import processor_seconds
from examples.models import MODELS
from lostwax import export, passes

ALONE_BAR, VERIFIED_BAR = 0.75, 1.5
BARRED = (
    passes.DeadCode(),
    passes.CommonSubexpressions(),
    passes.NoOps(),
    passes.ConstantFolding(),
    passes.FoldBatchNorm(),
    passes.UnusedState(),
    passes.RuntimeAssertions(),
)
SHOWN = (passes.MoveToDevice("meta"), passes.ConvertDtype(torch.bfloat16))


def least(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds, each of the works once a round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(processor_seconds(work))
    return {name: 1e3 * min(found) for name, found in seconds.items()}


def measure(model: str, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    example = MODELS[model]
    module, inputs = example.full().eval(), example.full_inputs()
    program = export(module, inputs)
    works: dict[str, Callable[[], Any]] = {"export": lambda: export(module, inputs)}
    for each in (*BARRED, *SHOWN):
        works[each.name] = lambda each=each: each(program, verify=False)
        works[f"{each.name} verified"] = lambda each=each: each(program)
        each(program)  # first-time tables are not counted
    found = least(works, rounds)
    whole = found.pop("export")
    rows = {
        each.name: (found[each.name], found[f"{each.name} verified"]) for each in (*BARRED, *SHOWN)
    }
    return {"model": model, "nodes": len(program.graph.nodes), "export": whole, "passes": rows}


def missed(result: dict[str, Any]) -> list[str]:
    """The bars that were missed, in words."""
    whole, found = result["export"], []
    for each in BARRED:
        alone, verified = result["passes"][each.name]
        if alone > ALONE_BAR * whole or verified > VERIFIED_BAR * whole:
            found.append(f"{each.name}: {alone / whole:.2f} of an export, {verified / whole:.2f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    result = measure(options.model, options.rounds)
    if options.json:
        print(json.dumps(result))
    else:
        whole = result["export"]
        print(f"{result['model']}, {result['nodes']} nodes: an export takes {whole:.1f} ms")
        for name, (alone, verified) in result["passes"].items():
            print(
                f"  {name:<22}{alone:7.1f} ms ({alone / whole:4.2f})   "
                f"verified {verified:7.1f} ms ({verified / whole:4.2f})"
            )
    for text in missed(result):
        print(f"missed: {text}")
    return int(bool(missed(result)))


if __name__ == "__main__":
    sys.exit(main())
