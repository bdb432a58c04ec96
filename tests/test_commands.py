"""The commands that CI does not run can at least be loaded: a moved file breaks them unseen."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "bench").glob("*.py")))
def test_a_bench_loads(name: str) -> None:
    import_module(f"bench.{name}")
