"""ETRecords: every instruction of a file leads back to a node, a module and a line."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from examples.models import MODELS
from lostwax.backends import XnnpackPartitioner
from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file
from lostwax.pte.file.record import MethodRecord, read_record
from tests.pte.models import CASES, make_module


def save(edge: lostwax.EdgeProgramManager, folder: Path) -> tuple[Any, dict[str, MethodRecord]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executable = edge.to_executable()
    executable.save(folder / "m.pte", etrecord=True)
    file = read_file((folder / "m.pte").read_bytes())
    return file.program["execution_plan"], read_record(folder / "m.etrecord")


def list_unknown(plans: Any, record: dict[str, MethodRecord]) -> list[str]:
    """Instructions that lead nowhere."""
    found = []
    for plan in plans:
        steps = [s["instr_args"] for chain in plan["chains"] for s in chain["instructions"] or ()]
        for at, step in enumerate(steps):
            origins = record[plan["name"]].find(at)
            if not origins or not all(each.line and each.operator for each in origins):
                found.append(f"{plan['name']} {at}: {step}")
    return found


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
@pytest.mark.parametrize("name", sorted({*CASES, *MODELS}))
def test_every_instruction_leads_to_a_line(name: str, backend: str, tmp_path: Path) -> None:
    if name in CASES:
        module, inputs = make_module(CASES[name]), CASES[name].inputs(2)
    else:
        module, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    edge = lostwax.export(module, inputs).to_edge()
    edge = edge.to_backend(XnnpackPartitioner()) if backend == "xnnpack" else edge
    plans, record = save(edge, tmp_path)
    assert list_unknown(plans, record) == []


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x
        if x.sum() > 0:
            x = self.scale(x)
        while x.sum() < 9:
            x = x * 2 + self.seen
        return x + self.seen


def test_branches_loops_and_state_lead_to_lines(tmp_path: Path) -> None:
    plans, record = save(lostwax.export(Flow(), (torch.ones(3),)).to_edge(), tmp_path)
    assert [each for each in list_unknown(plans, record) if "JumpFalse" not in each] == []
    lines = {o.code for at in record["forward"].handles for o in record["forward"].find(at)}
    assert {"x = self.scale(x)", "x = x * 2 + self.seen"} <= lines


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Sequential(nn.Linear(8, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        return self.head(y.mean((2, 3))).sort(-1)[0]


def make_net() -> lostwax.EdgeProgramManager:
    torch.manual_seed(0)
    return lostwax.export(Net().eval(), (torch.randn(1, 3, 8, 8),)).to_edge()


def test_what_a_delegate_notes_leads_to_lines(tmp_path: Path) -> None:
    _, record = save(make_net().to_backend(XnnpackPartitioner()), tmp_path)
    found = {
        event: [(o.operator, o.module, o.kind, o.code) for o in record["forward"].find(0, event)]
        for event in record["forward"].events[0]
        if event
    }
    code = "y = self.conv(x).relu()"
    assert found["Convolution (NHWC, F32) IGEMM #1"] == [
        ("aten.convolution.default", "conv", "Conv2d", code),
        ("aten.relu.default", "", "Net", code),
    ]
    assert [each[1] for each in found["TanH (NC) #1"]] == ["head.1"]
    whole = record["forward"].find(0, "Transpose (ND, X32) #1")
    assert len(whole) > 3


def test_handles_stay_through_passes(tmp_path: Path) -> None:
    """Also where a pass runs after parts were handed to backends, and in parts of patterns."""
    edge = make_net()
    handles = {n.name: n.meta.get("debug_handle") for n in edge.exported_program().graph.nodes}
    lowered = edge.to_backend(XnnpackPartitioner()).transform([lambda module: None])
    assert lowered.whole["forward"] is edge.exported_program()
    left = [n for n in lowered.exported_program().graph.nodes if "debug_handle" in n.meta]
    assert all(n.meta["debug_handle"] in handles.values() for n in left)


def test_a_record_is_the_same_each_time() -> None:
    files = []
    for _ in range(2):
        file = io.BytesIO()
        make_net().to_executable().write_record_to_file(file)
        files.append(file.getvalue())
    assert files[0] == files[1]
    with zipfile.ZipFile(io.BytesIO(files[0])) as archive:
        assert b"/work" not in archive.read("edge_dialect_exported_program/forward")


def test_a_file_that_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "a.etrecord").write_bytes(b"PK")
    with pytest.raises(LoadError, match="is no ETRecord, or a damaged one"):
        read_record(tmp_path / "a.etrecord")
    with zipfile.ZipFile(tmp_path / "b.etrecord", "w") as archive:
        archive.writestr("ETRECORD_V0", "")
        archive.writestr("debug_handle_map", "[]")
    with pytest.raises(LoadError, match=r"instead: executable\.save"):
        read_record(tmp_path / "b.etrecord")


def test_executorch_reads_a_record(tmp_path: Path) -> None:
    """With varying sizes, control flow and several methods."""
    record = pytest.importorskip("executorch.devtools.etrecord", exc_type=ImportError)
    rows = {0: lostwax.Dim("rows", max=8)}
    programs = {
        "forward": lostwax.export(Flow(), (torch.ones(3),)),
        "other": lostwax.export(nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_shapes=(rows,)),
    }
    save(lostwax.to_edge(programs), tmp_path)
    found = record.parse_etrecord(str(tmp_path / "m.etrecord"))
    assert found.edge_dialect_program.keys() == {"forward", "other"}
    x = torch.randn(5, 3)
    module = found.edge_dialect_program["other"].module()
    torch.testing.assert_close(module(x), programs["other"].module()(x))
    assert len(found._representative_inputs) == 1
