"""`meta["val"]` of operators that return lists is a list, as torch's is, on every way to a program;
of those that return tuples a tuple."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.ops.dialect_operator import overload_of
from lostwax.passes import FxPass

aten = torch.ops.aten
X = torch.randn(4, 4)


class Lists(nn.Module):
    def forward(self, x: Tensor) -> Any:
        one, other = x.split(2, dim=1)
        top, *_ = x.split([1, 3], dim=1)
        rows = torch.unbind(x.relu(), 1)
        return one + other, top, rows[0], *x.max(dim=1)


def swap_relu(module: Any) -> None:
    for node in module.graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target = aten.sigmoid.default


def rewrite(module: Any) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function":
            del node.meta["val"]


def reread(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


WAYS: dict[str, Any] = {
    "exported": lambda p: p,
    "read": reread,
    "decomposed": lambda p: p.run_decompositions(),
    "after a pass": FxPass(swap_relu),
    "typed again": FxPass(rewrite),
    "edge": lambda p: lostwax.to_edge(p).exported_program(),
    "from torch": lambda p: lostwax.interop.from_torch(lostwax.interop.to_torch(p)),
}


@pytest.fixture(scope="module")
def program() -> Any:
    return lostwax.export(Lists(), (X,), dynamic_shapes={"x": {0: lostwax.Dim("n", min=1)}})


@pytest.mark.parametrize("way", WAYS)
def test_lists_are_lists(program: Any, way: str) -> None:
    found = set()
    for node in WAYS[way](program).graph.nodes:
        if node.op == "call_function" and isinstance(node.meta["val"], (list, tuple)):
            is_list = len(overload_of(node.target)._schema.returns) == 1
            assert type(node.meta["val"]) is (list if is_list else tuple), node
            found.add(is_list)
    assert found == {True, False}


def test_torch_has_the_same() -> None:
    theirs = torch.export.export(Lists(), (X,)).run_decompositions()
    kinds = [
        {str(n.target): type(n.meta["val"]) for n in p.graph.nodes if n.op == "call_function"}
        for p in (lostwax.export(Lists(), (X,)).run_decompositions(), theirs)
    ]
    shared = [{k: v for k, v in each.items() if v in (list, tuple)} for each in kinds]
    assert shared[0] == shared[1] != {}
