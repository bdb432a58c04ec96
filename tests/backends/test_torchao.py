"""Layers that torchao's `quantize_` gave weights of 8 and 4 bits, in XNNPACK and without it, run by
the real runtime beside the quantized module."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from tests.backends.quantized import list_nodes, lower, run

torchao: Any = pytest.importorskip("torchao.quantization")
granularity: Any = pytest.importorskip("torchao.quantization.granularity")
utils: Any = pytest.importorskip("torchao.utils")
pytestmark = pytest.mark.filterwarnings("ignore")

EACH_LAYER = ["Convert rows of i8", "FullyConnected f32"]
CASES: dict[str, tuple[torch.dtype, Any, float]] = {
    "8 bits": (torch.int8, granularity.PerAxis(0), 1e-5),
    "4 bits": (torch.int4, granularity.PerAxis(0), 1e-5),
    # XNNPACK has the scales of groups in bfloat16: 2 ** -9 of each product
    "4 bits in groups": (torch.int4, granularity.PerGroup(32), 0.01),
}


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 64)
        self.layers = nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 64, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.table(x))  # type: ignore[no-any-return]


def make(dtype: torch.dtype, block: Any, layers: Any = None) -> tuple[nn.Module, nn.Module]:
    """Layers, and the same quantized."""
    torch.manual_seed(0)
    model = layers or nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5, bias=False))
    config = torchao.Int8DynamicActivationIntxWeightConfig
    quantized = copy.deepcopy(model)
    torchao.quantize_(quantized, config(weight_dtype=dtype, weight_granularity=block))
    return model, quantized


@pytest.mark.parametrize("name", CASES)
def test_weights(name: str) -> None:
    dtype, block, close = CASES[name]
    model, module = make(dtype, block)
    x = torch.randn(1, 3, 64)
    utils.unwrap_tensor_subclass(module)
    lowered = lower(module, (x,))
    assert lowered.delegation_report().share == 1
    assert list_nodes(lowered) == EACH_LAYER * 2
    want = module(x)
    torch.testing.assert_close(
        run(lowered, (x,)), want, rtol=0, atol=close * float(want.abs().max())
    )
    assert (want - model(x)).norm() < 0.15 * want.norm()
    plain = lostwax.export(module, (x,), keep="composite").to_edge()
    torch.testing.assert_close(run(plain, (x,)), want, rtol=0, atol=1e-5)


def test_what_stays_is_not_taken_apart_everywhere() -> None:
    """An embedding of integers, and a layer whose groups XNNPACK has not, stay; others do not."""
    _, module = make(torch.int4, granularity.PerAxis(0), Tokens())
    config = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int8)
    torchao.quantize_(module, config, lambda m, _: isinstance(m, nn.Embedding))
    utils.unwrap_tensor_subclass(module)
    x = torch.tensor([[3, 0, 19]])
    lowered = lower(module, (x,))
    left = [each.operator.split(".")[-2] for each in lowered.delegation_report().undelegated]
    assert left == ["dequantize_affine", "embedding"]
    assert list_nodes(lowered) == EACH_LAYER * 2
    want = module(x)
    torch.testing.assert_close(
        run(lowered, (x,)), want, rtol=0, atol=0.01 * float(want.abs().max())
    )


def test_groups_that_xnnpack_has_not() -> None:
    _, module = make(torch.int4, granularity.PerGroup(16))
    utils.unwrap_tensor_subclass(module)
    x = torch.randn(2, 64)
    lowered = lower(module, (x,))
    report = lowered.delegation_report()
    assert "for layers with symmetric weights of 8 bits, or of 4" in str(report)
    assert len(report.undelegated) == 6
    torch.testing.assert_close(run(lowered, (x,)), module(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["ASYMMETRIC", "SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"])
def test_operators_without_a_backend(kind: str) -> None:
    """The runtime's own kernels compute the same, to the last bit."""
    ops = torch.ops.torchao
    form = (torch.int8, -128, 127)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        scale, zero = ops.choose_qparams_affine.default(
            x, kind, [1, 4], *form, 1e-5, None, torch.int8
        )
        integers = ops.quantize_affine.default(x, [1, 4], scale, zero, *form)
        return (
            scale,
            zero,
            integers,
            ops.dequantize_affine.default(integers, [1, 4], scale, zero, *form),
        )

    x = torch.randn(5, 8)
    lowered = lower(step, (x,))
    got = lostwax.pte.load_runtime(lowered.to_executable().buffer).run((x,))
    assert "torchao" in str(lowered.delegation_report())
    for a, b in zip(got, step(x), strict=True):
        assert torch.equal(a, b)
