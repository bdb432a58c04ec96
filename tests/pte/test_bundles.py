"""Bundled programs: a file with calls, and what each is to return; ExecuTorch reads them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.checking.bundle import check_bundle
from lostwax.errors import LoadError, SaveError
from lostwax.pte.file.bundle import Bundle, BundledCase, write_bundle


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> Any:
        return {"y": torch.relu(self.conv(x)) * scale, "mean": x.mean().to(torch.float16)}


def bundle(folder: Path, calls: Any = None) -> Path:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    edge = lostwax.export(Net(), (x,)).to_edge().to_backend(XnnpackPartitioner())
    executable = edge.to_executable()
    calls = [(x,), (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),)]
    executable.save(folder / "m.pte", bundled=calls)
    assert (folder / "m.pte").read_bytes() == executable.buffer
    return folder / "m.bpte"


def test_the_file_has_calls_and_results(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    found = lostwax.pte.read_bundle(path)
    assert found.program == (tmp_path / "m.pte").read_bytes()
    cases = found.cases["forward"]
    assert [[*case.inputs[0].shape] for case in cases] == [[1, 3, 8, 8]] * 2
    assert [value.dtype for value in cases[0].expected] == [torch.float32, torch.float16]
    result = check_bundle(path)
    assert result.agreed == ("call 0 of forward", "call 1 of forward")
    assert result.ok


def test_executorch_reads_and_verifies_it(tmp_path: Path) -> None:
    serialize = pytest.importorskip("executorch.devtools.bundled_program.serialize")
    runtime = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    data = bundle(tmp_path).read_bytes()
    theirs = serialize.deserialize_from_flatbuffer_to_bundled_program(data)
    assert theirs.version == 2
    assert bytes(theirs.program) == (tmp_path / "m.pte").read_bytes()
    (suite,) = theirs.method_test_suites
    assert suite.method_name == "forward"
    assert list(suite.test_cases[0].inputs[0].val.sizes) == [1, 3, 8, 8]
    module = runtime._load_bundled_program_from_buffer(data)
    for at in range(2):
        module.verify_result_with_bundled_expected_output("forward", at, 1e-3, 1e-3)
    wrong = lostwax.pte.read_bundle(data)
    case = wrong.cases["forward"][0]
    worse = BundledCase(case.inputs, (case.expected[0] + 1, case.expected[1]))
    module = runtime._load_bundled_program_from_buffer(
        write_bundle(wrong.program, {"forward": [worse]})
    )
    with pytest.raises(RuntimeError):
        module.verify_result_with_bundled_expected_output("forward", 0, 1e-3, 1e-3)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(()),
        torch.ones(0, 3),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.randn(1, 3, 2, 2).to(memory_format=torch.channels_last),
        3, -(1 << 40), 0.1, True,
    ],
)  # fmt: skip
def test_values_are_what_they_were(value: Any) -> None:
    data = write_bundle(b"program", {"f": [BundledCase((value,), ())], "a": []})
    found = lostwax.pte.read_bundle(data)
    (got,) = found.cases["f"][0].inputs
    assert type(got) is type(value)
    torch.testing.assert_close(got, value, rtol=0, atol=0)
    assert found.program == b"program"
    assert [*found.cases] == ["a", "f"]
    assert data.index(b"program") % 32 == 0


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([], "bundled has no calls of 'forward'"),
        ([torch.ones(1)], "is a Tensor\n  instead: a tuple of arguments"),
        ({"other": [(1,)]}, "there is no method 'other'"),
        ([(torch.ones(2, 3),)], "x has 2 dimensions"),
    ],
)
def test_wrong_calls_are_refused_before_a_file_is_written(
    calls: Any, text: str, tmp_path: Path
) -> None:
    executable = lostwax.export(lambda x: x + 1, (torch.ones(1),)).to_edge().to_executable()
    with pytest.raises((SaveError, lostwax.errors.LostwaxError)) as info:
        executable.save(tmp_path / "m.pte", bundled=calls)
    assert text in str(info.value)
    assert [*tmp_path.iterdir()] == []


def test_damaged_files_say_what_is_wrong(tmp_path: Path) -> None:
    good = bundle(tmp_path).read_bytes()
    rng = random.Random(0)
    for _ in range(2000):
        data = bytearray(good)
        head = len(good) if rng.random() < 0.5 else 400
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(head)] = rng.randrange(256)
        cut = rng.randrange(len(data)) if rng.random() < 0.3 else len(data)
        with suppress(LoadError):
            assert isinstance(lostwax.pte.read_bundle(bytes(data[:cut])), Bundle)
