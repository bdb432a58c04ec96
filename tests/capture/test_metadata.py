"""What nodes tell of where they come from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lostwax.capture import export
from lostwax.fake import FakeTensor
from tests.capture.small import Of, X


def test_metadata_of_nodes() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    program = export(net, (X,))
    addmm = next(n for n in program.graph.nodes if n.name == "addmm")
    assert isinstance(addmm.meta["val"], FakeTensor)
    assert tuple(addmm.meta["val"].shape) == (3, 4)
    assert list(addmm.meta["nn_module_stack"].values()) == [
        ("", "torch.nn.modules.container.Sequential"),
        ("0", "torch.nn.modules.container.Sequential"),
        ("0.0", "torch.nn.modules.linear.Linear"),
    ]
    assert addmm.meta["source_fn_stack"][-1][1] is nn.Linear
    relu = next(n for n in program.graph.nodes if n.name == "relu")
    assert relu.meta["source_fn_stack"][-1][1] is nn.ReLU

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    program = export(Of(forward), (X,))
    trace = next(n for n in program.graph.nodes if n.op == "call_function").meta["stack_trace"]
    lines = trace.splitlines()
    assert 'test_metadata.py", line' in lines[-2]
    assert lines[-1].strip() == "return x.sin()"
    assert any("return helper(x)" in line for line in lines)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_the_function_that_the_user_called_is_the_source_of_its_parts() -> None:
    program = export(lambda x, w: F.linear(x, w), (X, X))
    for node in program.graph.nodes:
        if node.op == "call_function":
            assert node.meta["source_fn_stack"] == [("linear", F.linear)]
