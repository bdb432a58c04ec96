"""A rank that fails ends the others with an error, within the time limit of the group. What the
processes run stands in `failing.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import failing
from tests.distributed.failing import CASES, DYING
from tests.distributed.ranks import run_ranks


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    assert failing.__spec__ is not None
    return run_ranks(failing.__spec__.name, Path(tmp_path_factory.mktemp("ranks")))


@pytest.mark.parametrize("name", CASES)
def test_the_others_end_with_an_error(name: str, told: list[dict[str, str]]) -> None:
    for rank, found in enumerate(told):
        if name == DYING and rank:
            assert name not in found  # it is dead
        else:
            assert not found[name], f"rank {rank}: {found[name]}"
