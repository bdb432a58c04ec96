"""Files from every tested version of torch: read here, whatever torch this is; and what we wrote
with any of them, the torch at hand reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import lostwax
from lostwax.torch_version import TESTED
from tests.pt2.corpus import FOLDER, PROGRAMS, module

FILES = sorted(FOLDER.glob("*/*.pt2"))
OURS = [file for file in FILES if file.stem.endswith("-lostwax")]


def name_of(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


def assert_computes(file: Path, loaded: Any) -> None:
    """What eager computes, three times, at two sizes."""
    name = file.stem.partition("-")[0]
    program, eager = PROGRAMS[name], module(name)
    for args in (program.args, program.other, program.args):
        want, got = eager(*args), loaded(*args)
        if isinstance(want, dict):
            assert got.keys() == want.keys()
            assert (got["count"], got["rest"]) == (want["count"], want["rest"])
            want, got = ([out["flat"], out["places"]] for out in (want, got))
        assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_we_read_it(file: Path) -> None:
    program = lostwax.load(file)
    program.validate()
    assert_computes(file, program.module())
    assert_computes(file, program.run_decompositions().module())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", OURS, ids=name_of)
def test_torch_reads_it(file: Path) -> None:
    assert_computes(file, torch.export.load(file).module())


def test_every_version_is_there() -> None:
    folders = {f"{major}.{minor}" for major, minor in TESTED}
    assert {file.parent.name for file in FILES} == folders
    assert len(FILES) == len(folders) * len(PROGRAMS) * 2
