"""The public face: what it offers, and that it costs nothing until it is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lostwax


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize("name", lostwax.__all__)
def test_every_public_name_is_there(name):
    assert getattr(lostwax, name) is not None
    assert name in dir(lostwax)


@pytest.mark.parametrize("code", ["import lostwax", "import lostwax; lostwax.errors; dir(lostwax)"])
def test_importing_lostwax_imports_no_torch(code):
    assert python(f"{code}\nimport sys; print('torch' in sys.modules)") == "False"


def test_the_symbolic_engine_imports_no_torch():
    code = "import lostwax; lostwax.ShapeEnv\nimport sys; print('torch' in sys.modules)"
    assert python(code) == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wax'"):
        _ = lostwax.wax


def test_one_version():
    """That of the newest section of the changelog; before it is released, a version before it."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["version"] == lostwax.__version__
    changes = (root / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(.+)\]( \(unreleased\))?$", changes, re.MULTILINE)
    assert lostwax.__version__ == newest[1] + (".dev0" if newest[2] else "")


def test_the_list_of_public_names_is_what_type_checkers_take_as_public():
    """`__init__.py` reads it by the words."""
    listed = ast.parse(Path(lostwax.__file__).with_suffix(".pyi").read_text()).body
    found = [(alias.name, alias.asname) for n in listed[1:-1] for alias in n.names]
    assert all(name == public for name, public in found)
    assert sorted([name for name, _ in found] + ["__version__"]) == lostwax.__all__


def test_dir_lists_public_names_alone():
    _ = lostwax.export, lostwax.ShapeEnv
    assert set(lostwax.__all__) <= set(dir(lostwax))
    assert [name for name in dir(lostwax) if name[0] == "_"] == ["__version__"]
    assert not {"Any", "sys", "ir", "sym", "cache", "late_imports"} & set(dir(lostwax))
