"""The programs of all ranks from one process: equal to those that each rank of a job exports, and
bound to its slices of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lostwax
from lostwax.checkpoints.mapped import find_place
from lostwax.errors import CaptureError
from tests.distributed import ranked
from tests.distributed.ranks import LOADED, run_ranks
from tests.distributed.sharded import MLP, OPEN, Llama, make_llama, tokens, vectors
from tests.fresh import run_python

save_file = pytest.importorskip("safetensors.torch").save_file


def make_two_halves(mesh: Any) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(MLP(), mesh, plan)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    (path := tmp_path / "checkpoint").mkdir()
    save_file(Llama().state_dict(), path / "model.safetensors")
    return path


@pytest.mark.parametrize("world", [2, 4])
def test_programs_of_all_ranks_run_as_the_job_would(
    folder: Path, tmp_path: Path, world: int
) -> None:
    """Exported here, on no rank, and run by as many processes beside eager."""
    checkpoint = lostwax.checkpoint(folder)

    def make(mesh: Any) -> Any:
        with checkpoint.on_meta():
            return make_llama(mesh).eval()

    programs = lostwax.export_ranks(
        make, (tokens(2, 4)(),), mesh={"tp": world}, dynamic_shapes=OPEN
    )
    assert len(programs) == world
    for rank, program in enumerate(programs):
        lostwax.save(program, folder / f"rank_{rank}.pt2", weights="checkpoint")
        for name, shard in program.state_dict.items():
            assert find_place(shard.data_ptr()) is not None, name
        (group,) = program.settings.groups
        assert (group.size, group.rank) == (world, rank)
    assert ranked.__spec__ is not None
    told = run_ranks(ranked.__spec__.name, folder, world)
    for rank, found in enumerate(told):
        assert not found[ranked.RUNS], f"rank {rank}: {found[ranked.RUNS]}"


def test_equal_programs_share_a_graph() -> None:
    """The ranks of two halves differ in their shards alone; those of an embedding in numbers."""
    args = (vectors(3)().to("meta"),)
    with torch.device("meta"):
        programs = lostwax.export_ranks(make_two_halves, args, mesh={"tp": 4})
        others = lostwax.export_ranks(make_llama, (tokens(2, 4)().to("meta"),), mesh={"tp": 2})
    assert programs.groups == [[0, 1, 2, 3]]
    assert {id(each.graph_module) for each in programs} == {id(programs[0].graph_module)}
    assert [each.settings.groups[0].rank for each in programs] == [0, 1, 2, 3]
    assert others.groups == [[0], [1]]
    assert not dist.is_initialized()


def test_meshes_of_two_dimensions() -> None:
    def make(mesh: Any) -> Any:
        return make_two_halves(mesh["tp"])

    args = (vectors(3)().to("meta"),)
    with torch.device("meta"):
        programs = lostwax.export_ranks(make, args, mesh={"dp": 2, "tp": 2})
    (mesh,) = programs[3].sharding.meshes
    assert (mesh.shape, mesh.coordinate, mesh.ranks) == ((2,), (1,), (2, 3))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r'mesh=\{"tp": 8\}'):
        lostwax.export_ranks(make_two_halves, (vectors(3)(),), mesh={})
    with pytest.raises(RuntimeError, match="no such module"):
        lostwax.export_ranks(_fail, (vectors(3)(),), mesh={"tp": 2})
    assert not dist.is_initialized()


def _fail(mesh: Any) -> Any:
    raise RuntimeError("no such module")


def test_a_process_that_is_a_rank_is_refused(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(CaptureError, match="this process is a rank already"):
            lostwax.export_ranks(make_two_halves, (vectors(3)(),), mesh={"tp": 2})
    finally:
        dist.destroy_process_group()


def test_a_checkpoint_that_lacks_a_weight(tmp_path: Path) -> None:
    state = MLP().state_dict()
    del state["up.weight"]
    save_file(state, tmp_path / "model.safetensors")
    checkpoint = lostwax.checkpoint(tmp_path)

    def make(mesh: Any) -> Any:
        with checkpoint.on_meta():
            return make_two_halves(mesh)

    with pytest.raises(lostwax.errors.LoadError, match=r"1 not in the checkpoint: up\.weight"):
        lostwax.export_ranks(make, (vectors(3)(),), mesh={"tp": 2})


def test_it_needs_no_other_process() -> None:
    """Nothing waits for a rank that is not there, and the weights of 70 billion are not made."""
    code = """
import torch, lostwax
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def make(mesh):
    with torch.device("meta"):
        pairs = [nn.Linear(100_000, 700_000, False), nn.Linear(700_000, 100_000, False)]
        module = nn.Sequential(*pairs)
    return parallelize_module(module, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})

ranks = lostwax.export_ranks(make, (torch.empty(2, 100_000, device="meta"),), mesh={"tp": 8})
print(len(ranks), ranks.groups, ranks[7].state_dict["0.weight._local_tensor"].shape)
"""
    done = run_python(code, loaded=LOADED)
    wanted = "8 [[0, 1, 2, 3, 4, 5, 6, 7]] torch.Size([87500, 100000])\n"
    assert done.stdout == wanted, done.stderr
