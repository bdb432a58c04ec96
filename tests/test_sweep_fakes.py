"""Some of the sweep's architectures, exported from tensors on cuda, where there is none; `make
sweep` exports all."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.fresh import run_module
from tests.whole import sampled


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed: make consumers")
def test_nothing_is_on_another_device() -> None:
    run = run_module("sweep.fakes", "--part", sampled("1/32", "1/8"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "are all on cuda" in run.stdout
