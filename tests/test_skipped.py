"""The end of a run tells which tests were skipped, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

needs_all = pytest.mark.skip(reason="needs all")

@needs_all
@pytest.mark.parametrize("n", range(3))
def test_marked(n):
    pass

def test_asked():
    pytest.skip("needs more")

def test_run():
    pass
"""


TORCH = "class cuda:\n    is_available = staticmethod(lambda: False)\n"
"""All of torch that is asked here; the true one would be loaded three times."""


@pytest.mark.parametrize("more", [[], ["-p", "xdist", "-n", "1"]], ids=["alone", "in processes"])
def test_reasons_are_told_with_counts(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "isolation.py").touch()
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they load much
    told = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment
    ).stdout
    assert "- 4 skipped -" in told
    assert "\n    3 needs all (test_some.py)\n    1 needs more (test_some.py)\n" in told
