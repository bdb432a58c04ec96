"""Delegates in `.pte` files: where their data lies, what is shared, and files that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from examples.backend import SimulatedBackend, make_partitioner
from lostwax.backends import CapabilityPartitioner, CompileSpec, DelegationSpec, Payload
from lostwax.errors import LoadError, LoweringError
from lostwax.pte.file.container import Pool, write_file
from lostwax.pte.file.flat import Table
from lostwax.pte.file.reader import read_file


class Named(SimulatedBackend):
    """A backend with data beside its payload."""

    def preprocess(self, program: Any, compile_specs: Any) -> Payload:
        return Payload(b"payload", {"weights": compile_specs[0].value})


def lower(*values: bytes) -> lostwax.EdgeProgramManager:
    """A program with a delegate for each of the values, between which is a cosine."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in values:
            x = torch.cos(torch.relu(x))
        return x

    edge = lostwax.export(f, (torch.ones(3),)).to_edge()
    for i, value in enumerate(values):
        spec = DelegationSpec(Named(), (CompileSpec("value", value),))
        name = "relu" if i == 0 else f"relu_{i}"
        explain = {name: ""}.get
        edge = edge.to_backend(CapabilityPartitioner(spec, lambda n, e=explain: e(n.name, "no")))
    return edge


def test_equal_data_is_in_the_file_once():
    file = read_file(lower(b"same", b"same").to_executable().buffer)
    (plan,) = file.program["execution_plan"]
    assert [d["id"] for d in plan["delegates"]] == ["SimulatedBackend"] * 2
    assert [d["processed"]["index"] for d in plan["delegates"]] == [2, 2]
    assert [n["key"] for n in file.program["named_data"]] == ["weights"]
    assert plan["delegates"][0]["compile_specs"][0]["value"] == b"same"


def test_other_data_under_one_name_is_refused():
    with pytest.raises(LoweringError, match="different data under the name 'weights'"):
        lower(b"one", b"other").to_executable()


@pytest.mark.parametrize(
    ("processed", "named", "text"),
    [
        ({"location": 1, "index": 7}, 0, "the delegate 'a' has its data at 7 of 1"),
        ({"location": 0, "index": 0}, 0, "the delegate 'a' has its data at 0 of 0"),
        ({"location": 1, "index": 0}, 3, "the data 'key' is in a segment that is not there"),
    ],
)
def test_data_that_is_not_there_is_found(processed, named, text):
    fields = {"id": "a", "processed": Table("BackendDelegateDataReference", processed)}
    plan = {"name": "forward", "delegates": [Table("BackendDelegate", fields)]}
    program = {
        "execution_plan": [Table("ExecutionPlan", plan)],
        "named_data": [Table("NamedData", {"key": "key", "segment_index": named})],
    }
    with pytest.raises(LoadError, match=text):
        read_file(b"".join(write_file(program, [Pool()])))


def test_a_delegate_is_listed():
    edge = lostwax.export(torch.relu, (torch.ones(3),)).to_edge().to_backend(make_partitioner())
    assert "0 SimulatedBackend(t0, t1)" in lostwax.pte.dump(edge.to_executable().buffer)
