"""Several versions of torch: what a user of an untested one is told, and that differences between
the tested ones stand in one place."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from lostwax import torch_version
from lostwax.ops import registry
from tests.fresh import run_python

ROOT = Path(__file__).parent.parent
OTHER = "import torch; torch.__version__ = '2.99.0a0+git1'; import lostwax"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return run_python(code, check=False)


def test_the_torch_at_hand_is_tested():
    assert torch_version.is_tested(), torch.__version__


def test_an_untested_torch_is_warned_of_and_exports():
    run = python(f"{OTHER}\nprint(lostwax.export(torch.nn.ReLU(), (torch.ones(1),)).dialect)")
    assert run.stdout, run.stderr
    assert "tested with torch 2.11, 2.12, 2.13, 2.14, 2.15; this is torch 2.99" in run.stderr
    assert run.stderr.count("UserWarning") == 1


def test_no_warning_of_a_tested_torch():
    run = python("import lostwax; lostwax.export")
    assert run.returncode == 0
    assert "Warning" not in run.stderr


def test_what_is_really_missing_is_said():
    run = python(f"{OTHER}\ndel torch.func.linearize\nlostwax.export")
    assert "ImportError: lostwax does not work with torch 2.99" in run.stderr
    assert "Install one of the versions that were tested: torch 2.11, 2.12" in run.stderr


def test_an_operator_that_an_untested_torch_lacks_is_no_error(monkeypatch):
    aten = registry._Aten()
    with pytest.raises(AttributeError, match="no operator 'gone'"):
        _ = aten.gone
    monkeypatch.setattr(torch_version, "TORCH", (2, 99))
    monkeypatch.setattr(registry, "aten", aten)
    before = registry.overloads_with_rules()
    monkeypatch.setattr(registry, "_facts", {**registry._facts})
    registry.rule("gone.Tensor")(lambda x: x)
    assert registry.overloads_with_rules() == before
    with pytest.raises(NotImplementedError, match="has no operator aten::gone"):
        aten.gone.Tensor(torch.ones(1))


@pytest.mark.parametrize("text", ["2.15.0", "2.15.1+cpu", "2.15.0a0+git1234", "2.15"])
def test_versions_are_read(text):
    assert torch_version.parse(text) == (2, 15)


def test_what_is_no_version_is_refused():
    with pytest.raises(ValueError, match="does not begin with a version"):
        torch_version.parse("main")


def test_the_bounds_of_the_package_are_what_was_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (first, *_, last) = torch_version.TESTED
    bounds = f"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
    assert bounds in project["dependencies"]


def test_versions_are_asked_for_in_one_place():
    """A file of the package that needs to know asks for a difference by name."""
    asks = re.compile(r"\bTORCH\b|\bTESTED\b|hasattr\((?:torch|aten)\b")
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "lostwax").rglob("*.py")
        if asks.search(path.read_text())
    }
    assert found <= {"lostwax/torch_version.py", "lostwax/ir/decompose/core_aten.py"}
