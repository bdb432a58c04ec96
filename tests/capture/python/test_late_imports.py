"""Modules that a call imports for the first time, or by a name that is computed: their functions
are read as others are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lostwax import export, export_joint
from tests.capture.small import Of

HELPER = """
import torch
LAST, MADE = None, torch.ones(2)

def double(x):
    global LAST
    LAST = x
    return x * 2 * MADE if type(x) is torch.Tensor else x * 3
"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """The name of a module that nothing has imported yet."""
    name = f"helper_{tmp_path.name}".replace("-", "_")
    (Path(tmp_path) / f"{name}.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield name
    sys.modules.pop(name, None)


PLAINLY = """
def call(x):
    import {0}
    return {0}.double(x)
"""

BY_NAME = """
import importlib

def call(x, name="{0}"):
    return importlib.import_module("".join(name)).double(x)
"""


def make_call(source: str, helper: str) -> Callable[[torch.Tensor], torch.Tensor]:
    made: dict[str, Any] = {}
    exec(compile(source.format(helper), "calls.py", "exec"), made)
    return made["call"]


@pytest.mark.filterwarnings("ignore:the module keeps a tensor in LAST")
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("source", [PLAINLY, BY_NAME])
def test_its_functions_are_read(helper, source, is_loaded):
    x = torch.randn(2)
    if is_loaded:
        __import__(helper)
    program = export(make_call(source, helper), (x,))
    torch.testing.assert_close(program.module()(x), x * 2)
    loaded = sys.modules[helper]
    assert loaded.LAST is None
    assert type(loaded.MADE) is torch.Tensor


@pytest.mark.filterwarnings("ignore:the module keeps a tensor in LAST")
def test_a_joint_graph(helper):
    call, weight = make_call(PLAINLY, helper), nn.Parameter(torch.randn(2))
    module = Of(lambda self, x: call(x * self.weight).sum())
    module.weight = weight
    x = torch.randn(3, 2)
    program = export_joint(module, (x,))
    torch.testing.assert_close(program.module()(x)[0], module(x).detach())
