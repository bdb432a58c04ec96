"""Gradients of sharded parameters: what the processes run stands in `sharded_gradients.py`."""

from __future__ import annotations

import pytest

from tests.distributed import sharded_gradients
from tests.distributed.ranks import run_ranks
from tests.distributed.sharded_gradients import CASES, MORE
from tests.whole import sampled


@pytest.fixture(scope="module", params=sampled([2], [2, 4]))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, str]]:
    assert sharded_gradients.__spec__ is not None
    return run_ranks(
        sharded_gradients.__spec__.name, tmp_path_factory.mktemp("ranks"), request.param
    )


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_each_rank(name: str, told: list[dict[str, str]]) -> None:
    for rank, found in enumerate(told):
        assert not found[name], f"rank {rank}: {found[name]}"
