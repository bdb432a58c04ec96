"""From an exported program to core ATen: ours against `run_decompositions` of torch.export.

    python -m bench.decompose [--models resnet50 ...] [--rounds 3] [--depths 64 ...] [--json]

Each side takes the program that its own export made of the same model; only the decomposition is
timed, in processor time, the sides taking turns, of which the least counts: other processes only
add. Graph sizes are the calls of the two results; torch's is counted after its own elimination of
common subexpressions. A second part decomposes one model of identical layers at several depths, as
many layers of each in a turn: the deepest program once, shallower ones several times.
The bars: torch / ours at least 40 in the median over the models; no graph larger than torch's; the
dearest layer costs at most 20 % more than the cheapest. Exits with 1 when one is missed or the
programs' outputs differ in size, stride or dtype.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse

from bench.clock import processor_seconds
from bench.depth import WIDTH, deep
from bench.export_speed import output_types
from examples.models import MODELS
from lostwax import collector
from lostwax.capture import export
from lostwax.undo.undo import Undo, run_and_undo

MEDIAN_BAR, DEPTH_BAR = 40.0, 0.20
DEPTHS = (64, 256, 1024, 4096)
OURS_TURNS = 3
DEPTH_TURNS = 15


@dataclass
class Row:
    """What was measured of one model."""

    model: str
    nodes: int
    """Calls of our result."""
    torch_nodes: int
    """Calls of torch's result, after its own CSE."""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return min(self.theirs) / min(self.ours)

    def line(self) -> str:
        ours, theirs = (1e3 * min(s) for s in (self.ours, self.theirs))
        return (
            f"{self.model:<13}{self.nodes:>8}{self.torch_nodes:>8}{ours:>10.1f}{theirs:>10.1f}"
            f"{self.speed:>10.1f}×"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "nodes": self.nodes,
            "torch_nodes": self.torch_nodes,
            "ms": round(1e3 * min(self.ours), 3),
            "torch_ms": round(1e3 * min(self.theirs), 3),
            "speed": round(self.speed, 2),
        }


def calls(graph: Any) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def measure(name: str, rounds: int) -> Row:
    example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = example.full().eval(), example.full_inputs()
    ours = export(model, inputs)
    theirs = torch.export.export(model, inputs, strict=False)
    result, reference = ours.run_decompositions(), theirs.run_decompositions()
    if output_types(result) != output_types(reference):
        raise ValueError(f"outputs are {output_types(result)}, torch's {output_types(reference)}")
    row = Row(name, calls(result.graph), calls(fx_graph_cse(reference.graph)))
    del result, reference
    for _ in range(rounds):
        row.theirs.append(processor_seconds(theirs.run_decompositions))
        for _ in range(OURS_TURNS):
            row.ours.append(processor_seconds(ours.run_decompositions))
    return row


def depths(wanted: list[int]) -> dict[int, float]:
    """Microseconds a layer, for each depth."""
    inputs = (torch.zeros(2, WIDTH, device="meta"),)
    programs = {depth: export(deep(depth), inputs) for depth in wanted}
    seconds: dict[int, list[float]] = {depth: [] for depth in wanted}
    for _, (depth, program) in itertools.product(range(DEPTH_TURNS), programs.items()):
        times = max(wanted) // depth
        seconds[depth].append(turn(program, times) / times)
    return {depth: 1e6 * min(found) / depth for depth, found in seconds.items()}


def turn(program: Any, times: int) -> float:
    """Processor seconds of decomposing a program several times. What is made is kept until the end:
    memory is as fresh for many small graphs as for a large one, and no garbage is collected."""

    def timed(undo: Undo) -> float:
        collector.pause(undo.add)
        return processor_seconds(lambda: [program.run_decompositions() for _ in range(times)])

    return run_and_undo(timed)


def missed_bars(rows: list[Row], layers: dict[int, float], failures: dict[str, str]) -> list[str]:
    missed = [f"{name} (failed: {text})" for name, text in failures.items()]
    median = statistics.median(row.speed for row in rows) if rows else 0.0
    if rows and median < MEDIAN_BAR:
        missed.append(f"the median {median:.1f}× (bar {MEDIAN_BAR:g}×)")
    missed += [
        f"{row.model} has {row.nodes} nodes, torch {row.torch_nodes}"
        for row in rows
        if row.nodes > row.torch_nodes
    ]
    if layers and max(layers.values()) > (1 + DEPTH_BAR) * min(layers.values()):
        spread = max(layers.values()) / min(layers.values()) - 1
        missed.append(f"layers differ by {spread:.0%} (bar {DEPTH_BAR:.0%})")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.decompose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depths", nargs="*", type=int, default=list(DEPTHS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.export's, about its own future
    rows: list[Row] = []
    failures: dict[str, str] = {}
    say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    say(f"{'ms':<13}{'nodes':>8}{'torch':>8}{'ours':>10}{'torch':>10}{'torch / ours':>13}")
    for name in options.models:
        try:
            rows.append(measure(name, options.rounds))
            say(rows[-1].line())
        except Exception as error:  # the other models are measured all the same
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            say(f"{name:<13}{failures[name]}")
    layers = depths(options.depths) if options.depths else {}
    for depth, cost in layers.items():
        say(f"{depth:>6} layers {cost:>9.1f} µs a layer")
    missed = missed_bars(rows, layers, failures)
    if rows:
        say(f"torch / ours: median {statistics.median(row.speed for row in rows):.1f}×")
    say("bars: " + ("missed: " + "; ".join(missed) if missed else "all held"))
    if options.json:
        found = [row.as_dict() for row in rows]
        print(json.dumps({"rows": found, "us_per_layer": layers, "missed": missed}, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
