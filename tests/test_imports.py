"""What an export loads, in a process of its own: its cost is the first thing that a user meets."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

_FIRST_EXPORT = """
import gc, sys
import torch

def collections():
    return gc.get_stats()[2]["collections"]

before = collections()
import lostwax
program = lostwax.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
"""


def python(code: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", _FIRST_EXPORT + code], capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_the_garbage_collector_does_not_walk_torch_meanwhile():
    """Once is as long as half of the import."""
    assert python("print(gc.isenabled(), collections() - before)") == ["True", "0"]
    assert python("program.run_decompositions(); print(collections() - before)") == ["0"]


def test_what_nobody_asked_for_is_not_loaded():
    loaded = python("print(*sys.modules)")
    assert "lostwax.capture.export" in loaded
    assert [name for name in loaded if name.startswith(("numpy.random", "fractions", "html"))] == []
