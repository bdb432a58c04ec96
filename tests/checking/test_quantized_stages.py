"""`check_stages` with a quantized program: which layer has lost the values."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.checking.stages import Point, StageErrors, check_stages
from lostwax.ir.origin import NodeOrigin

pytest.importorskip("torchao.quantization.pt2e", reason="needs torchao: pip install .[test]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        return x + self.second(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.again = nn.Linear(16, 16)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu()
        x = x.mean((2, 3))
        for block in self.blocks:
            x = block(x)
        for _ in range(3):
            x = self.drop(self.again(x)).tanh()
        return x * 2


EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def make_net() -> Net:
    torch.manual_seed(0)
    net = Net()
    net(torch.randn(8, 3, 8, 8))  # the statistics of the normalization are not those of no data
    return net.eval()


def quantize(net: nn.Module, x: torch.Tensor = EXAMPLE) -> Any:
    """The program of a module in eight bits, by PT2E."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(lostwax.export(net, (x,), keep="composite").module(), quantizer)
    prepared(x)
    return lostwax.export(convert_pt2e(prepared), (x,), keep="composite")


@pytest.fixture(scope="module")
def made() -> tuple[Any, Net, Any]:
    net = make_net()
    return lostwax.export(net, (EXAMPLE,), keep="composite"), net, quantize(net)


def list_layers(program: Any, module: str) -> list[Any]:
    return [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and [*n.meta["nn_module_stack"].values()][-1][0] == module
    ]


def test_each_layer_has_a_small_error_of_its_own(made: Any) -> None:
    program, net, quantized = made
    found = check_stages(program, net, quantized=quantized)
    assert found
    assert [s.name for s in found.stages][:4] == ["ATen", "quantized", "core ATen", "Edge"]
    assert found.find_growth() is None
    points = {p.origin.name: p for p in found.stages[1].points}
    assert "conv2d" not in points, "the normalization was folded into it"
    assert 0 < points["batch_norm"].error < 0.05
    assert points["relu"].own == 0, "what it reads is right, and it is in floats"
    shared = [p for p in found.stages[1].points if p.origin.module == "again"]
    assert [p.origin.name for p in shared] == ["linear_4", "linear_5", "linear_6"]
    assert all(0 < p.own < 0.05 for p in shared)


@pytest.mark.parametrize("module", ["conv", "blocks.0.first", "blocks.1.second"])
def test_a_layer_with_a_wrong_scale_of_weights_is_named(made: Any, module: str) -> None:
    program, net, quantized = made
    (layer,) = list_layers(quantized, module)
    spoiled = spoil(quantized, layer.args[1].args[1].name)
    found = check_stages(program, net, quantized=spoiled)
    stage, point = found.find_growth()
    assert (stage.name, point.origin.module) == ("quantized", module.replace("conv", "norm"))
    assert point.own > 0.5
    wrong = [p for p in stage.points if p.own > stage.bar]
    assert wrong == [point], "the layers after it are right but for what they read"
    assert f" in {point.origin.module}\n    at {point.origin.line}, code: " in str(found)
    assert "test_quantized_stages.py:" in point.origin.line
    data = json.loads(json.dumps(found.to_json()))
    assert (data["growth"]["stage"], data["growth"]["module"]) == ("quantized", point.origin.module)
    bars = [row.count("#") for row in found.plot().splitlines()[1:]]
    (longest,) = [r for r in found.plot().splitlines() if r.count("#") == max(bars)]
    assert longest.rstrip(" #").endswith(f"in {point.origin.module}")


def spoil(program: Any, name: str) -> Any:
    """The program with a scale that is three times as large."""
    (spec,) = [s for s in program.graph_signature.input_specs if s.arg.name == name]
    spoiled = copy.deepcopy(program)
    spoiled.state_dict[spec.target].mul_(3)
    return spoiled


def test_a_wrong_scale_of_activations_is_named_where_they_are_read(made: Any) -> None:
    program, net, quantized = made
    spoiled = copy.deepcopy(quantized)
    (layer,) = list_layers(spoiled, "blocks.0.second")
    dequantize = layer.args[0]
    dequantize.args = (dequantize.args[0], dequantize.args[1] * 4, *dequantize.args[2:])
    spoiled.graph_module.recompile()
    stage, point = check_stages(program, net, quantized=spoiled).find_growth()
    assert (stage.name, point.origin.module) == ("quantized", "blocks.0.second")


def test_a_file_is_compared_with_a_program_of_core_operators(made: Any, tmp_path: Path) -> None:
    _, net, quantized = made
    (layer,) = list_layers(quantized, "blocks.0.first")
    lostwax.save(spoil(quantized, layer.args[1].args[1].name), tmp_path / "q.pt2")
    program = lostwax.export(net, (EXAMPLE,)).run_decompositions()
    found = check_stages(program, net, quantized=lostwax.load(tmp_path / "q.pt2"))
    stage, point = found.find_growth()
    assert (stage.name, point.origin.module) == ("quantized", "blocks.0.first")
    modules = {p.origin.module for p in stage.points}
    assert modules >= {"norm", "blocks.0", "blocks.1.second", "again", ""}
    assert "conv" not in modules


@pytest.mark.parametrize("keep", ["composite", None])
def test_layers_of_quantize_are_told_by_their_results(keep: Any) -> None:
    """`Int8WeightOnlyConfig` multiplies integers first, and scales the product after that."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    net = make_net()
    program = lostwax.export(net, (EXAMPLE,))
    small = copy.deepcopy(net)
    quantize_(small, Int8WeightOnlyConfig())
    options = {} if keep is None else {"keep": keep}
    found = check_stages(program, net, quantized=lostwax.export(small, (EXAMPLE,), **options))
    assert found, str(found)
    assert found.find_growth() is None
    modules = {p.origin.module for p in found.stages[1].points if p.error}
    assert modules >= {"blocks.0.first", "blocks.1.second", "again"}
    small.blocks[1].first.weight.scale.mul_(5)
    found = check_stages(program, net, quantized=lostwax.export(small, (EXAMPLE,), **options))
    stage, point = found.find_growth()
    assert (stage.name, point.origin.module) == ("quantized", "blocks.1.first")
    assert len([p for p in stage.points if p.own > stage.bar]) == 1


class Same(nn.Module):
    """A product and a sum in one line, of which quantizing takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x).relu() + 1) * self.one(x + 2)


def test_values_of_one_line_are_told_by_their_order() -> None:
    net, x = Same().eval(), torch.randn(3, 4)
    program = lostwax.export(net, (x,), keep="composite")
    found = check_stages(program, net, quantized=quantize(net, x))
    names = [p.origin.name for p in found.stages[1].points]
    assert names == ["linear", "relu", "add", "add_1", "linear_1", "mul"]
    assert found.find_growth() is None


def test_a_program_of_another_module_is_refused(made: Any) -> None:
    program, net, _ = made

    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3))

    other = lostwax.export(Other(), (EXAMPLE,))
    with pytest.raises(lostwax.errors.CheckError, match="has no value of the program in floats"):
        check_stages(program, net, quantized=other)


def test_small_errors_may_add_up() -> None:
    points = [Point(NodeOrigin(f"n{i}", "aten.add"), i / 10, 0.05) for i in range(4)]
    stage = StageErrors("quantized", tuple(points), 0.3, bar=0.15)
    assert stage.find_growth() is points[2]


def test_the_bar_may_be_lower(made: Any) -> None:
    program, net, quantized = made
    found = check_stages(program, net, quantized=quantized, bar=1e-6)
    assert not found
    assert found.find_growth()[1].origin.name == "batch_norm"
    assert found.stages[0].error == 0
