"""Quantized operators in the runtime, which has no kernels for them: the same to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

import lostwax
from tests.pte.runtime import assert_close

q = torch.ops.quantized_decomposed
ROWS = torch.cat([torch.linspace(-3, 3, 40), torch.tensor([0.125, 0.375, -0.125, 1e9])]).view(4, 11)
INTEGERS = torch.arange(-128, 127, 5, dtype=torch.int8)[:44].view(4, 11)
SCALES, ZEROS = torch.rand(4) + 0.01, torch.tensor([0, 3, -7, 100])
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)


def quantize_as_it_runs(x: Tensor) -> Any:
    scale, zero = q.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
    integers = q.quantize_per_tensor.tensor(x, scale, zero, *INT8)
    return scale, zero, integers, q.dequantize_per_tensor.tensor(integers, scale, zero, *INT8)


def quantize_by_channel(x: Tensor) -> Any:
    integers = q.quantize_per_channel.default(x, SCALES, ZEROS, 0, *INT8)
    return integers, q.dequantize_per_channel.default(integers, SCALES, ZEROS, 0, *INT8)


CASES: dict[str, Any] = {
    "to int8": (lambda x: q.quantize_per_tensor.default(x, 0.25, 3, *INT8), ROWS),
    "to uint8": (lambda x: q.quantize_per_tensor.default(x, 0.03, 100, *UINT8), ROWS),
    "to fewer": (lambda x: q.quantize_per_tensor.default(x, 0.1, 0, -8, 7, torch.int8), ROWS),
    "back": (lambda x: q.dequantize_per_tensor.default(x, 0.07, 5, *INT8), INTEGERS),
    "by channel": (quantize_by_channel, ROWS),
    "as it runs": (quantize_as_it_runs, ROWS[:3]),
    "of positive numbers": (quantize_as_it_runs, ROWS[:3].abs()),
    "of zeros": (quantize_as_it_runs, torch.zeros(2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    function, x = CASES[name]
    executable = lostwax.export(function, (x,)).to_edge().to_executable()
    got = lostwax.pte.load_runtime(executable.buffer).run((x,))
    want = function(x)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b), (a - b).abs().max()


class Layers(nn.Module):
    """Two layers with weights of integers: by channel, and by group."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.randint(-127, 128, (8, 6), dtype=torch.int8))
        self.register_buffer("second", torch.randint(-8, 8, (4, 8), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8) / 100)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("groups", torch.rand(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        given = self.first, self.scales, self.zeros
        x = x @ q.dequantize_per_channel.default(*given, 0, -127, 127, torch.int8).t()
        options = (-8, 7, torch.int8, 4, torch.float32)
        weight = q.dequantize_per_channel_group.default(self.second, self.groups, None, *options)
        return torch.relu(x) @ weight.t()


def test_weights_stay_integers_and_are_made_where_they_are_read() -> None:
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(1, 6)
    executable = lostwax.export(model, (x,)).to_edge().to_executable()
    listing = lostwax.pte.dump(executable.buffer)
    kernels = [line.split(" = ")[1].split("(")[0] for line in listing.splitlines() if " = " in line]
    assert kernels.index("aten::relu.out") < len(kernels) - 3  # what the second needs comes after
    assert "= aten::sub.out" not in listing  # zero points of zero
    assert executable.arena_sizes["forward"] < 4 * (8 * 6 + 4 * 8) + 200
    assert_close(lostwax.pte.load_runtime(executable.buffer).run((x,)), [model(x)])
