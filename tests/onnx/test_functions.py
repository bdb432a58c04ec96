"""Calls of modules as calls of ONNX functions, in onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from examples.models import MODELS
from lostwax import Dim
from lostwax.errors import OnnxError
from tests.onnx.running import Session, compare
from tests.whole import sampled


def list_functions(session: Session) -> dict[str, list[str]]:
    return {each.name: [node.op_type for node in each] for each in session.model.functions.values()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.relu(self.layer(x)) + x.shape[0])


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for each in (*self.blocks, self.blocks[0]):
            x = each(x)
        return x * 2


def write(module: nn.Module, x: Tensor, functions: Any, opset: int = 23) -> Session:
    program = lostwax.export(module, (x,), dynamic_shapes=({0: Dim("rows")},), keep="composite")
    return Session(program, opset, functions=functions)


@pytest.mark.parametrize("opset", [18, 26])
def test_equal_modules_share_a_function(opset: int) -> None:
    module = Blocks().eval()
    session = write(module, torch.randn(2, 4), True, opset)
    assert session.nodes.count("Block") == 3
    assert list_functions(session) == {
        "Linear": ["Gemm"],
        "LayerNorm": ["LayerNormalization"],
        "Block": ["Linear", "Relu", "Add", "LayerNorm"],
    }
    inputs = [each.name for each in session.model.functions["modules", "Block", ""].inputs]
    assert {"layer.weight", "layer.bias", "norm.weight", "norm.bias"} < set(inputs)
    compare(session, module, (torch.randn(3, 4),))


def test_those_of_some_classes() -> None:
    module = Blocks().eval()
    session = write(module, torch.randn(2, 4), [Block])
    assert list_functions(session) == {"Block": ["Gemm", "Relu", "Add", "LayerNormalization"]}
    assert session.model.graph.node(0).metadata_props.keys() == {"namespace", "source"}
    compare(session, module, (torch.randn(3, 4),))
    assert list_functions(write(module, torch.randn(2, 4), [nn.Conv2d])) == {}
    with pytest.raises(OnnxError, match=r"functions=\[Block\]"):
        write(module, torch.randn(2, 4), ["blocks.0"])


def test_loops_branches_and_state_of_modules() -> None:
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            while x.abs().max() > 1:
                x = x * self.scale
            return x if x.sum() > 0 else -x

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Halving(), Halving()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * 9) + self.second.calls

    session, module = write(Both(), torch.randn(2, 3), True), Both()
    assert list_functions(session).keys() == {"Halving"}
    assert session.nodes.count("Halving") == 2
    for rows in (3, 1, 5):
        compare(session, module, (torch.randn(rows, 3) * 9 - rows,))


def test_modules_of_several_results_and_none() -> None:
    class Parts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + 1, x, x * x.shape[0]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.same = Parts(), nn.Identity()

        def forward(self, x: Tensor) -> Any:
            a, b, c = self.parts(self.same(x))
            return a, a * b, c

    session = write(Outer(), torch.randn(2, 3), True)
    assert list_functions(session).keys() == {"Parts"}
    compare(session, Outer(), (torch.randn(4, 3),))


@pytest.mark.parametrize("name", sampled(["llama", "swin"], MODELS))
@pytest.mark.parametrize("keep", ["composite", ()])
def test_bundled_models(name: str, keep: Any) -> None:
    torch.manual_seed(0)
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    shapes = tuple({d: Dim(n) for d, n in each.items()} for each in example.dynamic)
    program = lostwax.export(model, inputs, dynamic_shapes=shapes, keep=keep)
    compare(Session(program, functions=True), model, inputs)
