"""Weights in a `.ptd` file beside the program, read by the real runtime."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax import ExecutableConfig
from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file
from tests.pte.models import CASES, make_module
from tests.pte.runtime import assert_close, portable

BESIDE = ExecutableConfig(weights_beside=True)


@pytest.mark.parametrize("name", ["convolutions", "attention", "decoder"])
def test_the_runtime_reads_both_files(name: str, tmp_path: Any) -> None:
    case = CASES[name]
    module = make_module(case)
    edge = lostwax.export(module, case.inputs(2)).to_edge()
    executable = edge.to_executable(BESIDE)
    executable.save(tmp_path / "model.pte")
    full = portable.Verification.InternalConsistency
    loaded = portable._load_for_executorch(
        str(tmp_path / "model.pte"), str(tmp_path / "model.ptd"), program_verification=full
    )
    inputs = case.inputs(2)
    with torch.no_grad():
        wanted = tree_leaves(module(*inputs))
    assert_close(loaded.forward(inputs), wanted)
    assert_close(lostwax.pte.run(tmp_path / "model.pte", inputs), wanted)
    weights = read_file(edge.to_executable().buffer).segments[0][1]
    assert read_file(executable.buffer).segments[0][1] == 0
    assert len(executable.weights or b"") >= weights > 0


def test_other_weights_under_the_same_names() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    one, other = nn.Sequential(one, nn.LayerNorm(2)), nn.Sequential(other, nn.LayerNorm(2))
    nn.init.zeros_(one[0].bias)  # as is that of the norm
    x = torch.randn(1, 3)
    made = [lostwax.export(m, (x,)).to_edge().to_executable(BESIDE) for m in (one, other)]
    assert made[0].buffer == made[1].buffer
    got = lostwax.pte.run(made[0].buffer, [x], weights=made[1].weights)
    assert_close(got, [other(x)])
    assert "weight" in lostwax.pte.dump(made[0].buffer)


def test_methods_share_weights_beside() -> None:
    layer = nn.Linear(64, 64)
    program = lostwax.export(layer, (torch.ones(1, 64),))
    double = lostwax.export(nn.Sequential(layer, layer), (torch.ones(1, 64),))
    edge = lostwax.to_edge({"one": program, "two": double})
    executable = edge.to_executable(BESIDE)
    assert len(executable.weights or b"") < 64 * 64 * 4 * 1.2
    for method, module in (("one", layer), ("two", nn.Sequential(layer, layer))):
        x = torch.randn(1, 64)
        got = lostwax.pte.run(executable.buffer, [x], method=method, weights=executable.weights)
        assert_close(got, [module(x)])
    assert lostwax.check(executable, layer, method="one").ok


class Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(1))
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        self.n.add_(1)
        return x * self.w + self.n


def test_shared_state_with_weights_beside_is_refused_by_python() -> None:
    program = lostwax.export(Count(), (torch.ones(1),))
    executable = lostwax.to_edge({"a": program, "b": program}).to_executable(BESIDE)
    with pytest.raises(LoadError, match="share state with weights beside"):
        lostwax.pte.load_runtime(executable.buffer, executable.weights)


def test_both_files_are_written_or_none(tmp_path: Any, monkeypatch: Any) -> None:
    executable = lostwax.export(nn.Linear(3, 2), (torch.ones(1, 3),)).to_edge()
    executable = executable.to_executable(BESIDE)

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="full"):
            executable.save(tmp_path / "x.pte")
    assert list(tmp_path.iterdir()) == []
    executable.save(tmp_path / "x.pte")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.ptd", "x.pte"]


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3)).eval()


@pytest.fixture(scope="module")
def weights(module: nn.Module) -> bytes:
    executable = lostwax.export(module, (torch.tensor([1, 2]),)).to_edge().to_executable(BESIDE)
    assert executable.weights is not None
    return executable.weights


def test_weights_are_read_back(module: nn.Module, weights: bytes, tmp_path: Any) -> None:
    path = tmp_path / "model.ptd"
    path.write_bytes(weights)
    for file in (weights, path, str(path)):
        found = lostwax.pte.load_weights(file)
        assert found.keys() == dict(module.named_parameters()).keys()
        for name, parameter in module.named_parameters():
            assert torch.equal(found[name], parameter)


def test_weights_of_every_dtype_are_read_back() -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.float16):
                name = str(dtype).removeprefix("torch.")
                self.register_buffer(name, torch.randint(0, 2, (3, 2)).to(dtype))
            self.register_buffer("scalar", torch.tensor(7))

        def forward(self, x: Any) -> Any:
            return [x + buffer for buffer in self.buffers()]

    module = Constants()
    executable = lostwax.export(module, (torch.ones(2),)).to_edge().to_executable(BESIDE)
    assert executable.weights is not None
    found = lostwax.pte.load_weights(executable.weights)
    for name, buffer in module.named_buffers():
        assert found[name].dtype is buffer.dtype
        assert torch.equal(found[name], buffer)


def test_every_truncation_of_weights_is_refused(weights: bytes) -> None:
    for end in range(0, len(weights) - 1, 5):
        with pytest.raises(LoadError):
            lostwax.pte.load_weights(weights[:end])


def test_damaged_weights_are_refused_or_read(weights: bytes) -> None:
    chance = random.Random(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(weights)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(min(len(weights), 700))] = chance.randrange(256)
        try:
            lostwax.pte.load_weights(bytes(damaged))
        except LoadError:
            refused += 1
    assert refused > 300


def test_a_program_is_no_file_of_weights(weights: bytes) -> None:
    program = lostwax.export(nn.Linear(2, 2), (torch.ones(1, 2),)).to_edge().to_executable()
    with pytest.raises(LoadError, match=r"not a \.ptd file"):
        lostwax.pte.load_weights(program.buffer)
    with pytest.raises(LoadError, match=r"not a \.pte file"):
        lostwax.pte.dump(weights)
