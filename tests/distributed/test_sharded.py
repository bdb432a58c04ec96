"""Modules after `parallelize_module`: what two processes run stands in `sharded.py`."""

from __future__ import annotations

import pytest

from tests.distributed import sharded
from tests.distributed.ranks import LOADED, run_ranks
from tests.distributed.sharded import CASES, OF_RANK
from tests.fresh import run_python
from tests.whole import sampled


@pytest.fixture(scope="module", params=sampled([2], [2, 4]))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, str]]:
    assert sharded.__spec__ is not None
    return run_ranks(sharded.__spec__.name, tmp_path_factory.mktemp("ranks"), request.param)


def test_a_mesh_of_another_rank_is_refused() -> None:
    """torch's caches answer for the rank that a process was first."""
    code = """
import torch, torch.distributed as dist, lostwax
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from tests.distributed.sharded import make_mlp, vectors

for rank in (0, 1):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    with torch.device("meta"), torch.no_grad():
        module = make_mlp(init_device_mesh("cpu", (2,)))
        try:
            program = lostwax.export(module, (vectors(3)().to("meta"),))
            print(program.settings.groups[0].rank)
        except lostwax.errors.CaptureError as error:
            print(error)
    dist.destroy_process_group()
"""
    done = run_python(code, loaded=LOADED)
    first, *rest = done.stdout.splitlines()
    assert first == "0", done.stderr
    assert "on a mesh of rank 0, and this process is rank 1" in rest[0], done.stdout


@pytest.mark.parametrize("name", [*CASES, OF_RANK])
def test_each_rank(name: str, told: list[dict[str, str]]) -> None:
    for rank, found in enumerate(told):
        assert not found[name], f"rank {rank}: {found[name]}"
