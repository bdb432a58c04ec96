"""ONNX files: weights inside and beside, replaced whole, the same bytes each time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import OnnxError
from lostwax.onnx import writer
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


def test_transposed_weights_are_written_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_MOST_COPIED", 1000)
    for dtype in (torch.float32, torch.bfloat16):
        held = torch.randn(70, 41, 3).to(dtype).permute(2, 1, 0)[:, ::2]
        with (tmp_path / "data").open("wb") as file:
            writer.HeldTensor(held, "held").tofile(file)
        wanted = held.contiguous().view(torch.uint8).numpy().tobytes()
        assert (tmp_path / "data").read_bytes() == wanted


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


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(self.conv(x)).transpose(1, 2)).relu())


@pytest.fixture
def read(tmp_path: Path):
    """A program whose weights are views of a file, and the model that it is of."""
    safetensors = pytest.importorskip("safetensors.torch", reason="not installed: make consumers")
    torch.manual_seed(0)
    module = Small().eval()
    (tmp_path / "weights").mkdir()
    safetensors.save_model(module, str(tmp_path / "weights" / "model.safetensors"))
    checkpoint = lostwax.checkpoint(tmp_path / "weights")
    with checkpoint.on_meta():
        bound = Small().eval()
    checkpoint.bind(bound)
    program = lostwax.export(bound, (torch.ones(2, 4, 9),), keep="composite")
    return module, program


@pytest.mark.parametrize("below", [False, True])
def test_weights_stay_in_the_files_of_a_checkpoint(read, tmp_path: Path, below: bool) -> None:
    module, program = read
    folder = tmp_path if below else tmp_path / "weights"
    lostwax.onnx.save(program, folder / "model.onnx", external_data="checkpoint")
    assert not (folder / "model.onnx.data").exists()
    name = "weights/model.safetensors" if below else "model.safetensors"
    held = onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer
    there = [
        each.name for each in held if each.external_data and each.external_data[0].value == name
    ]
    assert {"conv.weight", "norm.running_var", "up.weight", "down.weight"} <= {*there}
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    x = torch.randn(2, 4, 9)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (found,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_files_that_cannot_be_referred_to(read, program, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for each in (read[1], program):
        with pytest.raises(OnnxError, match="no weights lie in "):
            lostwax.onnx.save(each, tmp_path / "other" / "a.onnx", external_data="checkpoint")
    with torch.no_grad():
        read[1].state_dict["up.weight"][0, 0] = 3
    with pytest.raises(OnnxError, match="were changed after they were read"):
        lostwax.onnx.save(read[1], tmp_path / "a.onnx", external_data="checkpoint")
    assert sorted(os.listdir(tmp_path)) == ["other", "weights"]
