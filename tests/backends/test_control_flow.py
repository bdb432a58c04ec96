"""Delegates in the branches and bodies of control flow: in Python, printed, reported, and in the
real runtime beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as control_map
from torch._higher_order_ops.scan import scan

import lostwax
from examples.backend import make_partitioner
from lostwax import Dim
from lostwax.backends import CapabilityPartitioner, DelegationSpec
from lostwax.errors import LostwaxError
from lostwax.ir.graph.lookup import all_nodes
from tests.backends.xnnpack import compare, lower


class Layers(nn.Module):
    """Two layers, which control flow calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.conv = nn.Conv2d(1, 2, 3, padding=1)


class Branches(Layers):
    def forward(self, x: Any) -> Any:
        positive = torch.cond(
            x.sum() > 0, lambda x: torch.relu(self.a(x)), lambda x: self.b(x) * 2, (x,)
        )
        return torch.sigmoid(positive)


class Loop(Layers):
    """As many turns as the first element says, with a layer that the other branch reads, too."""

    def forward(self, x: Any) -> Any:
        turns = x[0, 0].long()
        _, y = torch.while_loop(
            lambda i, y: i < turns,
            lambda i, y: (i + 1, torch.tanh(self.a(y)) + x * 0.5),
            (torch.zeros((), dtype=torch.int64), x),
        )
        return self.a(y) + self.b(x)


class Rows(Layers):
    def forward(self, x: Any) -> Any:
        return control_map(lambda row: torch.sigmoid(self.a(row.unsqueeze(0)))[0], x) * 3


class Carried(Layers):
    def forward(self, x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            new = torch.tanh(self.a(state) + self.b(row))
            return new, new * 2

        return scan(step, torch.zeros(1, 4), x.unsqueeze(1))


class Nested(Layers):
    def forward(self, x: Any) -> Any:
        def inner(y: Any) -> Any:
            return torch.cond(y.mean() > 0, lambda y: self.b(y) - 1, lambda y: self.b(y) + 1, (y,))

        _, y = torch.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, inner(self.a(y))),
            (torch.zeros((), dtype=torch.int64), x),
        )
        return y


class Images(Layers):
    def forward(self, x: Any) -> Any:
        image = x.reshape(1, 1, -1, 4)
        return torch.cond(
            x.sum() > 0,
            lambda i: torch.relu(self.conv(i)),
            lambda i: torch.max_pool2d(self.conv(i), 3, 1, 1),
            (image,),
        )


MODELS = {  # the model, the bodies with delegates, and cases for each way through it
    "cond": (Branches, ("true_graph_0", "false_graph_0"), (1.0, -1.0)),
    "while": (Loop, ("while_loop_body_graph_0",), (0.0, 1.0, 5.0)),
    "map": (Rows, ("body_graph_0",), (1.0, -1.0)),
    "scan": (Carried, ("scan_combine_graph_0",), (1.0, -1.0)),
    "nested": (Nested, ("while_loop_body_graph_0",), (1.0, -1.0)),
    "images": (Images, ("true_graph_0", "false_graph_0"), (1.0, -1.0)),
}


def make_case(first: float, rows: int = 3) -> tuple[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.rand(rows, 4) * (-1 if first < 0 else 1)
    x[0, 0] = first
    return (x,)


@pytest.fixture(scope="module")
def lowered() -> dict[str, tuple[nn.Module, lostwax.EdgeProgramManager]]:
    made = {}
    for name, (cls, _, _) in MODELS.items():
        model = cls().eval()
        shapes = ({0: Dim("rows", min=1, max=6)},) if name != "images" else None
        made[name] = model, lower(model, make_case(1.0), shapes)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_bodies_have_delegates_that_compute_the_same(name: str, lowered: Any) -> None:
    model, edge = lowered[name]
    report = edge.delegation_report()
    bodies = {d.name.rpartition(".")[0] for d in report.delegates}
    assert bodies.issuperset(MODELS[name][1]), bodies
    sizes = (3, 5) if name != "images" else (3,)
    cases = [make_case(first, rows) for first in MODELS[name][2] for rows in sizes]
    module = edge.exported_program().module()
    for case in cases:
        torch.testing.assert_close(module(*case), model(*case))
    compare(model, edge, cases)


def test_weights_move_into_delegates_of_bodies(lowered: Any) -> None:
    _, edge = lowered["cond"]
    program = edge.exported_program()
    assert not program.state_dict
    assert program.graph_signature.user_inputs == ("x",)
    (cond,) = (n for n in program.graph.nodes if n.name == "cond")
    assert [n.name for n in cond.args[3]] == ["x"]
    _, nested = lowered["nested"]
    assert not nested.exported_program().state_dict


def test_weights_that_a_body_still_reads_stay() -> None:
    model = Branches().eval()
    edge = lostwax.export(model, make_case(1.0)).to_edge()
    first = make_partitioner(lambda n: "" if n.name == "addmm" and "b_" in str(n.args) else "no")
    half = edge.to_backend(first)
    assert sorted(half.exported_program().state_dict) == ["a.bias", "a.weight", "b.weight"]
    both = half.to_backend(make_partitioner())
    for case in (make_case(1.0), make_case(-1.0)):
        torch.testing.assert_close(both.exported_program().module()(*case), model(*case))
    assert not both.exported_program().state_dict


def test_state_that_is_written_is_an_input_of_delegates_in_bodies() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return torch.cond(x.sum() > 0, lambda x: x * self.total, lambda x: x + self.total, (x,))

    edge = lower(Counting(), (torch.ones(3),))
    compare_counts(Counting(), edge, [torch.ones(3), -torch.ones(3), 2 * torch.ones(3)])


def compare_counts(model: nn.Module, edge: Any, cases: list[torch.Tensor]) -> None:
    loaded = lostwax.pte.load_runtime(edge.to_executable().buffer)
    for x in cases:
        torch.testing.assert_close(loaded.run((x,))[0], model(x))


def test_a_backend_may_take_control_flow_whole() -> None:
    class Whole(make_partitioner().spec.backend.__class__):  # type: ignore[misc]
        def preprocess(self, program: Any, compile_specs: Any) -> bytes:
            return str(program).encode()

    model = Branches().eval()
    edge = lostwax.export(model, make_case(1.0)).to_edge()
    spec = DelegationSpec(Whole())
    taken = edge.to_backend(CapabilityPartitioner(spec, lambda n: ""))
    (delegate,) = taken.delegation_report().delegates
    assert delegate.operators["torch.ops.higher_order.cond"] == 1
    assert taken.delegation_report().share == 1
    for case in (make_case(1.0), make_case(-1.0)):
        torch.testing.assert_close(taken.exported_program().module()(*case), model(*case))


def test_the_report_has_lines_of_bodies(lowered: Any) -> None:
    _, edge = lowered["while"]
    left = {each.node: each for each in edge.delegation_report().undelegated}
    assert left["add"].reasons == ("XNNPACK computes in float32, not i64",)
    assert "test_control_flow.py" in left["add"].place
    assert left["while_loop"].reasons == ("XNNPACK has no control flow",)


def test_delegates_in_bodies_are_printed_copied_and_refused(lowered: Any) -> None:
    program = lowered["cond"][1].exported_program()
    text = str(program)
    assert text.count("# XnnpackBackend, ") == 3
    assert any(n.name == "executorch_call_delegate" for n in all_nodes(program.graph_module))
    assert not lostwax.diff(program, lowered["cond"][1].transform([]).exported_program())
    inner = Branches()
    inner.forward = lambda x: torch.cond(x.sum() > 0, inner.a, inner.b, (x,))
    edge = lower(inner, make_case(1.0)).exported_program()
    with pytest.raises(LostwaxError, match=r"run_decompositions\(\): the program has delegates"):
        edge.run_decompositions()
