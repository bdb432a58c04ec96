"""Our Edge programs in ExecuTorch's own hands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lostwax
from tests.pte.runtime import Runtime, assert_close


@pytest.mark.filterwarnings("ignore")
def test_executorch_lowers_our_edge_programs() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()
    image = torch.randn(1, 3, 4, 4)
    ours = lostwax.to_edge(lostwax.export(module, (image,)), constant_methods={"version": 3})
    theirs = lostwax.interop.to_executorch_edge(ours)
    assert type(theirs).__module__.startswith("executorch.")
    runtime = Runtime(theirs.to_executorch().buffer)
    with torch.no_grad():
        assert_close(runtime(image), [module(image)])
    assert runtime(method="version") == [3]
