"""`lostwax.check` on executables: agreement, and the first operator that differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import lostwax
from lostwax.errors import CheckError
from lostwax.pte import executable as executable_module
from lostwax.pte.lowering import lower
from tests.pte.runtime import portable

assert portable


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.lin = nn.Linear(4, 2)
        self.register_buffer("seen", torch.tensor([2.0]))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x)).relu()
        y = torch.sin(y).mean((2, 3))
        self.seen.add_(1)
        y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + i), (torch.tensor(0), y))[1]
        return self.lin(torch.cos(y)) * self.seen


@pytest.fixture(scope="module")
def program() -> Any:
    shapes = ({0: lostwax.Dim("batch", min=1, max=5)},)
    return lostwax.export(Net().eval(), (torch.randn(2, 3, 6, 6),), dynamic_shapes=shapes)


def test_an_executable_agrees_with_its_program_and_module(program: Any) -> None:
    executable = program.to_edge().to_executable()
    result = lostwax.check(executable, draws=3)
    assert result.ok
    assert result.report.startswith("the executable agrees with the module: the example\n")
    assert len(result.agreed) == 4
    assert lostwax.check(executable, program.module(), draws=0).agreed == ("the example",)


CALLS = {"n": 1}


def _counts(x: Any) -> Any:
    CALLS["n"] += 1
    return x + 1


@pytest.mark.filterwarnings("ignore:the module sets CALLS")
def test_what_a_function_keeps_is_put_back() -> None:
    executable = lostwax.export(_counts, (torch.ones(2),)).to_edge().to_executable()
    assert lostwax.check(executable, _counts).ok
    assert CALLS == {"n": 1}


def test_each_operator_is_compared(program: Any) -> None:
    executable = program.to_edge().to_executable()
    _, nodes = executable_module.emit_recording(executable, "forward")
    names = {n.name.removeprefix("aten_").split("_")[0] for n in nodes}
    assert {"relu", "sin", "mean", "cos", "mul"} <= names


@pytest.mark.parametrize(("kernel", "other"), [("sin", "cos"), ("cos", "sin"), ("mean", "sum")])
def test_the_first_operator_that_differs_is_named(
    program: Any, monkeypatch: Any, kernel: str, other: str
) -> None:
    def take_other(writer: Any, node: Any) -> Any:
        args = [writer.value(a) for a in node.args]
        kernels = {"cos": "aten::cos.out", "sin": "aten::sin.out", "sum": "aten::sum.IntList_out"}
        return writer.call(kernels[other], *args, outs=[writer.new_like(node.meta["val"])])

    wrong = {**lower._SELECTIONS, f"aten::{kernel}": take_other, "aten::mean.dim": take_other}
    if kernel != "mean":
        del wrong["aten::mean.dim"]
    monkeypatch.setattr(lower, "_SELECTIONS", wrong)
    result = lostwax.check(program.to_edge().to_executable(), draws=0)
    assert not result.ok
    (difference,) = result.differences
    assert f"aten.{kernel}" in difference.node.split("\n")[0]
    assert "test_executable.py" in difference.node
    assert "the executable differs from the module" in result.report


def test_memory_that_overlaps_is_found_where_it_is_read(program: Any, monkeypatch: Any) -> None:
    plan = executable_module.plan_memory

    def plan_badly(listing: Any) -> int:
        size = plan(listing)
        linear = next(c for c in listing.calls() if c.kernel == "aten::linear.out")
        linear.outs[0].storage.offset = linear.args[0].storage.offset
        return size

    monkeypatch.setattr(executable_module, "plan_memory", plan_badly)
    result = lostwax.check(program.to_edge().to_executable(), draws=0)
    assert not result.ok
    assert "aten.addmm" in result.differences[0].node


def test_what_cannot_be_checked(program: Any) -> None:
    with pytest.raises(CheckError, match=r"check\(program, module\)"):
        lostwax.check(program)
    with pytest.raises(TypeError, match=r"check takes a program of lostwax, not a builtins\.int"):
        lostwax.check(3)
