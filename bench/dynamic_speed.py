"""What dynamic sizes cost: `python -m bench.export_speed --dynamic`.

Three sides, taking turns, the least processor time of each (what else runs on the machine can only
add to a turn); the dimensions are those that examples/models calls dynamic (batch, and length where
there is one):

    torch    torch.export.export(strict=False).run_decompositions() with Dim.AUTO for each of them:
             declared by name, some would be refused for a limit that the model has
    static   lostwax.export at the example's sizes
    dynamic  lostwax.export with a Dim for each

The bars: torch / dynamic at least 40 in the median over the models and 20 for each, dynamic /
static at most 1.5 for each.
"""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bench.clock import processor_seconds
from examples.models import MODELS, Example
from lostwax.capture import export
from lostwax.capture.shapes.dims import Dim

MEDIAN_BAR, EACH_BAR, STATIC_BAR = 40.0, 20.0, 1.5
SIDES = ("torch", "static", "dynamic")
TURNS = 15
"""Of our two sides in each round, one after the other: they are compared with each other."""


def ours_with(example: Example) -> tuple[Any, ...]:
    """Each named dimension as a Dim."""
    return tuple({d: Dim(name) for d, name in dims.items()} for dims in example.dynamic)


def theirs_with(example: Example) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in example.dynamic)


def torch_dynamic(model: nn.Module, inputs: tuple[Tensor, ...], spec: Any) -> Any:
    program = torch.export.export(model, inputs, strict=False, dynamic_shapes=spec)
    return program.run_decompositions()


@dataclass
class Row:
    """What was measured of one model."""

    model: str
    nodes: int
    guards: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {s: [] for s in SIDES})

    def milliseconds(self, side: str) -> float:
        return 1e3 * min(self.seconds[side])

    @property
    def speed(self) -> float:
        return self.milliseconds("torch") / self.milliseconds("dynamic")

    @property
    def price(self) -> float:
        return self.milliseconds("dynamic") / self.milliseconds("static")

    def missed(self) -> list[str]:
        found = []
        if self.speed < EACH_BAR:
            found.append(f"{self.model} {self.speed:.1f}× (bar {EACH_BAR:g}×)")
        if self.price > STATIC_BAR:
            found.append(f"{self.model} {self.price:.2f}× static (bar {STATIC_BAR:g}×)")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "nodes": self.nodes,
            "guards": self.guards,
            "ms": {side: round(self.milliseconds(side), 3) for side in SIDES},
            "torch_over_dynamic": round(self.speed, 2),
            "dynamic_over_static": round(self.price, 3),
            "missed": self.missed(),
        }

    def line(self) -> str:
        text = f"{self.model:<13}{self.nodes:>6}{self.guards:>7}"
        text += "".join(f"{self.milliseconds(side):>10.1f}" for side in SIDES)
        return text + f"{self.speed:>11.1f}×{self.price:>10.2f}×"


HEAD = (
    f"{'ms':<13}{'nodes':>6}{'guards':>7}"
    + "".join(f"{side:>10}" for side in SIDES)
    + f"{'torch':>12}{'dynamic':>11}\n{'':<56}{'/ dynamic':>12}{'/ static':>11}"
)


def measure(name: str, rounds: int) -> Row:
    example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = example.full().eval(), example.full_inputs()
    ours, theirs = ours_with(example), theirs_with(example)
    work = {
        "torch": lambda: torch_dynamic(model, inputs, theirs),
        "static": lambda: export(model, inputs),
        "dynamic": lambda: export(model, inputs, dynamic_shapes=ours),
    }
    program = work["dynamic"]()
    nodes = sum(n.op == "call_function" for n in program.graph.nodes)
    row = Row(name, nodes, len(program.guards))
    del program
    for _ in range(rounds):
        row.seconds["torch"].append(processor_seconds(work["torch"]))
        for _, side in itertools.product(range(TURNS), ("static", "dynamic")):
            row.seconds[side].append(processor_seconds(work[side]))
    return row


def warm_up() -> None:
    example = MODELS["vit"]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    torch_dynamic(model, inputs, theirs_with(example))
    export(model, inputs, dynamic_shapes=ours_with(example))


def median_speed(rows: list[Row]) -> float:
    return statistics.median(row.speed for row in rows) if rows else 0.0


def missed_bars(rows: list[Row], failures: dict[str, str]) -> list[str]:
    missed = [text for row in rows for text in row.missed()]
    if median_speed(rows) < MEDIAN_BAR:
        missed.insert(0, f"the median {median_speed(rows):.1f}× (bar {MEDIAN_BAR:g}×)")
    return missed + [f"{name} (failed)" for name in failures]


def run(models: list[str], rounds: int, as_json: bool) -> int:
    """Measure, print, and return the exit code."""
    rows: list[Row] = []
    failures: dict[str, str] = {}
    say = (lambda text: None) if as_json else (lambda text: print(text, flush=True))
    say(HEAD)
    warm_up()
    for name in models:
        try:
            rows.append(measure(name, rounds))
            say(rows[-1].line())
        except Exception as error:  # the other models are measured all the same
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            say(f"{name:<13}{failures[name]}")
    missed = missed_bars(rows, failures)
    say(
        f"torch / dynamic: median {median_speed(rows):.1f}×\n"
        f"bars: median ≥ {MEDIAN_BAR:g}×, each ≥ {EACH_BAR:g}×, at most {STATIC_BAR:g}× our "
        "static: " + ("missed by " + ", ".join(missed) if missed else "all held")
    )
    if as_json:
        found = {"median": round(median_speed(rows), 2), "missed": missed, "failures": failures}
        print(json.dumps({"rows": [row.as_dict() for row in rows], **found}, indent=2))
    return 1 if missed else 0
