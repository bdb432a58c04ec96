"""`check_stages`: values in each form of a program."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.checking import stages
from lostwax.checking.stages import check_stages
from lostwax.dialects.manager import to_edge


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.lin(x))
        y = self.norm(y)
        return y.softmax(-1) * 2


@pytest.fixture(scope="module")
def net() -> tuple[Any, Net]:
    torch.manual_seed(0)
    module = Net().eval()
    return lostwax.export(module, (torch.randn(2, 3),)), module


def test_every_stage_agrees(net: Any) -> None:
    program, module = net
    found = check_stages(program, module)
    assert found
    assert [stage.name for stage in found.stages][:3] == ["ATen", "core ATen", "Edge"]
    core = found.stages[1]
    assert [p.origin.name for p in core.points][-1] == "mul"
    assert len(core.points) == len([n for n in program.graph.nodes if n.op == "call_function"])
    assert found.find_growth() is None


def make_wrong(program: Any) -> Any:
    """A stage whose normalization is wrong."""

    def change(module: Any) -> None:
        (add,) = module.graph.find_nodes(
            op="call_function", target=lostwax.ops.edge.aten.native_layer_norm.default
        ) or (None,)
        assert add is not None
        add.args = (*add.args[:4], 0.1)

    return to_edge(program).transform([change])


def test_the_line_where_it_goes_wrong_is_named(net: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(stages, "to_edge", make_wrong)
    found = check_stages(*net)
    assert not found
    growth = found.find_growth()
    assert growth is not None
    stage, point = growth
    assert stage.name == "Edge"
    assert point.origin.code == "y = self.norm(y)"
    text = str(found)
    assert "the error grows first in Edge: native_layer_norm" in text or "norm" in text
    rows = found.plot().splitlines()
    (row,) = [row for row in rows if "y = self.norm(y)" in row]
    assert row.endswith("#")
    assert not next(r for r in rows if "self.lin(x)" in r).endswith("####")
    data = json.loads(json.dumps(found.to_json()))
    assert data["growth"]["stage"] == "Edge"
    assert not data["ok"]


def test_real_inputs_are_taken(net: Any) -> None:
    program, module = net
    found = check_stages(program, module, ((torch.full((2, 3), 100.0),), {}))
    assert found.stages[0].error == 0
    assert found


def test_a_program_without_an_example(net: Any) -> None:
    program, module = net
    from dataclasses import replace

    with pytest.raises(lostwax.errors.CheckError, match="instead: check_stages"):
        check_stages(replace(program, example_inputs=None), module)
