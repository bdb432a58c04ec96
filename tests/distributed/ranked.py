"""What the processes run: programs that `export_ranks` made elsewhere, from the folder with the
checkpoint, beside eager on each rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import lostwax
from tests.distributed.ranks import run_cases
from tests.distributed.sharded import LLAMA, make_llama

RUNS = "the program of this rank"


def check(rank: int) -> None:
    folder = Path(sys.argv[3]).parent
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    module = make_llama(mesh).eval()
    from safetensors.torch import load_file  # not where the core is tested

    whole = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            cut: Any = getattr(parameter, "placements", None)
            stored = whole[name]
            parameter.copy_(stored if cut is None else distribute_tensor(stored, mesh, cut))
        program = lostwax.load(folder / f"rank_{rank}.pt2", mesh=mesh).module()
        for inputs in (LLAMA[0], *LLAMA[1]):
            torch.testing.assert_close(program(inputs()), module(inputs()).clone())


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    return {RUNS: partial(check, rank)}


if __name__ == "__main__":
    run_cases(make_cases)
