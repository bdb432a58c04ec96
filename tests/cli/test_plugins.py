"""Backends and libraries of models of the command line: ours, and those of other packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lostwax as face
from lostwax.errors import CommandError, LoweringError
from lostwax.late_imports import find_partitioner, list_backends

OTHER = """
import torch
from lostwax.backends import CapabilityPartitioner, DelegationSpec, Backend

class Chip(Backend):
    def preprocess(self, program, specs):
        return b"chip"

class ChipPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(DelegationSpec(Chip()), lambda node: "")

def build(name, options):
    return torch.nn.Linear(int(options.get("wide", 3)), 2), (torch.ones(1, 3),)
"""
POINTS = """
[lostwax.backends]
chip = chips:ChipPartitioner
[lostwax.models]
chips = chips:build
"""


@pytest.fixture
def chips(tmp_path, monkeypatch):
    """Another package, as pip would install it."""
    (tmp_path / "chips.py").write_text(OTHER)
    about = tmp_path / "chips-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: chips\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("chips", None)


def test_each_folder_of_backends_is_one():
    folders = [each.parent.name for each in (Path(face.backends.__path__[0])).glob("*/__init__.py")]
    assert {*folders} <= {*list_backends()}
    for name in folders:
        assert isinstance(find_partitioner(name), face.backends.Partitioner)


def test_another_package_has_a_backend_and_models(chips, lostwax, folder):
    ran = lostwax("export", "chips:any?wide=3", "-o", "m.pte", "--backend", "chip", "--json")
    (made,) = ran.json["result"]["models"]
    assert made["delegated"] == 1.0
    assert b"Chip" in (folder / "m.pte").read_bytes()


@pytest.mark.parametrize(
    ("name", "told"), [("xnpack", ".*did you mean"), ("zz", "\n  instead: xnnpack; a partitioner")]
)
def test_an_unknown_backend(name, told):
    for refuse in (CommandError, LoweringError):
        with pytest.raises(refuse, match=f"there is no backend '{name}'{told}"):
            find_partitioner(name, refuse)
