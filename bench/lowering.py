"""From an exported program to a `.pte` file: ours beside ExecuTorch's `to_edge` + `to_executorch`.

    python -m bench.lowering [--models resnet50 vit] [--rounds 3] [--size full] [--no-cold] [--json]

Each side lowers the program that its own export made of the same model, in processor time, of which
the least counts; warm in one process, cold each in a process of its own (its imports count, the
export before does not). The runtime then runs both files on one thread: ExecuTorch's as it comes,
and once more made with `preserve_ops=[linear]`, which helps it. Sizes of files and of the planned
memory are those that the files say. The bars: lowering 30 times as fast warm, 8 times cold; the
file runs 20 times as fast for convolutions, 5 times for transformers; no file and no arena is
larger.
Exits with 1 when one is missed, or when results differ from eager by more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.clock import processor_seconds
from examples.models import MODELS

WARM_BAR, COLD_BAR = 30.0, 8.0
RUN_BARS = {"resnet50": 20.0, "unet": 20.0, "efficientnet": 20.0}
RUN_BAR = 5.0
TOLERANCE = 1e-4


@dataclass
class Side:
    """What was measured of one side."""

    warm: float
    cold: float
    run: float
    bytes: int
    arena: int
    error: float


@dataclass
class Row:
    model: str
    eager: float
    ours: Side
    theirs: Side
    with_linear: float
    """The run time of ExecuTorch's file when `linear` is preserved."""

    def faults(self, is_cold: bool) -> list[str]:
        ours, theirs = self.ours, self.theirs
        bar = RUN_BARS.get(self.model, RUN_BAR)
        checks = [
            (theirs.warm / ours.warm >= WARM_BAR, f"warm {theirs.warm / ours.warm:.1f}×"),
            (not is_cold or theirs.cold / ours.cold >= COLD_BAR, "cold"),
            (theirs.run / ours.run >= bar, f"run {theirs.run / ours.run:.1f}×"),
            (ours.bytes <= theirs.bytes, f"{ours.bytes - theirs.bytes:,} bytes more"),
            (ours.arena <= theirs.arena, f"arena {ours.arena:,} > {theirs.arena:,}"),
            (ours.error <= TOLERANCE, f"differs by {ours.error:.1e}"),
        ]
        return [f"{self.model}: {text}" for holds, text in checks if not holds]

    def lines(self) -> list[str]:
        ours, theirs = self.ours, self.theirs
        cold = f"{theirs.cold / ours.cold:.1f}×" if ours.cold else "-"
        return [
            f"{self.model:<13} lowering, warm  {1e3 * ours.warm:9.1f} ms {1e3 * theirs.warm:10.1f}"
            f" ms {theirs.warm / ours.warm:8.1f}×",
            f"{'':13} lowering, cold  {1e3 * ours.cold:9.1f} ms {1e3 * theirs.cold:10.1f} ms "
            f"{cold:>9}",
            f"{'':13} run             {1e3 * ours.run:9.1f} ms {1e3 * theirs.run:10.1f} ms "
            f"{theirs.run / ours.run:8.1f}×   eager {1e3 * self.eager:.1f}, "
            f"preserve_ops=[linear] {1e3 * self.with_linear:.1f}",
            f"{'':13} file            {ours.bytes:12,} {theirs.bytes:13,}",
            f"{'':13} arena           {ours.arena:12,} {theirs.arena:13,}",
            f"{'':13} error           {ours.error:12.1e} {theirs.error:13.1e}",
        ]


def make_model(name: str, size: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    example = MODELS[name]
    model = getattr(example, size)().eval()
    return model, tuple(t[:1] for t in getattr(example, f"{size}_inputs")())


def lower_ours(program: Any) -> bytes:
    buffer: bytes = program.to_edge().to_executable().buffer
    return buffer


def lower_theirs(program: Any, kept: tuple[Any, ...] = ()) -> bytes:
    from executorch.exir import EdgeCompileConfig, to_edge

    config = EdgeCompileConfig(preserve_ops=list(kept), _check_ir_validity=not kept)
    buffer: bytes = to_edge(program, compile_config=config).to_executorch().buffer
    return buffer


def export_ours(model: Any, inputs: Any) -> Any:
    import lostwax

    return lostwax.export(model, inputs)


def export_theirs(model: Any, inputs: Any) -> Any:
    return torch.export.export(model, inputs, strict=False)


SIDES = {"ours": (export_ours, lower_ours), "theirs": (export_theirs, lower_theirs)}


def measure_cold(name: str, size: str, side: str) -> float:
    command = [sys.executable, "-m", "bench.lowering", "--cold", side, "--models", name]
    ran = subprocess.run([*command, "--size", size], capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1])


def arena_of(buffer: bytes) -> int:
    from lostwax.pte.file.reader import read_file

    plans = read_file(buffer).program["execution_plan"]
    return sum(sum(plan["non_const_buffer_sizes"]) for plan in plans)


def run_file(buffer: bytes, inputs: Any, eager: Any, rounds: int) -> tuple[float, float]:
    """The processor time of a run, and how far its first result is from eager's."""
    from executorch.extension.pybindings import portable_lib

    portable_lib._unsafe_reset_threadpool(1)
    module = portable_lib._load_for_executorch_from_buffer(buffer)
    found = module.forward(list(inputs))[0]
    error = float((found - eager).abs().max() / eager.abs().max())
    return min(
        processor_seconds(lambda: module.forward(list(inputs))) for _ in range(rounds)
    ), error


def measure(name: str, size: str, rounds: int, is_cold: bool) -> Row:
    model, inputs = make_model(name, size)
    with torch.no_grad():
        eager = model(*inputs)
        eager_time = min(processor_seconds(lambda: model(*inputs)) for _ in range(3))
    eager = eager[0] if isinstance(eager, tuple) else eager
    sides = {}
    for side, (export, lower) in SIDES.items():
        program = export(model, inputs)
        buffer = lower(program)
        turns = 3 * rounds if side == "ours" else rounds
        warm = min(processor_seconds(lambda p=program, f=lower: f(p)) for _ in range(turns))
        run, error = run_file(buffer, inputs, eager, 3 if side == "ours" else 1)
        cold = measure_cold(name, size, side) if is_cold else 0.0
        sides[side] = Side(warm, cold, run, len(buffer), arena_of(buffer), error)
    kept = lower_theirs(export_theirs(model, inputs), (torch.ops.aten.linear.default,))
    return Row(name, eager_time, **sides, with_linear=run_file(kept, inputs, eager, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["resnet50", "efficientnet", "vit", "gpt2"])
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-cold", action="store_true")
    parser.add_argument("--cold", choices=tuple(SIDES), help="one side, in this process")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.cold:
        export, lower = SIDES[given.cold]
        program = export(*make_model(given.models[0], given.size))
        print(processor_seconds(lambda: lower(program)))
        return
    faults = []
    if not given.json:
        print(f"{'':29} {'lostwax':>12} {'ExecuTorch':>13}")
    for name in given.models:
        row = measure(name, given.size, given.rounds, not given.no_cold)
        faults += row.faults(not given.no_cold)
        print(json.dumps(asdict(row)) if given.json else "\n".join(row.lines()), flush=True)
    for fault in faults:
        print("missed:", fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
