"""Programs on a real GPU agree with eager: models in float32, bfloat16, float16, TF32 and autocast,
evaluated and trained; recurrent layers, convolutions, attention; save and load. `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.cases import cases

CASES = cases()
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _flags_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own testing module, which other tests import, forbids it for good."""
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)


@pytest.mark.parametrize("name", CASES)
def test_it_agrees(name: str) -> None:
    CASES[name]()
