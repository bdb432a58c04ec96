"""A checkpoint in shards becomes a file, tensor by tensor.

    python -m bench.checkpoints [--gigabytes 20] [--to pt2|pte|onnx] [--folder DIR]

Shards of large layers in bfloat16 are made as files with holes, which take no room; a module is
built from them without its weights, exported and written, in a process of its own. What it holds is
asked of the kernel all the time: memory of its own, and with pages of files. Beside it, the time
that the plain bytes take, written and synchronized like the file. Exits with 1 when the memory of
its own, imports counted, was above the bar, or the file took more than twice as long as the bytes.
The folder is deleted afterwards. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from bench.large_language_model import watch

BAR_GB, BAR_TIMES = 1.0, 2.0
WIDTH = 16_384
LAYER = 2 * WIDTH * WIDTH
"""The bytes of a layer."""
A_SHARD = 4
"""Layers in it."""


def write_shards(folder: Path, layers: int) -> None:
    places: dict[str, str] = {}
    for first in range(0, layers, A_SHARD):
        names = [f"{i}.weight" for i in range(first, min(first + A_SHARD, layers))]
        file = f"model-{first:05}.safetensors"
        entry = {"dtype": "BF16", "shape": [WIDTH, WIDTH]}
        header = {
            name: {**entry, "data_offsets": [i * LAYER, (i + 1) * LAYER]}
            for i, name in enumerate(names)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as opened:
            opened.write(struct.pack("<Q", len(text)) + text)
            opened.truncate(8 + len(text) + len(names) * LAYER)
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_file(folder: Path, layers: int, form: str) -> None:
    """Runs in the child."""
    import lostwax

    checkpoint = lostwax.checkpoint(folder)
    with checkpoint.on_meta(torch.bfloat16):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).eval()
    path = folder / f"model.{form}"
    program = lostwax.export(model, (torch.zeros(1, WIDTH, dtype=torch.bfloat16),))
    start = time.perf_counter()
    if form == "pt2":
        lostwax.save(program, path)
    elif form == "onnx":
        lostwax.onnx.save(program, path, external_data=True)
    else:
        config = lostwax.ExecutableConfig(reads_late=True)
        program.to_edge().to_executable(config).save(path)
    for each in folder.glob(f"model.{form}*"):
        synchronize(each)
    print(time.perf_counter() - start)


def synchronize(path: Path) -> None:
    with path.open("rb+") as opened:
        os.fsync(opened.fileno())


def write_plain(path: Path, size: int) -> float:
    """Seconds to write as many bytes."""
    part = bytes(4 << 20)
    start = time.perf_counter()
    with path.open("wb") as opened:
        for _ in range(size // len(part)):
            opened.write(part)
    synchronize(path)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--to", choices=["pt2", "pte", "onnx"], default="pt2")
    parser.add_argument("--folder", default=None, help="where there is room")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        write_file(Path(given.child[0]), int(given.child[1]), given.to)
        return 0
    layers = max(round(given.gigabytes * 1e9 / LAYER), 1)
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        write_shards(folder, layers)
        plain = write_plain(folder / "plain", layers * LAYER)
        words = ["--to", given.to, "--child", str(folder), str(layers)]
        command = [sys.executable, "-m", "bench.checkpoints", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        most = watch(process)
        assert process.stdout is not None
        said = process.stdout.read()
        if process.wait():
            return 1
        seconds = float(said)
        size = sum(each.stat().st_size for each in folder.glob(f"model.{given.to}*")) / 1e9
    finally:
        shutil.rmtree(folder)
    print(
        f".{given.to} of {size:.1f} GB in {seconds:.0f} s, plain bytes in {plain:.0f}: "
        f"{seconds / plain:.2f}× (bar: {BAR_TIMES}); memory of its own {most['RssAnon']:.2f} GB "
        f"(bar: {BAR_GB}), with pages of files {most['VmRSS']:.2f}"
    )
    return int(most["RssAnon"] > BAR_GB or seconds > BAR_TIMES * plain)


if __name__ == "__main__":
    sys.exit(main())
