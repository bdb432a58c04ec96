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
    model, batches = Convnet().train(), make_images()
    for batch in batches:
        model(*batch)
    model.eval()
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
