"""The distributions have what they should: the source all that is kept in git, the wheel the
package with its data, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = 77
"""The setuptools that pyproject.toml asks for; environments of other torches may have another."""


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    return {name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The names of the files in the source distribution, in the wheel, and in the wheel of an
    editable install, built from a copy; and the metadata of the wheel, a file."""
    if int(version("setuptools").partition(".")[0]) < OLDEST:
        pytest.skip(f"needs setuptools {OLDEST}")
    folder = tmp_path_factory.mktemp("copy")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    build = "from setuptools import build_meta as b; b.build_sdist('out'); b.build_wheel('out')"
    build += "; b.build_editable('editable')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    (source,), (wheel,) = (folder / "out").glob("*.tar.gz"), (folder / "out").glob("*.whl")
    with tarfile.open(source) as archive:
        files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    (editable,) = (folder / "editable").glob("*.whl")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(editable) as path:
        (about,) = (name for name in whole.namelist() if name.endswith(".dist-info/METADATA"))
        (folder / "METADATA").write_bytes(whole.read(about))
        return files, set(whole.namelist()), set(path.namelist()), folder / "METADATA"


def test_the_source_has_all_that_is_in_git(tracked, built):
    made = {name for name in built[0] if name.startswith("lostwax.egg-info/")}
    assert built[0] - made - {"PKG-INFO", "setup.cfg"} == tracked


def test_the_wheel_has_the_package_with_its_data(tracked, built):
    package = {name for name in tracked if name.startswith("lostwax/")}
    assert {name for name in built[1] if ".dist-info/" not in name} == package


def test_an_index_shows_the_readme_without_links_to_files_that_it_does_not_have(built):
    said = built[3].read_text()
    _, _, shown = said.partition("\n\n")
    assert "\nDescription-Content-Type: text/markdown\n" in said
    assert shown.startswith("# lostwax\n")
    assert "- docs/start.md: from a module to a device" in shown
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []


def test_type_checkers_follow_an_editable_install(built):
    """It is a path, and no code that finds imports."""
    assert [name for name in built[2] if "finder" in name] == []
    assert [name for name in built[2] if name.endswith(".pth")]


def test_the_classifiers_say_which_python_it_takes():
    said = {
        tuple(map(int, c.rpartition(" ")[2].split(".")))
        for c in PROJECT["classifiers"]
        if c.startswith("Programming Language :: Python :: 3.")
    }
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, min(said)))
