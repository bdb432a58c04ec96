"""Models quantized by torchao, and what is in the payloads that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.backends.xnnpack.schema import TABLES
from lostwax.ir.graph.delegate import find_delegates
from lostwax.pte.file.tables import TableReader

Batches = Sequence[tuple[Tensor, ...]]


def quantize(module: Any, batches: Batches, *, dynamic: bool = False, **options: Any) -> Any:
    """The module as torchao quantizes it for XNNPACK."""
    pytest.importorskip("torchao")
    pt2e: Any = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    xnnpack = pytest.importorskip("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    options = {"is_per_channel": True, "is_dynamic": dynamic, **options}
    config = xnnpack.get_symmetric_quantization_config(**options)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    program = lostwax.export(module, batches[0], keep="composite")
    prepared = pt2e.prepare_pt2e(program.module(), quantizer)
    for batch in batches:
        prepared(*batch)
    return pt2e.convert_pt2e(prepared)


def lower(module: Any, example: tuple[Tensor, ...], **options: Any) -> lostwax.EdgeProgramManager:
    program = lostwax.export(module, example, keep="composite", **options)
    return lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())


def list_nodes(lowered: lostwax.EdgeProgramManager) -> list[str]:
    """The kinds of nodes in the payloads, each with the dtype of its result."""
    nodes: list[str] = []
    for _, delegate in find_delegates(lowered.exported_program().graph):
        reader = TableReader(delegate.processed_bytes[32:], TABLES)
        graph = reader.table(reader.number("u32", 0, "it"), "XNNGraph", "it", 0)
        values = [v["xvalue_union"] for v in graph["xvalues"]]
        dtypes = [v.get("tensor_value", v)["datatype"] for v in values]
        for node in graph["xnodes"]:
            made = node["xnode_union"]
            nodes.append(f"{made['']} {_DTYPES[dtypes[made['output_id']]]}"[3:])
    return nodes


_DTYPES = {1: "f32", 3: "i8", 9: "rows of i8"}


def run(lowered: lostwax.EdgeProgramManager, batch: tuple[Tensor, ...]) -> Tensor:
    """The result in the real runtime."""
    result: Tensor = lostwax.pte.load_runtime(lowered.to_executable().buffer).run(batch)[0]
    return result


class Convnet(nn.Module):
    """Convolutions, depthwise too, a sum, pools, a layer."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.limits = nn.ReLU6()
        self.point = nn.Conv2d(channels, channels, 1)
        self.pools = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.layer = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu(y + self.point(self.limits(self.depthwise(y))))
        return self.layer(self.pools(y))  # type: ignore[no-any-return]
