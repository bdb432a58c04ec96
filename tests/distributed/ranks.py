"""Real processes that talk by gloo, one for each rank: started by a test, each runs all cases of a
module, `python -m MODULE RANK WORLD STORE RESULTS`, and writes down which of them failed, and why.

A case that raises on one rank only ends the others by the group's time limit.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import lostwax
from tests.fresh import run_side_by_side

LOADED = "tests.distributed.ranks, torch.distributed.tensor.parallel, torch.distributed.pipelining"


def run_ranks(module: str, folder: Path, world: int = 2) -> list[dict[str, str]]:
    """What each process says of the cases: nothing, or why it failed."""
    results = [folder / f"{rank}.json" for rank in range(world)]
    store = str(folder / "store")
    commands = [[module, str(r), str(world), store, str(path)] for r, path in enumerate(results)]
    ran = run_side_by_side(commands, loaded=LOADED, LOSTWAX_TRACEBACK="full")
    for path, each in zip(results, ran, strict=True):
        assert path.exists(), each.stdout + each.stderr
    return [json.loads(path.read_text(encoding="utf-8")) for path in results]


def run_cases(make: Callable[[int], Mapping[str, Callable[[], None]]]) -> None:
    """In such a process: run the cases that are made for this rank."""
    rank, world, store, results = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    limit = timedelta(seconds=20)
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=limit)
    told: dict[str, str] = {}
    for name, case in make(rank).items():
        try:
            case()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
        Path(results).write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


def reload(program: Any) -> Any:
    """The program, saved and loaded."""
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)
