"""Lowered modules inside of others: the delegate goes through another export as it is."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.backends import (
    Backend,
    DelegationSpec,
    LoweredBackendModule,
    Payload,
    XnnpackBackend,
    XnnpackPartitioner,
    lower_whole,
)
from lostwax.errors import CaptureError, LostwaxError, LoweringError
from lostwax.ir.graph.delegate import CALL_DELEGATE, held_delegates
from lostwax.pte.file.record import read_record
from tests.fresh import run_python

Dim = lostwax.Dim


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


class Around(nn.Module):
    """A module with a lowered one, called twice, and layers of its own that need gradients."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(self.part(self.part(self.first(x)))) + x


def lower(dynamic: Any = None) -> LoweredBackendModule:
    torch.manual_seed(0)
    program = lostwax.export(Part(), (torch.randn(2, 4),), dynamic_shapes=dynamic)
    return lower_whole(program.to_edge().exported_program(), XnnpackPartitioner())


def calls(program: Any) -> list[Any]:
    return [n for n in program.graph.nodes if n.target is CALL_DELEGATE]


def test_the_payload_goes_through_as_it_is() -> None:
    part = lower()
    module, x = Around(part), torch.randn(2, 4)
    program = lostwax.export(module, (x,))
    assert len(calls(program)) == 2
    (held,) = held_delegates(program.graph_module)
    assert held.processed_bytes == part.processed_bytes
    assert sorted(program.state_dict) == ["first.bias", "first.weight"]
    torch.testing.assert_close(program.module()(x), module(x))
    report = program.to_edge().delegation_report()
    assert [sum(d.operators.values()) for d in report.delegates] == [4, 4]
    executable = program.to_edge().to_executable()
    assert executable.buffer.count(part.processed_bytes) == 1
    torch.testing.assert_close(lostwax.pte.run(executable.buffer, (x,))[0], module(x))


def test_the_rest_is_lowered_around_it() -> None:
    module, x = Around(lower()), torch.randn(2, 4)
    lowered = lostwax.export(module, (x,)).to_edge().to_backend(XnnpackPartitioner())
    names = [each.name for each in lowered.delegation_report().delegates]
    assert names == [
        "lowered_module_1",
        "lowered_module_0",
        "lowered_module_0_1",
        "lowered_module_2",
    ]
    buffer = lowered.to_executable().buffer
    torch.testing.assert_close(lostwax.pte.run(buffer, (x,))[0], module(x))
    assert lostwax.check(lowered, module).ok


def test_sizes_of_the_call_are_those_of_the_delegate() -> None:
    part = lower({"x": {0: Dim("b", max=8)}})
    module, x = Around(part), torch.randn(2, 4)
    with pytest.raises(lostwax.errors.ConstraintViolationError, match=r'Dim\("rows", max=8\)'):
        lostwax.export(module, (x,), dynamic_shapes={"x": {0: Dim("rows", max=16)}})
    program = lostwax.export(module, (x,), dynamic_shapes={"x": {0: Dim("rows", max=6)}})
    inside = next(held_delegates(program.graph_module)).program
    assert {str(n.meta["val"].shape[0]) for n in inside.graph.nodes if n.name == "relu"} == {"rows"}
    assert {str(n.meta["val"].shape[0]) for n in part.graph.nodes if n.name == "relu"} == {"b"}
    program.validate()
    buffer = program.to_edge().to_executable().buffer
    for rows in (1, 6, 0):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(lostwax.pte.run(buffer, (x,))[0], module(x))


def test_what_the_delegate_was_lowered_for_is_asked() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.reshape(-1, 2, 4)) * 2

    edge = lostwax.export(
        halves, (torch.ones(6, 4),), dynamic_shapes={"x": {0: Dim.AUTO(max=12)}}
    ).to_edge()
    part = lower_whole(edge.exported_program(), XnnpackPartitioner())
    assert [g.predicate for g in part.original_module.guards] == ["x.shape[0] % 2 == 0"]
    program = lostwax.export(
        lambda y: part(y), (torch.ones(4, 4),), dynamic_shapes={"y": {0: Dim.AUTO(max=12)}}
    )
    assert [g.predicate for g in program.guards] == ["y.shape[0] % 2 == 0"]
    with pytest.raises(LostwaxError, match=r"x.shape\[0\]") as info:
        lostwax.export(lambda y: part(y), (torch.ones(3, 4),))
    assert "test_nested.py" in "".join([str(info.value), *info.value.__notes__])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (torch.ones(3, 4), "x.shape[0] is 3, but the program was captured for 2"),
        (torch.ones(2, 4).double(), "x is of torch.float64"),
    ],
)
def test_another_call_is_refused_with_the_line(given: torch.Tensor, text: str) -> None:
    part = lower()
    with pytest.raises(LostwaxError) as info:
        lostwax.export(lambda x: part(x), (given,))
    assert text in str(info.value)
    assert "lostwax.export(lambda x: part(x), (given,))" in "".join(info.value.__notes__)


def test_a_program_with_delegates_is_called_as_a_module() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.erf(torch.relu(x) * 2)

    edge = lostwax.export(inner, (torch.ones(2, 4),)).to_edge().to_backend(XnnpackPartitioner())
    inside = edge.exported_program().module()
    program = lostwax.export(lambda x: inside(x - 1), (torch.ones(2, 4),))
    assert [getattr(n.target, "__name__", "") for n in program.graph.nodes][1:-1] == [
        "sub.Tensor", "", "executorch_call_delegate", "getitem", "erf.default"
    ]  # fmt: skip
    x = torch.randn(2, 4)
    torch.testing.assert_close(program.module()(x), inner(x - 1))


def test_a_call_in_a_branch() -> None:
    part = lower()

    def choose(x: torch.Tensor) -> torch.Tensor:
        return part(x) if x.sum() > 0 else x

    program = lostwax.export(choose, (torch.ones(2, 4),))
    buffer = program.to_edge().to_executable().buffer
    for x in (torch.ones(2, 4), -torch.ones(2, 4)):
        torch.testing.assert_close(lostwax.pte.run(buffer, (x,))[0], choose(x))


def test_arguments_and_results_are_those_of_the_program() -> None:
    def f(x: torch.Tensor, *, y: torch.Tensor) -> dict[str, Any]:
        return {"sum": torch.relu(x) + y, "x": x, "n": 3}

    program = lostwax.export(f, (torch.ones(2),), {"y": torch.ones(2)})
    part = lower_whole(program.to_edge().exported_program(), XnnpackPartitioner())
    x, y = torch.randn(2), torch.randn(2)
    result = part(x, y=y)
    assert result["n"] == 3
    assert result["x"] is x
    torch.testing.assert_close(result["sum"], torch.relu(x) + y)
    again = lostwax.export(lambda a, b: part(b, y=a), (x, y)).module()(x, y)
    torch.testing.assert_close(again["sum"], torch.relu(y) + x)
    with pytest.raises(lostwax.errors.InputStructureError, match="it was lowered for"):
        part(x, y)


class Keys(Backend):
    """Writes the names of operators, with data that delegates share."""

    def preprocess(self, program: Any, compile_specs: Sequence[Any]) -> Payload:
        names = [n.name for n in program.graph.nodes if n.op == "call_function"]
        return Payload("; ".join(names).encode(), {"shared": torch.ones(3)}, {0: names})


def test_specs_and_shared_data_go_through() -> None:
    edge = lostwax.export(lambda x: torch.sin(x) + 1, (torch.ones(2),)).to_edge()
    spec = DelegationSpec(Keys(), (lostwax.backends.CompileSpec("speed", b"high"),))
    part = lower_whole(edge.exported_program(), spec)
    assert part.processed_bytes == b"sin; add"
    program = lostwax.export(lambda x: part(x) * 2, (torch.ones(2),))
    file = lostwax.pte.file.reader.read_file(program.to_edge().to_executable().buffer)
    (delegate,) = file.program["execution_plan"][0]["delegates"]
    assert (delegate["id"], delegate["compile_specs"][0]["key"]) == ("Keys", "speed")
    assert b"shared" in program.to_edge().to_executable().buffer


def test_instructions_lead_to_lines_inside(tmp_path: Path) -> None:
    part = lower()
    edge = lostwax.export(Around(part), (torch.randn(2, 4),)).to_edge()
    edge.to_backend(XnnpackPartitioner()).to_executable().save(tmp_path / "m.pte", etrecord=True)
    record = read_record(tmp_path / "m.etrecord")["forward"]
    lines = {o.code for at in record.handles for o in record.find(at)}
    assert "return torch.relu(self.linear(x)) * 2" in lines
    assert any("torch.erf(self.part" in line for line in lines)
    with zipfile.ZipFile(tmp_path / "m.etrecord") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("forward")]
        graph = json.loads(archive.read(name))["graph_module"]["graph"]
    assert not [n for n in graph["nodes"] if "delegate" in n["target"]]
    again = lostwax.export(Around(part), (torch.randn(2, 4),)).to_edge()
    again.to_backend(XnnpackPartitioner()).to_executable().save(tmp_path / "n.pte", etrecord=True)
    assert read_record(tmp_path / "n.etrecord")["forward"].handles == record.handles


def refuse(program: Any, backend: Any) -> str:
    with pytest.raises(LoweringError) as info:
        lower_whole(program, backend)
    return str(info.value)


def test_what_cannot_be_one_delegate_is_refused() -> None:
    program = lostwax.export(lambda x: torch.erf(x) + 1, (torch.ones(2),))
    edge = program.to_edge().exported_program()
    assert "program.to_edge().exported_program()" in refuse(program, XnnpackPartitioner())
    text = refuse(edge, XnnpackPartitioner())
    assert "'erf' is left" in text
    assert "test_nested.py" in text
    assert "XnnpackBackend.preprocess fails" in refuse(edge, DelegationSpec(XnnpackBackend()))
    assert "it is given a int" in refuse(edge, 3)
    empty = lostwax.export(lambda x: x, (torch.ones(2),)).to_edge().exported_program()
    assert "it computes nothing" in refuse(empty, XnnpackPartitioner())
    lowered = program.to_edge().to_backend(XnnpackPartitioner()).exported_program()
    assert "lower_whole() before to_backend()" in refuse(lowered, XnnpackPartitioner())

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x
            return self.count * 2

    counter = lostwax.export(Counter(), (torch.ones(2),)).to_edge().exported_program()
    assert "the program writes to 'count'" in refuse(counter, XnnpackPartitioner())


def test_a_delegate_of_another_library_is_refused() -> None:
    class Foreign(nn.Module):
        pass

    module = Foreign()
    with pytest.raises(CaptureError, match=r"lostwax\.backends\.lower_whole"):
        lostwax.export(lambda x: CALL_DELEGATE(module, x), (torch.ones(2),))


class Branching(nn.Module):
    """Calls a delegate in a branch: `torch.cond` asks for types before it runs one."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.part(x) + 1, lambda x: self.part(-x), (x,))


@pytest.mark.parametrize("grad", [False, True])
def test_a_delegate_in_a_branch_runs_in_eager(grad: bool) -> None:
    torch.compiler.reset()
    part, x = lower(), torch.rand(2, 4)
    module = Branching(part)
    for each in (x, -x):
        with torch.set_grad_enabled(grad):
            wanted = part(each) + 1 if each.sum() > 0 else part(-each)
            torch.testing.assert_close(module(each), wanted)
    program = lostwax.export(module, (x,))
    assert lostwax.check(program, module, inputs=[(x,), (-x,)])
    assert lostwax.check(program.to_edge().to_executable(), module, inputs=[(x,), (-x,)])


def test_sizes_of_a_delegate_in_a_branch_vary_in_eager() -> None:
    torch.compiler.reset()
    part = lower(({0: 2 * Dim("pairs", max=8)},))
    module = Branching(part)
    for rows in (2, 4, 6, 8, 2):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(module(x), part(x) + 1)
        torch.testing.assert_close(module(-x), part(x))
    with pytest.raises(LostwaxError):  # an odd size
        module(torch.rand(3, 4))


def test_results_of_several_types_in_a_branch() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"sum": (x + 1).sum(0), "rest": ((x * 2).t(), x > 0)}

    torch.compiler.reset()
    program = lostwax.export(Several(), (torch.rand(2, 4),))
    edge = program.to_edge().exported_program()
    part = lower_whole(edge, DelegationSpec(Anything()))

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            def first(x: torch.Tensor) -> Any:
                made = part(x)
                return made["sum"], *made["rest"]

            return torch.cond(
                x.sum() > 0, first, lambda x: (x[0] * 1, (x * 3).t().contiguous(), x < 0), (x,)
            )

    x = torch.rand(2, 4)
    for got, want in zip(Both()(x), (part(x)["sum"], *part(x)["rest"]), strict=True):
        assert torch.equal(got, want)


def test_a_delegate_with_sizes_of_data_is_refused_in_a_branch() -> None:
    """In a process of its own: torch, where it fails to compile, goes on watching all frames."""
    ran = run_python("from tests.backends import test_nested; test_nested.run_sizes_of_data()")
    assert ran.stdout == "refused\n"


def run_sizes_of_data() -> None:
    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero() * 2

    program = lostwax.export(Found(), (torch.rand(2, 4),)).to_edge().exported_program()
    part = lower_whole(program, DelegationSpec(Anything()))

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: part(x) + 1, lambda x: x.nonzero(), (x,))

    with pytest.raises(Exception, match="a delegate whose results have sizes that data decide"):
        run(torch.rand(2, 4))
    print("refused")


class Anything(Backend):
    def preprocess(self, program: Any, compile_specs: Any) -> Payload:
        return Payload(b"anything")
