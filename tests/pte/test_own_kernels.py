"""The tests of `own_kernels.py`, in a process whose runtime has more kernels than others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pte import runtime  # noqa: F401 (skips where there is none)

ROOT = Path(__file__).parents[2]


def test_custom_operators_by_kernels_of_the_users_runtime() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    file = str(Path(__file__).parent / "own_kernels.py")
    done = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 5:
        pytest.skip("ExecuTorch's operators for language models do not load")
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search("11 passed|10 passed, 1 skipped", done.stdout)
