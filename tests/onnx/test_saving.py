"""ONNX files: weights inside and beside, replaced whole, the same bytes each time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import OnnxError
from tests.onnx.running import onnx, onnxruntime


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return lostwax.export(nn.Linear(64, 32), (torch.ones(2, 64),))


def run(path: Path) -> torch.Tensor:
    session = onnxruntime.InferenceSession(path)
    return torch.from_numpy(session.run(None, {"input": torch.ones(2, 64).numpy()})[0])


@pytest.mark.parametrize("beside", [False, True])
def test_weights_inside_and_beside(program, tmp_path: Path, beside: bool) -> None:
    path = tmp_path / "model.onnx"
    lostwax.onnx.save(program, path, external_data=beside)
    onnx.checker.check_model(str(path), full_check=True)
    torch.testing.assert_close(run(path), program.module()(torch.ones(2, 64)))
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"][: 1 + beside]


def test_the_same_program_gives_the_same_bytes(program, tmp_path: Path) -> None:
    for name in ("a", "b"):
        lostwax.onnx.save(program, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_stays_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    bad = lostwax.export(torch.linalg.eigvalsh, (torch.eye(3),))
    with pytest.raises(OnnxError):
        lostwax.onnx.save(bad, path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_half_precisions_keep_their_bits(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = nn.Linear(3, 2).to(dtype)
        model = lostwax.export(layer, (torch.ones(1, 3, dtype=dtype),)).to_onnx()
        held = model.graph.initializers["weight"].const_value
        assert held.tobytes() == layer.weight.detach().view(torch.int16).numpy().tobytes()


def test_a_target_that_is_no_path(program) -> None:
    with pytest.raises(OnnxError, match="a model is written to a path, not to a list"):
        lostwax.onnx.save(program, [])
