"""Architectures of timm and transformers with `keep="composite"` have the nodes that torch.export's
programs have. In a process of its own: loading the libraries changes what others find."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.whole import sampled

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("timm", "torchvision", "transformers")),
    reason="compares programs of timm's and transformers' models: extra `sweep`",
)
def test_nodes_are_torchs() -> None:
    names = sampled(["mobilenetv3_small_050", "DistilBertModel"], [])  # without names, eight
    command = [sys.executable, "-m", "sweep.composites", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("more: {} fewer: {}") == sampled(2, 8)
