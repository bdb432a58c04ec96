"""From an exported program to a `.pte` file with XNNPACK's delegates: ours beside ExecuTorch's.

    python -m bench.delegates [--models resnet50 vit] [--size full] [--rounds 1] [--json]

Both sides lower the program that their own export made of the same model: ours with
`to_edge_transform_and_lower` and `to_executable`, ExecuTorch's with its own function of that name,
its `XnnpackPartitioner` and `to_executorch`; in one process, after a first time of each, in
processor time, of which the least counts. The runtime then runs both files on one thread, in turns.
The bars: lowering 30 times as fast; the file runs no slower (within 5 %, as timings tremble), has
no fewer operators in delegates and no more delegates; file and planned memory are no larger.
Exits with 1 when one is missed, or when results differ from eager by more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.clock import processor_seconds
from bench.lowering import arena_of, export_ours, export_theirs, make_model
from examples.models import MODELS

BAR, NOISE = 30.0, 1.05
TOLERANCE = 1e-4


@dataclass
class Lowered:
    """What a side made of a program."""

    buffer: bytes
    delegates: int
    share: float


@dataclass
class Side:
    """What was measured of one side."""

    lowering: float
    run: float
    bytes: int
    arena: int
    delegates: int
    share: float
    error: float


@dataclass
class Row:
    model: str
    ours: Side
    theirs: Side

    def faults(self) -> list[str]:
        ours, theirs = self.ours, self.theirs
        ratio = theirs.lowering / ours.lowering
        checks = [
            (ratio >= BAR, f"lowering {ratio:.1f}×"),
            (ours.run <= NOISE * theirs.run, f"run {theirs.run / ours.run:.2f}×"),
            (ours.bytes <= theirs.bytes, f"{ours.bytes - theirs.bytes:,} bytes more"),
            (ours.arena <= theirs.arena, f"arena {ours.arena:,} > {theirs.arena:,}"),
            (ours.share >= theirs.share, f"delegated {ours.share:.1%} < {theirs.share:.1%}"),
            (ours.delegates <= theirs.delegates, f"{ours.delegates} delegates"),
            (ours.error <= TOLERANCE, f"differs by {ours.error:.1e}"),
        ]
        return [f"{self.model}: {text}" for holds, text in checks if not holds]

    def lines(self) -> list[str]:
        ours, theirs = self.ours, self.theirs
        return [
            f"{self.model:<13} lowering {1e3 * ours.lowering:12.1f} ms "
            f"{1e3 * theirs.lowering:10.1f} ms {theirs.lowering / ours.lowering:8.1f}×",
            f"{'':13} run      {1e3 * ours.run:12.2f} ms {1e3 * theirs.run:10.2f} ms "
            f"{theirs.run / ours.run:8.2f}×",
            f"{'':13} delegates{ours.delegates:15,} {theirs.delegates:13,}",
            f"{'':13} delegated{ours.share:15.1%} {theirs.share:13.1%}",
            f"{'':13} file     {ours.bytes:15,} {theirs.bytes:13,}",
            f"{'':13} arena    {ours.arena:15,} {theirs.arena:13,}",
            f"{'':13} error    {ours.error:15.1e} {theirs.error:13.1e}",
        ]


def lower_ours(program: Any) -> Lowered:
    import lostwax
    from lostwax.backends import XnnpackPartitioner

    edge = lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    report = edge.delegation_report()
    return Lowered(edge.to_executable().buffer, len(report.delegates), report.share)


def lower_theirs(program: Any) -> Lowered:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    delegates, share = count_theirs(edge.exported_program())  # before its operators are replaced
    return Lowered(edge.to_executorch().buffer, delegates, share)


def count_theirs(program: Any) -> tuple[int, float]:
    """How many delegates there are, and the share of operators in them."""
    from executorch.exir.dialects.edge._ops import EdgeOpOverload
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    def count(graph: Any) -> int:
        return sum(isinstance(node.target, EdgeOpOverload) for node in graph.nodes)

    parts = [each[1] for each in get_lowered_submodules(program.graph_module)]
    taken = sum(count(part.original_module.graph) for part in parts)
    left = count(program.graph)
    return len(parts), taken / max(taken + left, 1)


SIDES = {"ours": (export_ours, lower_ours), "theirs": (export_theirs, lower_theirs)}


def load(buffer: bytes) -> Any:
    from executorch.extension.pybindings import portable_lib

    portable_lib._unsafe_reset_threadpool(1)
    return portable_lib._load_for_executorch_from_buffer(buffer)


def measure(name: str, size: str, rounds: int) -> Row:
    model, inputs = make_model(name, size)
    with torch.no_grad():
        eager = model(*inputs)
    eager = eager[0] if isinstance(eager, tuple) else eager
    lowered, times, modules, errors = {}, {}, {}, {}
    for side, (export, lower) in SIDES.items():
        program = export(model, inputs)
        made = lowered[side] = lower(program)
        turns = 3 * rounds if side == "ours" else rounds
        times[side] = min(processor_seconds(lambda p=program, f=lower: f(p)) for _ in range(turns))
        modules[side] = load(made.buffer)
        found = modules[side].forward(list(inputs))[0]
        errors[side] = float((found - eager).abs().max() / eager.abs().max())
    runs: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(15):
        for side, module in modules.items():
            runs[side].append(processor_seconds(lambda m=module: m.forward(list(inputs))))
    sides = {
        side: Side(
            times[side],
            min(runs[side]),
            len(made.buffer),
            arena_of(made.buffer),
            made.delegates,
            made.share,
            errors[side],
        )
        for side, made in lowered.items()
    }
    return Row(name, **sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="all that are bundled; of full size, four")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    large = ["resnet50", "efficientnet", "vit", "gpt2"]
    faults = []
    if not given.json:
        print(f"{'':22} {'lostwax':>15} {'ExecuTorch':>13}")
    for name in given.models or (large if given.size == "full" else list(MODELS)):
        row = measure(name, given.size, given.rounds)
        faults += row.faults()
        print(json.dumps(asdict(row)) if given.json else "\n".join(row.lines()), flush=True)
    for fault in faults:
        print("missed:", fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
