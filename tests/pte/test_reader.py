"""Files as listings; and files that lie, which are refused and do no harm."""

from __future__ import annotations

import random
import re
import struct
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file
from tests.fresh import run_python


@pytest.fixture(scope="module")
def buffer() -> bytes:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    dynamic = ({0: lostwax.Dim("batch", max=9)},)
    program = lostwax.export(module.eval(), (torch.randn(3, 4),), dynamic_shapes=dynamic)
    buffer: bytes = program.to_edge().to_executable().buffer
    return buffer


def test_a_listing(buffer: bytes, tmp_path: Any) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(buffer)
    text = lostwax.pte.dump(path)
    assert text == lostwax.pte.dump(buffer)
    assert "def forward(t0: f32[9, 4] at most @ arena 1+" in text
    assert "aten::linear.out(t0, c1, c2, t" in text
    assert "return t" in text


def test_views_are_shown_where_they_are_read() -> None:
    class Folds(nn.Module):
        def forward(self, x: Any) -> Any:
            y = (x + 1).view(-1, 6)
            return (y * 2).flatten(), y

    program = lostwax.export(Folds(), (torch.randn(4, 3),))
    text = lostwax.pte.dump(program.to_edge().to_executable().buffer)
    made = set(re.findall(r"(t\d+): ", text.partition("return")[0]))
    read = set(re.findall(r"(t\d+)[,):]", text))
    assert read <= made
    assert re.search(r"t\d+: f32\[2, 6\] @ arena \S+ = view of t\d+\n", text)


def test_a_file_of_executorch_itself_is_read() -> None:
    from executorch.exir import to_edge

    program = torch.export.export(nn.Linear(4, 2), (torch.randn(3, 4),))
    text = lostwax.pte.dump(to_edge(program).to_executorch().buffer)
    assert "aten::addmm.out(" in text


def test_every_truncation_is_refused(buffer: bytes) -> None:
    for end in range(0, len(buffer), 7):
        with pytest.raises(LoadError):
            lostwax.pte.dump(buffer[:end])


def test_random_damage_is_refused_or_read(buffer: bytes) -> None:
    chance = random.Random(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(buffer)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(900)] = chance.choice([0, 255, 127, chance.randrange(256)])
        try:
            lostwax.pte.dump(bytes(damaged))
        except LoadError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (12, struct.pack("<I", 8), "header"),
        (16, struct.pack("<Q", 1 << 60), "speaks of"),
        (24, struct.pack("<Q", 1 << 63), "speaks of"),
        (0, struct.pack("<I", 0xFFFFFFFF), "does not lie in the file"),
        (4, b"ZZ12", "not a .pte file"),
    ],
)
def test_a_header_that_lies(buffer: bytes, offset: int, value: bytes, message: str) -> None:
    damaged = buffer[:offset] + value + buffer[offset + len(value) :]
    with pytest.raises(LoadError, match=message):
        read_file(damaged)


KERNELS = """
from lostwax.pte.lowering.kernels import FILE, kernel_names
from tests.pte.list_kernels import list_kernels
from tests.pte.runtime import portable

assert FILE.read_text() == list_kernels()
assert kernel_names() == set(portable._get_operator_names())
"""


def test_the_list_of_kernels_is_that_of_the_runtime() -> None:
    run_python(KERNELS)  # in this process other tests may have loaded more of them


def test_run_lays_inputs_out(tmp_path: Any) -> None:
    program = lostwax.export(nn.ReLU(), (torch.ones(2, 3),))
    path = tmp_path / "relu.pte"
    program.to_edge().to_executable().save(path)
    x = torch.randn(3, 2).t()
    assert torch.equal(lostwax.pte.run(path, [x])[0], x.relu())
    with pytest.raises(LoadError, match="takes 1 inputs, 2 are given"):
        lostwax.pte.run(path, [x, x])
    with pytest.raises(LoadError, match="no method 'backward'"):
        lostwax.pte.run(path, [x], method="backward")


def test_an_input_in_channels_last_is_read_as_it_lies() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    module = nn.Conv2d(3, 4, 3)
    executable = lostwax.export(module, (image,)).to_edge().to_executable()
    for given in (image, image.contiguous()):
        (result,) = lostwax.pte.run(executable.buffer, [given])
        torch.testing.assert_close(result, module(image).contiguous())
