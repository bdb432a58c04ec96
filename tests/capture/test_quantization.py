"""torchao's PT2E quantization of programs with `keep="composite"`: it finds what it finds in
torch.export's programs, and the result is the same to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from examples.models import MODELS

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore")


def make_convnet() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    for _ in range(3):
        model(torch.randn(8, 3, 16, 16))  # the statistics of batch norm
    return model.eval(), [(torch.randn(2, 3, 16, 16),) for _ in range(4)]


def make_transformer() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    example = MODELS["vit"]
    return example.tiny().eval(), [example.tiny_inputs() for _ in range(4)]


def quantize_by_inductor(module: Any, batches: Sequence[tuple[Tensor, ...]]) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    return quantize(module, batches, quantizer)


def quantize_by_xnnpack(module: Any, batches: Sequence[tuple[Tensor, ...]]) -> Any:
    xnnpack = pytest.importorskip("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    quantizer = xnnpack.XNNPACKQuantizer()
    quantizer.set_global(xnnpack.get_symmetric_quantization_config())
    return quantize(module, batches, quantizer)


def quantize(module: Any, batches: Sequence[tuple[Tensor, ...]], quantizer: Any) -> Any:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(module, quantizer)
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def count_quantizations(module: Any) -> int:
    return sum("quantize_per" in str(node.target) for node in module.graph.nodes)


@pytest.mark.parametrize(
    ("make", "quantized"),
    [
        (make_convnet, quantize_by_inductor),
        (make_transformer, quantize_by_inductor),
        (make_convnet, quantize_by_xnnpack),
    ],
)
def test_post_training_quantization(make: Any, quantized: Any) -> None:
    torch.manual_seed(0)
    model, batches = make()
    program = lostwax.export(model, batches[0], keep="composite")
    ours = quantized(program.module(), batches)
    theirs = quantized(torch.export.export(copy.deepcopy(model), batches[0]).module(), batches)
    assert count_quantizations(ours) == count_quantizations(theirs) > 10
    for batch in batches:
        got, want = ours(*batch), model(*batch)
        assert torch.equal(got, theirs(*batch))
        assert (got - want).norm() < 0.15 * want.norm()
    again = lostwax.export(ours, batches[0], keep="composite")
    torch.testing.assert_close(again.module()(*batches[0]), ours(*batches[0]))
