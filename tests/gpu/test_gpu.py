"""Programs on a real GPU agree with eager: models in float32, bfloat16, float16, TF32 and autocast,
evaluated and trained; recurrent layers, convolutions, attention; save and load. `make test-gpu`."""

from __future__ import annotations

import pytest

from tests.gpu.cases import cases

CASES = cases()
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_it_agrees(name: str) -> None:
    CASES[name]()
