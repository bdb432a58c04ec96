"""Some of the models for which `transformers.exporters` patches transformers, exported without."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.whole import sampled

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_encoders_that_loop_over_lengths() -> None:
    """In a process of its own: the sweep keeps transformers from importing torchao."""
    models = {
        "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
        **sampled({}, {"video_llama": "VideoLlama3VisionModel"}),
    }
    command = [sys.executable, "-m", "sweep.exporters", "--only", *models]
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[: len(models)]]
    assert [row[:5] for row in rows] == [[name] + ["ok"] * 4 for name in models.values()]
