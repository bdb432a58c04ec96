"""`diff` shows what changed, and nothing when nothing did."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

import torch
from torch import nn

import lostwax
from lostwax.ir.diff import _call_dims_alike, diff


class Net(nn.Module):
    def __init__(self, last: Any = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l = nn.Linear(3, 2)
        self.last = last

    def forward(self, x):
        return self.last(self.l(x)) + 1


def exported(last: Any = torch.relu, **options: Any) -> Any:
    return lostwax.export(Net(last), (torch.randn(4, 3),), **options)


def test_the_same() -> None:
    found = lostwax.diff(exported(), exported())
    assert not found
    assert str(found) == "no differences"
    buffer = io.BytesIO()
    program = exported(dynamic_shapes=({0: lostwax.Dim("b", max=8)},))
    lostwax.save(program, buffer)
    assert not lostwax.diff(program, lostwax.load(io.BytesIO(buffer.getvalue())))


def test_threads_that_name_the_sizes_of_one_program_leave_it_as_it_was() -> None:
    program, other = (exported(dynamic_shapes=({0: lostwax.Dim(name)},)) for name in "bc")
    before, first_is_in, second_wants_in = str(program), threading.Event(), threading.Event()

    def name_second() -> None:
        first_is_in.wait()
        second_wants_in.set()
        with _call_dims_alike(program, other):
            first_has_left.wait(10)

    first_has_left = threading.Event()
    second = threading.Thread(target=name_second)
    second.start()
    with _call_dims_alike(program, other):
        first_is_in.set()
        second_wants_in.wait()
        second.join(0.2)  # without a lock it has noted by now what the first has set
    first_has_left.set()
    second.join()
    assert str(program) == before


def test_nodes() -> None:
    found = lostwax.diff(exported(), exported(torch.sigmoid))
    assert [c.name for c in found.of("node")] == ["relu", "add", "sigmoid"]
    assert str(found).splitlines()[0].startswith("- node relu: torch.ops.aten.relu.default(")
    assert "+ node sigmoid: torch.ops.aten.sigmoid.default(" in str(found)
    assert "add.Tensor(relu, 1): f32[4, 2] → torch.ops.aten.add.Tensor(sigmoid, 1)" in str(found)


def test_sizes_and_ranges() -> None:
    small = exported(dynamic_shapes=({0: lostwax.Dim("b", max=8)},))
    large = exported(dynamic_shapes=({0: lostwax.Dim("b", max=9)},))
    assert [str(c) for c in lostwax.diff(small, large)] == ["~ range b: 0 to 8 → 0 to 9"]
    found = lostwax.diff(exported(), small)
    assert "~ input x: USER_INPUT f32[4, 3] → USER_INPUT f32[b, 3]" in map(str, found)


def test_a_dim_that_is_only_called_otherwise_changes_nothing() -> None:
    one, other = (exported(dynamic_shapes=({0: lostwax.Dim(name, max=8)},)) for name in "bn")
    assert not lostwax.diff(one, other)
    assert "f32[b, 3]" in str(one), "texts call sizes by their own names again"


def test_weights_by_their_values() -> None:
    a, b = exported(), exported()
    with torch.no_grad():
        b.state_dict["l.bias"][0] += 1
    (change,) = lostwax.diff(a, b)
    assert (change.kind, change.name) == ("weight", "l.bias")
    assert change.old.startswith("f32[2] requires grad ")
    assert change.old != change.new


class Wide(nn.Module):
    def __init__(self, head: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        self.head = nn.Linear(3, head)

    def forward(self, x):
        return self.head(self.body(x))


def test_weights_of_other_values_share_a_line() -> None:
    def exported(head: int) -> Any:
        return lostwax.export(Wide(head).eval(), (torch.ones(2, 3),))

    a, b = exported(4), exported(5)
    with torch.no_grad():
        b.state_dict["body.1.num_batches_tracked"] += 7
    found = lostwax.diff(a, b)
    start = ("~ weight ", "~ 5 weights ")
    values, *others = [line for line in str(found).splitlines() if line.startswith(start)]
    names = "body.0.weight, body.0.bias, body.1.num_batches_tracked, …"
    assert values == f"~ 5 weights have other values: {names}"
    assert [line.split(":")[0] for line in others] == ["~ weight head.weight", "~ weight head.bias"]
    assert "f32[4, 3] requires grad " in others[0], "another type is a line of its own"
    assert len(found.of("weight")) == 7, "the data are whole"


def test_weights_with_and_without_data_are_lines_of_their_own() -> None:
    a, b = exported(), exported()
    for name, tensor in list(b.state_dict.items()):
        b.state_dict[name] = nn.Parameter(tensor.detach().to("meta"))
    lines = str(lostwax.diff(a, b)).splitlines()
    assert [line.rpartition(" → ")[2] for line in lines] == [
        "f32[2, 3] requires grad without data",
        "f32[2] requires grad without data",
    ]


def test_sub_graphs_are_compared():
    from lostwax import passes
    from tests.control_programs import program

    before = program("cond twice")
    after = passes.CommonSubexpressions()(before)
    assert str(diff(before, after)) == (
        "- node true_graph_1.exp_1: torch.ops.aten.exp.default(getitem): f32[5, 3]\n"
        "~ node true_graph_1.add: torch.ops.aten.add.Tensor(exp, exp_1): f32[5, 3] → "
        "torch.ops.aten.add.Tensor(exp, exp): f32[5, 3]"
    )
    assert not diff(before, copy.deepcopy(before))
