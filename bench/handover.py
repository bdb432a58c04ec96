"""What it costs to hand a program on: `to_torch` beside our export, and both beside torch.export.

    python -m bench.handover [--models llama BertModel] [--rounds 2] [--cold] [--json]

Each model at the example's sizes, and with `Dim.AUTO` for its batch and its lengths: those of
examples/models in full size, a Llama, a BERT and a Whisper of transformers (small configurations,
random weights), and a program with `cond` and `while_loop`. Four sides, taking turns in one
process; a figure is the least processor time of a side's turns.

    export      lostwax.export
    to_torch    lostwax.interop.to_torch of its program
    torch       torch.export.export(strict=False) alone, whose program is not functional yet
    functional  the same and run_decompositions(), whose program is what ours is

Every side has exported something before. With `--cold` each is measured in processes of their own,
where imports count; lostwax has bytecode there, as pip leaves it. "floor" is what a first
`FakeTensorMode(shape_env=ShapeEnv())` takes in such a process while nothing is collected: sympy,
torch._dynamo and more, which both sides need, and whoever takes a program. "torch/floor" is what a
hand-over could reach that costs nothing but that.

The bars: to_torch at most 3 times our export, each; torch alone over both of ours at least 12 in
the median and 6 for each; cold at least 4 in the median. Exits with 1 when one is missed, or when
one of ours fails. Where torch.export fails, the first bar counts alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import cold
from bench.clock import processor_seconds
from examples.models import MODELS

HAND_BAR, MEDIAN_BAR, EACH_BAR, COLD_BAR = 3.0, 12.0, 6.0, 4.0
SIDES = ("export", "to_torch", "torch", "functional")
TURNS = 5
"""Of our two sides in each round: they are cheap, and compared with each other."""
CONTROL = "control flow"
NAMES = (*MODELS, "LlamaForCausalLM", "BertModel", "WhisperModel", CONTROL)


class Control(nn.Module):
    """A branch and a loop on data."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cond(
            x.sum() > 0, lambda x: self.l(x).relu(), lambda x: self.l(x).tanh() * 2, (x,)
        )
        while_loop = torch._higher_order_ops.while_loop
        _, x = while_loop(
            lambda i, x: i < 5,
            lambda i, x: (i + 1, torch.nn.functional.layer_norm(x, (16,)) * 1.5),
            (torch.zeros((), dtype=torch.int64), x),
        )
        return x


def make(name: str) -> cold.Call:
    if name == CONTROL:
        torch.manual_seed(0)
        return cold.Call(Control(), (torch.randn(4, 16),), {}, [[0]])
    return cold.make(name)


# -------------------------------------------------------------------------------------- the sides


def ours(call: cold.Call, dynamic: bool) -> Any:
    import lostwax

    shapes = call.shapes(lostwax.Dim.AUTO) if dynamic else None
    return lostwax.export(call.model, call.args, call.kwargs, dynamic_shapes=shapes)


def handed(program: Any) -> Any:
    from lostwax.interop import to_torch

    return to_torch(program)


def theirs(call: cold.Call, dynamic: bool) -> Any:
    import torch.export

    shapes = call.shapes(torch.export.Dim.AUTO) if dynamic else None
    options: Any = {"dynamic_shapes": shapes, "strict": False}
    return torch.export.export(call.model, call.args, call.kwargs, **options)


@dataclass
class Row:
    """What was measured of one model."""

    name: str
    dynamic: bool
    nodes: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {s: [] for s in SIDES})
    failures: dict[str, str] = field(default_factory=dict)

    def milliseconds(self, side: str) -> float | None:
        return 1e3 * min(self.seconds[side]) if self.seconds[side] else None

    @property
    def price(self) -> float | None:
        """`to_torch` over our export."""
        export, hand = self.milliseconds("export"), self.milliseconds("to_torch")
        return None if export is None or hand is None else hand / export

    def speed(self, side: str) -> float | None:
        """A side of torch's over both of ours."""
        found = [self.milliseconds(each) for each in ("export", "to_torch", side)]
        export, hand, peer = found
        return None if export is None or hand is None or peer is None else peer / (export + hand)

    @property
    def title(self) -> str:
        return f"{self.name} (dynamic)" if self.dynamic else self.name

    def as_dict(self) -> dict[str, Any]:
        speeds = {side: self.speed(side) for side in SIDES[2:]}
        ms = {side: self.milliseconds(side) for side in SIDES}
        return {"name": self.title, "nodes": self.nodes, "ms": ms, "price": self.price,
                "speeds": speeds, "failures": self.failures}  # fmt: skip


def measure(name: str, dynamic: bool, rounds: int) -> Row:
    row, call = Row(name, dynamic), make(name)
    call.model.eval()

    def take(side: str, work: Callable[[], Any]) -> None:
        if side not in row.failures:
            try:
                row.seconds[side].append(processor_seconds(work))
            except Exception as error:  # the other sides are measured all the same
                row.failures[side] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"

    program = ours(call, dynamic)
    row.nodes = len(program.graph.nodes)
    for _ in range(rounds):
        for _ in range(TURNS):
            take("export", lambda: ours(call, dynamic))
            take("to_torch", lambda: handed(program))
        take("torch", lambda: theirs(call, dynamic))
        take("functional", lambda: theirs(call, dynamic).run_decompositions())
    return row


# --------------------------------------------------------------------------------- cold processes


def measure_here(side: str, name: str, dynamic: bool) -> float:
    """The seconds of the first program of this process, imports included."""
    call = make(name)
    call.model.eval()
    start = time.process_time()
    if side == "ours":
        handed(ours(call, dynamic))
    elif side == "torch":
        theirs(call, dynamic)
    else:
        gc.disable()
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        FakeTensorMode(shape_env=ShapeEnv())
    return time.process_time() - start


def measure_cold(name: str, dynamic: bool, folder: Path, rounds: int) -> dict[str, float]:
    paths = [str(folder), str(cold.ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    found: dict[str, list[float]] = {"ours": [], "torch": [], "floor": []}
    for side in list(found) * rounds:
        order = json.dumps([side, name, dynamic])
        command = [sys.executable, "-P", "-W", "ignore", "-m", "bench.handover", "--measure", order]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode == 0:
            found[side].append(float(done.stdout.strip().splitlines()[-1]))
        elif side == "ours":
            raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return {side: statistics.median(seconds) for side, seconds in found.items() if seconds}


def run_cold(names: list[str], rounds: int) -> int:
    speeds = []
    head = f"{'ms, first of a process':<36}{'ours':>10}{'torch':>10}{'floor':>10}"
    print(head + f"{'torch/ours':>12}{'torch/floor':>13}")
    with tempfile.TemporaryDirectory() as folder:
        cold.copy_with_bytecode(Path(folder))
        for name, dynamic in ((n, d) for n in names for d in (False, True)):
            found = measure_cold(name, dynamic, Path(folder), rounds)
            text = f"{Row(name, dynamic).title:<36}{1e3 * found['ours']:>10.0f}"
            if "torch" in found:
                mine, peer, floor = found["ours"], found["torch"], found["floor"]
                speeds.append(peer / mine)
                text += f"{1e3 * peer:>10.0f}{1e3 * floor:>10.0f}{speeds[-1]:>11.1f}×"
                text += f"{peer / floor:>12.1f}×"
            print(text, flush=True)
    median = statistics.median(speeds) if speeds else 0.0
    held = median >= COLD_BAR
    print(f"bar: median ≥ {COLD_BAR:g}×: {median:.1f}×, {'held' if held else 'missed'}")
    return 0 if held else 1


# ------------------------------------------------------------------------------------------- face


HEAD = f"{'ms':<36}{'nodes':>7}" + "".join(f"{side:>12}" for side in SIDES)
HEAD += f"{'to_torch':>11}{'torch':>9}{'functional':>12}\n{'':<91}{'/ export':>11}{'/ ours':>9}"
HEAD += f"{'/ ours':>12}"


def line(row: Row) -> str:
    def show(value: float | None, width: int, end: str = "") -> str:
        return f"{'-' if value is None else f'{value:.1f}{end}':>{width}}"

    text = f"{row.title:<36}{row.nodes:>7}"
    text += "".join(show(row.milliseconds(side), 12) for side in SIDES)
    text += show(row.price, 11, "×") + show(row.speed("torch"), 9, "×")
    text += show(row.speed("functional"), 12, "×")
    return text + "".join(f"  {side}: {why:.60}" for side, why in row.failures.items())


def missed_bars(rows: list[Row]) -> list[str]:
    missed = [f"{r.title} (failed)" for r in rows if r.price is None]
    missed += [f"{r.title} {r.price:.2f}× the export" for r in rows if (r.price or 0) > HAND_BAR]
    speeds = {row.title: row.speed("torch") for row in rows}
    known = {title: speed for title, speed in speeds.items() if speed is not None}
    missed += [f"{title} {speed:.1f}×" for title, speed in known.items() if speed < EACH_BAR]
    if known and statistics.median(known.values()) < MEDIAN_BAR:
        missed.insert(0, f"the median {statistics.median(known.values()):.1f}×")
    return missed


def verdict(rows: list[Row]) -> str:
    missed = missed_bars(rows)
    medians = []
    for side in SIDES[2:]:
        known = [s for s in (row.speed(side) for row in rows) if s is not None]
        medians.append(f"{side} / ours: median {statistics.median(known or [0.0]):.1f}×")
    return (
        f"{', '.join(medians)}\nbars: to_torch ≤ {HAND_BAR:g}× the export; torch / ours: median "
        f"≥ {MEDIAN_BAR:g}×, each ≥ {EACH_BAR:g}×: "
    ) + ("missed by " + ", ".join(missed) if missed else "all held")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.handover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="the first of a process")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.export's, about its own future
    if options.measure:
        print(measure_here(*json.loads(options.measure)))
        return 0
    if options.cold:
        return run_cold(options.models, options.rounds)
    say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    say(HEAD)
    warm = cold.make_small()
    for dynamic in (False, True):
        handed(ours(warm, dynamic))
        theirs(warm, dynamic).run_decompositions()
    rows = []
    for name, dynamic in ((n, d) for n in options.models for d in (False, True)):
        rows.append(measure(name, dynamic, options.rounds))
        say(line(rows[-1]))
    say(verdict(rows))
    if options.json:
        found = {"rows": [row.as_dict() for row in rows], "missed": missed_bars(rows)}
        print(json.dumps(found, indent=2))
    return 1 if missed_bars(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
