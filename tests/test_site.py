"""The site of the documentation builds without a warning: every page is in its contents, every link
leads somewhere, every docstring can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lostwax

ROOT = Path(__file__).parent.parent


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="sphinx is not installed: make site")
    pytest.importorskip("myst_parser")
    site = tmp_path / "site"
    command = [sys.executable, "-W", "ignore", str(ROOT / ".ci" / "site"), str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    reference = (site / "reference.html").read_text()
    functions = [n for n in lostwax.__all__ if n.islower() and callable(getattr(lostwax, n))]
    assert [n for n in functions if f'id="lostwax.{n}"' not in reference] == []
