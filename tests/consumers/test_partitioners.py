"""ExecuTorch's partitioners take as much of a program that is handed over as of torch's own, and
write the same bytes for it.

Those whose packages are not installed are skipped: of the wheel, XNNPACK's and Vulkan's need
nothing else, Arm's need `tosa_serializer`, OpenVINO's `pytorch_tokenizers` and `nncf`.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.interop import to_torch
from tests.consumers.programs import CASES
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")
BACKENDS = "executorch.backends."
PARTITIONERS = {
    "xnnpack": ("xnnpack.partition.xnnpack_partitioner", "XnnpackPartitioner"),
    "vulkan": ("vulkan.partitioner.vulkan_partitioner", "VulkanPartitioner"),
    "tosa": ("arm.tosa.partitioner", "TOSAPartitioner"),
    "openvino": ("openvino.partitioner", "OpenvinoPartitioner"),
}


def make_partitioner(name: str) -> Any:
    place, cls = PARTITIONERS[name]
    try:
        found = getattr(importlib.import_module(BACKENDS + place), cls)
    except ImportError as error:
        pytest.skip(f"{name}: {error}")
    if name == "tosa":
        spec = importlib.import_module(BACKENDS + "arm.tosa.compile_spec").TosaCompileSpec
        return found(spec("TOSA-1.0+FP"))
    return found([]) if name == "openvino" else found()


def lower(program: Any, name: str) -> tuple[list[Any], list[str]]:
    """What the delegates are given, and the operators that are left."""
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[make_partitioner(name)])
    module = edge.exported_program().graph_module
    lowered = [part for _, part in module.named_children() if hasattr(part, "processed_bytes")]
    calls = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    return [(part.backend_id, part.processed_bytes) for part in lowered], calls


class Whole(nn.Module):
    """ExecuTorch fuses no batch norm whose path begins with a number."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("name", sampled(["convnet"], ["mlp", "convnet"]))
@pytest.mark.parametrize("partitioner", sampled([*PARTITIONERS][:1], list(PARTITIONERS)))
def test_delegates_are_those_of_torchs_own_program(partitioner: str, name: str) -> None:
    """With composites kept, as torch.export keeps them."""
    make_partitioner(partitioner)
    case = CASES[name]
    torch.manual_seed(0)
    module, args = Whole(case.make()).eval(), case.call(*case.sizes[0])
    ours = to_torch(lostwax.export(module, args, keep="composite"))
    programs = (ours, torch.export.export(module, args))
    found, theirs = (lower(each, partitioner) for each in programs)
    if partitioner == "openvino":  # of one program of torch's, it writes other bytes each time
        found, theirs = (([name for name, _ in parts], calls) for parts, calls in (found, theirs))
    assert found == theirs
    assert found[0]
