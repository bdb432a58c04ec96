"""Programs that torchao quantized, in XNNPACK's eight bits, run by the real runtime: what they
compute is what the quantized module does, but for one step of the last scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.backends import XnnpackPartitioner
from tests.backends.quantized import Convnet, list_nodes, lower, quantize, run

pytestmark = pytest.mark.filterwarnings("ignore")


def make_images(count: int = 3) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(2, 3, 8, 8),) for _ in range(count)]


def find_step(module: Any) -> float:
    """The last scale of a module."""
    found = [n for n in module.graph.nodes if "quantize_per_tensor.default" in str(n.target)]
    return float(found[-1].args[1])


@pytest.fixture(scope="module")
def convnet() -> Any:
    torch.manual_seed(0)
    model, batches = Convnet().eval(), make_images()
    return model, quantize(model, batches), batches


def test_convnet(convnet: Any) -> None:
    """All of it is computed in eight bits, in one delegate; limits are part of what is before."""
    model, module, batches = convnet
    lowered = lower(module, batches[0])
    assert lowered.delegation_report().share == 1
    assert list_nodes(lowered) == [
        *("Convert i8", "StaticTranspose i8", "Conv2d i8", "DepthwiseConv2d i8", "Conv2d i8"),
        *("Add i8", "MaxPooling2d i8", "GlobalAvgPooling2d i8", "StaticReshape i8"),
        *("FullyConnected i8", "Convert f32"),
    ]
    for batch in batches:
        got, want = run(lowered, batch), module(*batch)
        assert (got - want).abs().max() <= find_step(module) * 1.01
        assert (got - model(*batch)).norm() < 0.05 * want.norm()


def test_layers_that_were_taken_apart() -> None:
    """`linear` of a batch of matrices is views and `addmm`: the same nodes, all the same."""
    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 6),) for _ in range(3)]
    module = quantize(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), batches)
    plain = lostwax.export(module, batches[0]).to_edge().to_backend(XnnpackPartitioner())
    names = ["Convert i8", "FullyConnected i8", "FullyConnected i8", "Convert f32"]
    assert list_nodes(plain) == names
    assert list_nodes(lower(module, batches[0])) == names
    for batch in batches:
        assert (run(plain, batch) - module(*batch)).abs().max() <= find_step(module) * 1.01


# ------------------------------------------------------------------------------- as it runs


@pytest.fixture(scope="module")
def layers() -> Any:
    """Layers whose activations are quantized as they run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 5)).eval()
    batches = [(torch.randn(1, 3, 16),) for _ in range(3)]
    return model, quantize(model, batches, dynamic=True), batches


def test_rows_are_quantized_as_they_run(layers: Any) -> None:
    """One row has one scale, in the module and in XNNPACK. Of several, XNNPACK's are each by
    itself: nearer to the model than the module is."""
    model, module, batches = layers
    names = ["Convert rows of i8", "FullyConnected f32", "Gelu f32"]
    names += ["Convert rows of i8", "FullyConnected f32"]
    plain = lostwax.export(module, batches[0]).to_edge().to_backend(XnnpackPartitioner())
    lowered = lower(module, batches[0])
    for each in (plain, lowered):
        assert each.delegation_report().share == 1
        assert list_nodes(each) == names
    row = (batches[0][0][:, :1].clone(),)
    single = lower(module, row)
    torch.testing.assert_close(run(single, row), module(*row), rtol=1e-4, atol=1e-4)
    for batch in batches:
        got, want = run(lowered, batch), model(*batch)
        assert (got - want).norm() <= 1.2 * (module(*batch) - want).norm()


def test_sizes_that_vary(layers: Any) -> None:
    model, module, batches = layers
    shapes = ({1: lostwax.Dim("rows", max=9)},)
    lowered = lower(module, batches[0], dynamic_shapes=shapes)
    assert lowered.delegation_report().share == 1
    for count in (1, 9, 4):
        x = torch.randn(1, count, 16)
        assert (run(lowered, (x,)) - model(x)).norm() < 0.03 * model(x).norm()


def test_one_quantization_for_layers_in_several_parts() -> None:
    """What is quantized once is quantized by each part that needs it."""
    x = torch.randn(2, 16)
    module = quantize(TwoParts(), [(x,)], dynamic=True)
    lowered = lower(module, (x,))
    report = lowered.delegation_report()
    assert len(report.delegates) == 2
    assert {each.operator.split(".")[-2] for each in report.undelegated} == {"erf"}
    assert (run(lowered, (x,)) - module(x)).abs().max() < 0.02


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x) * torch.erf(self.first(x))  # type: ignore[no-any-return]


def test_without_a_backend(convnet: Any, layers: Any) -> None:
    """The runtime's own kernels compute the same."""
    for _, module, batches in (convnet, layers):
        lowered = lostwax.export(module, batches[0], keep="composite").to_edge()
        torch.testing.assert_close(run(lowered, batches[0]), module(*batches[0]), atol=1e-5, rtol=0)
