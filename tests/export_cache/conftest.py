from __future__ import annotations

from pathlib import Path

import pytest

from lostwax import cache
from lostwax.export_cache.cache import ExportCache


@pytest.fixture
def kept(tmp_path: Path) -> ExportCache:
    return cache(tmp_path / "exports")
