"""Delegates in programs: what moves into them, what stays outside, and that they compute the same;
verified, printed, reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from examples.backend import SimulatedBackend, make_partitioner, run_payload
from lostwax import Dim
from lostwax.backends import CompileSpec, LoweredBackendModule, Payload
from lostwax.errors import LostwaxError, LoweringError, PassError
from lostwax.ir.graph.delegate import find_delegates


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        y = self.second(torch.cos(torch.relu(self.first(x))) + 1.5)
        self.total.add_(y.sum(0))
        return y * 2, torch.sigmoid(y) + self.total


@pytest.fixture(scope="module")
def program() -> lostwax.ExportedProgram:
    torch.manual_seed(0)
    shapes = ({0: Dim("rows", max=9)},)
    return lostwax.export(Model(), (torch.randn(3, 4),), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def lowered(program: lostwax.ExportedProgram) -> lostwax.EdgeProgramManager:
    return program.to_edge().to_backend(make_partitioner())


def test_a_lowered_program_computes_the_same(program, lowered):
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        ours, plain = lowered.exported_program().module(), program.module()
        for _ in range(2):  # the second call has other state
            torch.testing.assert_close(ours(x), plain(x))


def test_payloads_are_run_by_the_backend(lowered):
    part = lowered.exported_program()
    _, delegate = next(find_delegates(part.graph))
    x = torch.randn(3, 4)
    made = run_payload(delegate.processed_bytes, x)
    torch.testing.assert_close(made, list(delegate(x)))
    assert delegate.backend_id == "SimulatedBackend"


def test_constants_move_and_written_state_stays(lowered):
    program = lowered.exported_program()
    assert list(program.state_dict) == ["total"]
    assert program.constants == {}
    inner = [d.program for _, d in find_delegates(program.graph)]
    assert [sorted(p.state_dict) for p in inner] == [
        ["first.bias", "first.weight"],
        ["second.bias", "second.weight"],
        [],
    ]
    assert "b_total" in inner[2].graph_signature.user_inputs


def test_a_weight_that_others_read_stays_too():
    weight = nn.Parameter(torch.randn(3))
    module = nn.Module()
    module.weight = weight
    module.forward = lambda x: torch.cos(x * module.weight) * torch.cos(module.weight)
    program = lostwax.export(module, (torch.ones(3),)).to_edge().to_backend(make_partitioner())
    whole = program.exported_program()
    assert list(whole.state_dict) == ["weight"]
    torch.testing.assert_close(whole.module()(torch.ones(3)), module.forward(torch.ones(3)))


def test_the_report_names_reason_and_line(lowered):
    report = lowered.delegation_report()
    assert len(report.delegates) == 3
    assert [each.node for each in report.undelegated] == ["cos", "sum_1"]
    assert all("test_dialect.py" in each.place for each in report.undelegated)
    assert "cos: the backend has no edge.aten.cos.default" not in str(report)
    assert "the backend has no edge.aten.cos.default\n      at " in str(report)
    assert report.share == 10 / 12


def test_a_program_that_was_offered_to_nobody_says_so(program):
    report = program.to_edge().delegation_report()
    assert report.share == 0
    assert report.undelegated[0].reasons == ("no backend was asked",)


def test_the_program_that_is_lowered_stays_as_it_was(program):
    edge = program.to_edge()
    before = str(edge.exported_program())
    edge.to_backend(make_partitioner())
    assert str(edge.exported_program()) == before
    assert all("not_delegated" not in n.meta for n in edge.exported_program().graph.nodes)


def test_the_delegates_graph_is_printed(lowered):
    text = str(lowered.exported_program())
    assert "# SimulatedBackend, " in text
    assert "class lowered_module_1(torch.nn.Module):" in text
    assert "torch.ops.higher_order.executorch_call_delegate(lowered_module_0, x)" in text


def test_passes_and_copies_keep_delegates(program, lowered):
    again = lowered.transform([lambda module: None])
    copied = copy.deepcopy(again.exported_program())
    x = torch.randn(4, 4)
    torch.testing.assert_close(copied.module()(x), program.module()(x))
    assert not lostwax.diff(copied, lowered.exported_program())
    other = program.to_edge().to_backend(make_partitioner(None, CompileSpec("a", b"b")))
    assert len(lostwax.diff(copied, other.exported_program()).of("delegate")) == 3


def test_wrong_calls_of_delegates_are_found(lowered):
    def drop_argument(module):
        node = module.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.executorch_call_delegate
        )[-1]
        node.args = node.args[:-1]

    with pytest.raises(PassError, match="the delegate takes 3 inputs, and is given 2"):
        lowered.transform([drop_argument])


def test_settings_reach_the_backend(program):
    spec = CompileSpec("speed", b"high")
    lowered = program.to_edge().to_backend(make_partitioner(None, spec))
    _, delegate = next(find_delegates(lowered.exported_program().graph))
    assert isinstance(delegate, LoweredBackendModule)
    assert delegate.compile_specs == (spec,)
    assert b'"speed": "high"' in delegate.processed_bytes


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("text", "returns the payload as a str"),
        (None, "returns the payload as a NoneType"),
        (torch.ones(2), "returns the payload as a Tensor"),
        (Payload(b"", {"weights": "text"}), "returns weights as a str"),
        (Payload(b"", None), "returns named_data that is None"),
        (Payload(b"", {3: b""}), r"returns named_data that is \{3: b''\}"),
    ],
)
def test_a_payload_of_the_wrong_form_is_refused(program, monkeypatch, payload, text):
    monkeypatch.setattr(SimulatedBackend, "preprocess", lambda *_: payload)
    with pytest.raises(LoweringError, match=text):
        program.to_edge().to_backend(make_partitioner())


def test_a_backend_that_fails_is_named_with_the_line(program, monkeypatch):
    monkeypatch.setattr(SimulatedBackend, "preprocess", lambda *_: {}["scale"])
    text = r"SimulatedBackend.preprocess fails: KeyError: 'scale'(.|\n)*test_dialect.py:"
    with pytest.raises(LoweringError, match=text) as caught:
        program.to_edge().to_backend(make_partitioner())
    assert isinstance(caught.value.__cause__, KeyError)
    monkeypatch.setattr(SimulatedBackend, "backend_id", 3)
    with pytest.raises(LoweringError, match="the backend_id of SimulatedBackend is 3"):
        program.to_edge().to_backend(make_partitioner())


def test_several_backends_take_parts_of_one_program(program):
    class Other(SimulatedBackend):
        backend_id = "Other"

    first = make_partitioner(lambda n: "" if "relu" in str(n.target) else "only relu")
    lowered = program.to_edge().to_backend([first, make_partitioner()])
    report = lowered.delegation_report()
    assert sum(sum(d.operators.values()) for d in report.delegates) == 10
    left = {each.node: each.reasons for each in report.undelegated}
    assert left["cos"] == ("only relu", "the backend has no edge.aten.cos.default")
    x = torch.randn(2, 4)
    torch.testing.assert_close(lowered.exported_program().module()(x), program.module()(x))


def test_several_methods_with_partitioners_of_their_own(program):
    methods = {"forward": program, "twice": lostwax.export(lambda x: x * 2, (torch.ones(3),))}
    lowered = lostwax.to_edge_transform_and_lower(
        methods, partitioner={"twice": make_partitioner()}
    )
    assert [d.method for d in lowered.delegation_report().delegates] == ["twice"]


def test_operators_that_a_backend_wants_whole_are_kept():
    whole, silu = make_partitioner(), lostwax.ops.edge.aten.silu.default
    whole.preserve_ops = (torch.ops.aten.silu.default,)
    program = lostwax.export(nn.SiLU(), (torch.ones(2, 4),))
    whole.explain = lambda n: "" if n.target is silu else "other"
    with pytest.raises(LoweringError, match=r"silu = edge\.aten.silu.default is not of this"):
        lostwax.to_edge_transform_and_lower(program, partitioner=whole)
    whole.explain = lambda n: "other"
    lowered = lostwax.to_edge_transform_and_lower(program, partitioner=whole)
    targets = [n.target for n in lowered.exported_program().graph.nodes]
    assert silu not in targets  # nobody took it, so it is taken apart


def test_what_cannot_be_done_to_delegates_is_refused(lowered):
    program = lowered.exported_program()
    with pytest.raises(LostwaxError, match=r"run_decompositions\(\): the program has delegates"):
        program.run_decompositions()
    with pytest.raises(LostwaxError, match=r"unflatten\(\): the program has delegates"):
        lostwax.unflatten(program)
