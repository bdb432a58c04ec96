"""What a hit of `lostwax.cache` costs, beside the export that it saves.

    python -m bench.hits [--models resnet50 llama] [--rounds 20] [--cold]

ResNet-50, and a Llama of 16 layers of transformers (small widths, random weights). Three sides,
taking turns in one process; a figure is the least processor time of a side's turns, in
milliseconds:

    export  lostwax.export without a cache
    again   a hit, in a block where there was one for this module before
    hit     the first hit of a block: all that the program depends on is looked at

With `--cold`, the same call in processes of their own after torch, lostwax and the model have been
loaded; each with another PYTHONHASHSEED. The bars: `again` at most half of an export; cold, a hit
faster than an export. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

import lostwax
from bench.clock import processor_seconds
from examples.models import MODELS

BAR = 0.5
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def make_resnet() -> Call:
    example = MODELS["resnet50"]
    return example.full().eval(), example.full_inputs(), {}


def make_llama() -> Call:
    from sweep.libraries import import_torchvision

    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    config = LlamaConfig(vocab_size=1000, num_hidden_layers=16, use_cache=False, **sizes)
    return LlamaForCausalLM(config).eval(), (), {"input_ids": torch.randint(0, 1000, (1, 16))}


MAKERS: dict[str, Callable[[], Call]] = {"resnet50": make_resnet, "llama": make_llama}


def export_in(context: Any, call: Call) -> Any:
    with context:
        return lostwax.export(*call)


def measure(name: str, rounds: int) -> bool:
    call, kept = MAKERS[name](), lostwax.cache(tempfile.mkdtemp())
    sides: dict[str, Any] = {
        "export": partial(lostwax.export, *call),
        "hit": partial(export_in, kept, call),
    }
    found: dict[str, list[float]] = {"export": [], "hit": [], "again": []}
    sides["hit"]()
    for _ in range(rounds):
        for side, work in sides.items():
            found[side].append(1e3 * processor_seconds(work))
        with kept:
            lostwax.export(*call)
            found["again"].append(1e3 * processor_seconds(sides["export"]))
    assert kept.hits == 3 * rounds, kept.why()
    least = {side: min(times) for side, times in found.items()}
    ratio = least["again"] / least["export"]
    told = "  ".join(f"{side} {each:.1f}" for side, each in least.items())
    print(f"{name}: {told}; again / export {ratio:.2f}", flush=True)
    return ratio <= BAR


def measure_cold(name: str, rounds: int) -> bool:
    folder = tempfile.mkdtemp()
    ask_process(name, folder, 0)
    sides = {"export": "", "hit": folder}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds):
        for side, where in sides.items():
            times[side].append(ask_process(name, where, i + 1))
    least = {side: min(each) for side, each in times.items()}
    print(f"{name}, cold: export {least['export']:.0f}  hit {least['hit']:.0f}", flush=True)
    return least["hit"] < least["export"]


def ask_process(name: str, folder: str, seed: int) -> float:
    command = [sys.executable, "-m", "bench.hits", "--one", name, folder]
    variables = {**os.environ, "PYTHONHASHSEED": str(seed)}
    told = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    hits, milliseconds = told.stdout.split()[-2:]
    assert int(hits) == (1 if folder and seed else 0), "found where it should not be, or not found"
    return float(milliseconds)


def measure_once(name: str, folder: str) -> None:
    call = MAKERS[name]()
    kept = lostwax.cache(folder) if folder else None
    seconds = processor_seconds(partial(export_in, kept or nullcontext(), call))
    print(kept.hits if kept else 0, 1e3 * seconds)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=MAKERS, default=[*MAKERS])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        measure_once(*asked.one)
        return 0
    work = measure_cold if asked.cold else measure
    reached = [work(name, asked.rounds) for name in asked.models]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
