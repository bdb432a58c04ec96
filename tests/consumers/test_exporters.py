"""Some of the models for which `transformers.exporters` patches transformers, exported without."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.fresh import run_module
from tests.whole import sampled


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_encoders_that_loop_over_lengths() -> None:
    """In a process of its own: the sweep keeps transformers from importing torchao."""
    models = {
        "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
        **sampled({}, {"video_llama": "VideoLlama3VisionModel"}),
    }
    done = run_module("sweep.exporters", "--only", *models)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[: len(models)]]
    assert [row[:5] for row in rows] == [[name] + ["ok"] * 4 for name in models.values()]
