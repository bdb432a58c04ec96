"""Saving and loading: ours, torch's, and the raw copy of the same bytes, in one run.

    python -m bench.archive [--megabytes 1024] [--rounds 3] [--json]

    save    a program with one gigabyte of weights, against writing its bytes to a new file
    load    the same file; the memory that it touches is that of a process of its own
    JSON    the program of a ResNet-50, from text to graph

By the clock, the best of the rounds, sides in turns: disk and threads do not show in processor
time. Saving uses a second processor for checksums: the first bar needs one that is free. Exits with
1 when a bar is missed. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._export.serde.schema import ExportedProgram as PeerRecords
from torch._export.serde.serialize import _bytes_to_dataclass

import lostwax
from bench.memory import resident
from examples.models import MODELS
from lostwax.pt2.graph.decode import decode

SAVE_OVER_RAW, PEER_SAVE, PEER_LOAD, PEER_JSON = 1.5, 2.0, 50.0, 10.0
LOAD_MB, SAVE_MB = 20, 32
WIDTH = 4096


class Times(NamedTuple):
    """By the clock, and of all processors together."""

    clock: float
    processor: float


def times(work: Callable[[], Any]) -> Times:
    gc.collect()
    start, processor = time.perf_counter(), time.process_time()
    result = work()
    taken = Times(time.perf_counter() - start, time.process_time() - processor)
    del result
    return taken


def best(
    rounds: int, sides: dict[str, Callable[[], Any]], before: Callable[[], Any]
) -> dict[str, Times]:
    found: dict[str, list[Times]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            before()
            found[name].append(times(work))
    return {name: Times(*map(min, zip(*all_, strict=True))) for name, all_ in found.items()}


def large(megabytes: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Layers of 64 MB each."""
    count = max(1, megabytes // 64)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]
    return nn.Sequential(*layers), (torch.randn(1, WIDTH),)


def write_raw(source: memoryview, path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        for start in range(0, len(source), 64 << 20):
            file.write(source[start : start + (64 << 20)])


def saving(folder: Path, megabytes: int, rounds: int) -> dict[str, Times]:
    model, inputs = large(megabytes)
    ours, theirs = lostwax.export(model, inputs), torch.export.export(model, inputs)
    path, peer_path, raw_path = folder / "ours.pt2", folder / "peer.pt2", folder / "raw"
    lostwax.save(ours, path)
    content = bytearray(path.read_bytes())

    def clean() -> None:
        for each in (raw_path, path, peer_path):
            each.unlink(missing_ok=True)

    found = best(
        rounds,
        {
            "raw": lambda: write_raw(memoryview(content), raw_path),
            "ours": lambda: lostwax.save(ours, path),
            "peer": lambda: torch.export.save(theirs, peer_path),
        },
        clean,
    )
    lostwax.save(ours, path)
    torch.export.save(theirs, peer_path)
    return found


def loading(folder: Path, rounds: int) -> dict[str, Times]:
    return best(
        rounds,
        {
            "ours": lambda: lostwax.load(folder / "ours.pt2"),
            "peer": lambda: torch.export.load(folder / "ours.pt2"),
        },
        lambda: None,
    )


def json_part(folder: Path, rounds: int) -> dict[str, Times]:
    example = MODELS["resnet50"]
    model, inputs = example.full().eval(), example.full_inputs()
    path = folder / "resnet.pt2"
    torch.export.save(torch.export.export(model, inputs), path)
    with zipfile.ZipFile(path) as archive:
        text = archive.read("resnet/models/model.json")
    return best(
        rounds,
        {
            "ours": lambda: decode(json.loads(text), {}, {}, ""),
            "peer": lambda: _bytes_to_dataclass(PeerRecords, text),
        },
        lambda: None,
    )


# ------------------------------------------------------------------------------------------- memory


def touched(what: str, folder: Path, megabytes: int) -> float:
    """What a process of its own holds at most beyond its state before, in MB."""
    command = [sys.executable, "-m", "bench.archive", "--child", what, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--megabytes", str(megabytes)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def child(what: str, folder: Path, megabytes: int) -> float:
    small = lostwax.export(nn.Linear(2, 2), (torch.randn(1, 2),))
    lostwax.save(small, folder / "small.pt2")  # what is imported on first use does not count
    lostwax.load(folder / "small.pt2")
    if what == "load":
        before = resident("VmRSS")
        program = lostwax.load(folder / "ours.pt2")
        assert program.state_dict
        return resident("VmHWM") - before
    model, inputs = large(megabytes)
    program = lostwax.export(model, inputs)
    before = resident("VmRSS")
    lostwax.save(program, folder / "child.pt2")
    return resident("VmHWM") - before


# --------------------------------------------------------------------------------------------- face


def measure(megabytes: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save = saving(folder, megabytes, rounds)
        load = loading(folder, rounds)
        memory = {what: touched(what, folder, megabytes) for what in ("load", "save")}
        size = os.path.getsize(folder / "ours.pt2") / (1 << 20)
        return {
            "file_mb": round(size, 1),
            "save_s": save,
            "load_s": load,
            "json_s": json_part(folder, rounds),
            "load_touches_mb": round(memory["load"], 1),
            "save_adds_mb": round(memory["save"], 1),
        }


def rows(found: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """What is measured, its value, its bar, and whether more is better."""
    save, load, parsed = (
        {side: t.clock for side, t in found[part].items()}
        for part in ("save_s", "load_s", "json_s")
    )
    return [
        ("save: ours / raw write", save["ours"] / save["raw"], SAVE_OVER_RAW, False),
        ("save: torch / ours", save["peer"] / save["ours"], PEER_SAVE, True),
        ("save: MB above the weights", found["save_adds_mb"], SAVE_MB, False),
        ("load: torch / ours", load["peer"] / load["ours"], PEER_LOAD, True),
        ("load: MB touched", found["load_touches_mb"], LOAD_MB, False),
        ("JSON of ResNet-50: torch / ours", parsed["peer"] / parsed["ours"], PEER_JSON, True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.archive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.export's, about its own future
    logging.disable(logging.WARNING)
    if options.child:
        print(child(options.child, options.folder, options.megabytes))
        return 0
    found = measure(options.megabytes, options.rounds)
    table = rows(found)
    missed = [name for name, value, bar, more in table if (value < bar if more else value > bar)]
    if options.json:
        print(json.dumps({**found, "missed": missed}, indent=2))
        return 1 if missed else 0
    for part in ("save_s", "load_s", "json_s"):
        texts = (
            f"{side} {1e3 * t.clock:.1f} ms (processor {1e3 * t.processor:.1f})"
            for side, t in found[part].items()
        )
        print(f"{part.removesuffix('_s'):<6}{'  '.join(texts)}")
    for name, value, bar, more in table:
        print(f"{name:<34}{value:>9.2f}   bar {'≥' if more else '≤'} {bar:g}")
    print("bars: " + ("missed by " + ", ".join(missed) if missed else "all held"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
