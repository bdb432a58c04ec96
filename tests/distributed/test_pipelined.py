"""Stages of programs under `torch.distributed.pipelining`: what the processes run stands in
`pipelined.py`."""

from __future__ import annotations

import pytest

from tests.distributed import pipelined
from tests.distributed.pipelined import CASES
from tests.distributed.ranks import run_ranks
from tests.whole import sampled


@pytest.fixture(scope="module", params=sampled([2], [2, 4]))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, str]]:
    assert pipelined.__spec__ is not None
    return run_ranks(pipelined.__spec__.name, tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("name", CASES)
def test_each_stage(name: str, told: list[dict[str, str]]) -> None:
    for rank, found in enumerate(told):
        assert not found[name], f"rank {rank}: {found[name]}"
