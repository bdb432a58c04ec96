"""Architectures of timm and transformers with `keep="composite"` have the nodes that torch.export's
programs have. In a process of its own: loading the libraries changes what others find."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.fresh import run_module
from tests.whole import sampled


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("timm", "torchvision", "transformers")),
    reason="compares programs of timm's and transformers' models: extra `sweep`",
)
def test_nodes_are_torchs() -> None:
    names = sampled(["mobilenetv3_small_050", "DistilBertModel"], [])  # without names, eight
    done = run_module("sweep.composites", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("more: {} fewer: {}") == sampled(2, 8)
