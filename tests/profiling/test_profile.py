"""Profiles: of an ETDump as a device writes it, and of programs in eager."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.errors import LoadError
from lostwax.profiling.eager import kernel_seconds, profile_program
from lostwax.profiling.executable import profile_executable
from lostwax.profiling.profile import (
    Profile,
    TimedPiece,
    compare_profiles,
    profile_from_json,
    write_comparison,
    write_profile,
)
from lostwax.pte.file.flat import Table, TableForm, write_table
from lostwax.pte.file.trace import ABSENT, IDENTIFIER, TABLES, read_trace

FORM = TableForm(TABLES, ABSENT)


def write_dump(calls: list[list[tuple[str, int, str, int]]]) -> bytes:
    """An ETDump of these calls: for each event its name, instruction, part and time."""
    blocks = [Table("RunData", {"name": "Default", "events": []})]
    for events in calls:
        rows, now = [], 1000
        for name, at, part, took in events:
            fields = {"name": name, "start_time": now, "end_time": now + took}
            fields |= {"instruction_id": at, "delegate_debug_id_int": -1}
            fields |= {"delegate_debug_id_str": part} if part else {}
            rows.append(Table("Event", {"profile_event": Table("ProfileEvent", fields)}))
            now += took
        blocks.append(Table("RunData", {"name": "Execute", "events": rows}))
    return write_table(Table("ETDump", {"run_data": blocks}), IDENTIFIER, FORM)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        return self.head(y.mean((2, 3))).sort(-1)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An executable whose first instruction is a delegate and whose second is a kernel."""
    folder = tmp_path_factory.mktemp("profile")
    program = lostwax.export(Net().eval(), (torch.randn(1, 3, 8, 8),))
    executable = program.to_edge().to_backend(XnnpackPartitioner()).to_executable()
    executable.save(folder / "m.pte", etrecord=True)
    executable.save(folder / "bare.pte")
    conv = ("", 0, "Convolution (NHWC, F32) IGEMM #1")
    calls = [
        [
            (*conv, 400_000 + 1000 * extra),
            ("", 0, "Transpose (ND, X32) #1", 100_000),
            ("DELEGATE_CALL", 0, "", 600_000),
            ("native_call_topk.values", 1, "", 190_000),
            ("OPERATOR_CALL", 1, "", 200_000),
            ("Method::execute", 0, "", 1_000_000),
        ]
        for extra in (5, 0, -5)
    ]
    (folder / "m.etdp").write_bytes(write_dump(calls))
    return folder


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    return profile_executable(folder / "m.pte", etdump=folder / "m.etdp")


def test_each_piece_leads_to_modules_and_lines(profile: Profile) -> None:
    assert (profile.seconds, profile.calls) == (1e-3, 3)
    found = {(p.at, p.name): p for p in profile.pieces}
    conv = found["i0", "Convolution (NHWC, F32) IGEMM"]
    assert (conv.seconds, conv.module, conv.delegate) == (4e-4, "conv", "XnnpackBackend")
    assert conv.line.endswith("y = self.conv(x).relu()")
    assert found["i0", "(XnnpackBackend, around)"].seconds == pytest.approx(1e-4)
    topk = found["i1", "aten::topk.values"]
    assert (topk.seconds, topk.bytes) == (2e-4, 4 * 4 + 4 * 8)
    assert topk.line.endswith("return self.head(y.mean((2, 3))).sort(-1)[0]")
    assert found["", "(between instructions)"].seconds == pytest.approx(2e-4)
    assert found["i0", "Transpose (ND, X32)"].line == "(2 lines)"


def test_groups_add_up_to_the_whole(profile: Profile) -> None:
    for kind in ("operator", "module", "line"):
        groups = profile.group(kind)
        assert sum(g.share for g in groups) == pytest.approx(1)
        assert [g.seconds for g in groups] == sorted((g.seconds for g in groups), reverse=True)


def test_as_text_and_as_data(profile: Profile) -> None:
    text = write_profile(profile, ("module",))
    assert text.splitlines()[0] == "m.pte: 1.000 ms a call, the median of 3"
    assert any(
        line.split() == ["0.400", "40.0%", "1", "XnnpackBackend", "conv"]
        for line in text.splitlines()
    )
    data = json.loads(json.dumps(profile.to_json()))
    assert profile_from_json(data) == profile
    assert profile_from_json({"result": {"profile": data}}) == profile
    with pytest.raises(LoadError, match="this is no profile: it has no 'pieces'"):
        profile_from_json({"seconds": {}})
    with pytest.raises(LoadError, match="this is no profile"):
        profile_from_json([1])


def test_two_profiles_beside_each_other(profile: Profile, folder: Path) -> None:
    dump = write_dump([[("OPERATOR_CALL", 1, "", 500_000), ("Method::execute", 0, "", 500_000)]])
    (folder / "other.etdp").write_bytes(dump)
    other = profile_executable(folder / "m.pte", etdump=folder / "other.etdp")
    changes = compare_profiles(profile, other)["operator"]
    first = {"name": "Convolution (NHWC, F32) IGEMM", "old": 4e-4, "new": 0.0}
    assert changes[0] == first
    assert "m.pte: 0.500 ms a call, 0.50x" in write_comparison(profile, other)


def test_small_times_are_told_in_microseconds(profile: Profile) -> None:
    small = replace(profile, seconds=5e-6, pieces=(TimedPiece("a", 2e-6), TimedPiece("b", 2.5e-7)))
    lines = write_profile(small, ("operator",)).splitlines()
    assert lines[0] == "m.pte: 5.000 µs a call, the median of 3"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["µs", "share"],
        ["2.000", "40.0%"],
        ["0.250", "5.0%"],
    ]
    beside = write_comparison(small, replace(small, pieces=()), ("operator",)).splitlines()
    assert beside[3:5] == ["old µs  new µs  change  by operator", " 2.000   0.000  -2.000  a"]


def test_without_a_record_there_are_operators_alone(folder: Path) -> None:
    bare = profile_executable(folder / "bare.pte", etdump=folder / "m.etdp")
    assert "there is no ETRecord beside the file" in bare.notes[0]
    assert {g.name for g in bare.group("line")} == {"(no line)"}
    given = profile_executable(
        folder / "bare.pte", etdump=folder / "m.etdp", record=folder / "m.etrecord"
    )
    assert "conv" in {g.name for g in given.group("module")}


def test_a_dump_of_something_else(folder: Path, tmp_path: Path) -> None:
    far = tmp_path / "far.etdp"
    far.write_bytes(write_dump([[("OPERATOR_CALL", 7, "", 1)]]))
    with pytest.raises(LoadError, match="speaks of instruction 7, and the method has 2"):
        profile_executable(folder / "m.pte", etdump=far)
    far.write_bytes(write_dump([]))
    with pytest.raises(LoadError, match="the dump has no instructions"):
        profile_executable(folder / "m.pte", etdump=far)
    with pytest.raises(
        LoadError, match=r"not an ETDump[\s\S]*instead: what a runtime noted"
    ) as told:
        profile_executable(folder / "m.pte", etdump=folder / "m.pte")
    assert told.value.where[-1].endswith("m.pte")
    with pytest.raises(LoadError, match="there is no method 'backward'"):
        profile_executable(folder / "m.pte", etdump=far, method="backward")


def test_damaged_dumps_do_no_harm(folder: Path) -> None:
    data, source = (folder / "m.etdp").read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        cut = source.choice([len(damaged), source.randrange(len(damaged))])
        with contextlib.suppress(LoadError):
            read_trace(bytes(damaged[:cut]))


def test_the_runtime_has_a_package_of_its_own(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lostwax_run", None)
    with pytest.raises(LoadError, match="lostwax-run is not installed"):
        profile_executable(folder / "m.pte")


def test_a_program_in_eager() -> None:
    x = torch.randn(1, 3, 8, 8)
    program = lostwax.export(Net().eval(), (x,))
    profile = profile_program(program, ((x,), {}), "net.pt2", calls=2)
    found = {p.name: p for p in profile.pieces}
    assert found["aten.convolution.default"].module == "conv"
    assert found["aten.convolution.default"].bytes == 8 * 36 * 4
    assert found["aten.convolution.default"].seconds > 0
    assert all(p.line for p in profile.pieces)


def test_kernels_count_once_and_not_the_marks_that_a_gpu_has_of_its_own() -> None:
    def event(name: str, kernels: dict[str, int], number: int | None = None) -> FunctionEvent:
        made = FunctionEvent(number or len(name), name, 1, 0, 100, use_device="cuda")
        for kernel, micros in kernels.items():
            made.append_kernel(kernel, 0, micros)
        return made

    node, called = event("lostwax:addmm", {"lostwax:addmm": 90}), event("aten::addmm", {"gemm": 30})
    launch = event("cudaLaunchKernel", {"bias": 5})
    called.append_cpu_child(launch)
    called.append_cpu_child(event("Activity Buffer Request", {"gemm": 30}, called.id))
    node.append_cpu_child(called)
    seconds = kernel_seconds([node, called, launch, event("lostwax:view", {})])
    assert seconds == {"addmm": pytest.approx(35e-6), "view": 0}


@pytest.mark.gpu
def test_a_program_on_a_gpu() -> None:
    x = torch.randn(64, 3, 64, 64, device="cuda")
    program = lostwax.export(Net().eval().cuda(), (x,))
    profile = profile_program(program, ((x,), {}), "net.pt2", calls=3)
    found = {p.name: p.seconds for p in profile.pieces}
    assert 0 < found["aten.convolution.default"] < profile.seconds < 1
    assert found["aten.t.default"] == 0


@pytest.mark.gpu
def test_a_profile_on_a_gpu_is_what_torch_counts_there(tmp_path: Path) -> None:
    """All nodes together are as long as all kernels, by the command too."""
    layers = [nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 256), nn.LayerNorm(256)]
    model, x = nn.Sequential(*layers).eval().cuda(), torch.randn(4096, 2048, device="cuda")
    program = lostwax.export(model, (x,))
    lostwax.save(program, tmp_path / "m.pt2")
    lines = [sys.executable, "-m", "lostwax", "profile", str(tmp_path / "m.pt2"), "--json"]
    told = subprocess.run(lines, capture_output=True, text=True, check=True)
    profile = json.loads(told.stdout)["result"]["profile"]
    module = program.module()
    with torch.no_grad(), torch.profiler.profile() as profiler:
        for _ in range(5):
            module(x)
        torch.cuda.synchronize()
    on_gpu = [e for e in profiler.events() or () if e.device_type == DeviceType.CUDA]
    kernels = sum(e.time_range.elapsed_us() for e in on_gpu) / 5 / 1e6
    assert profile["seconds"] == pytest.approx(kernels, rel=0.3)
    slowest = max(profile["pieces"], key=lambda piece: piece["seconds"])
    assert slowest["name"] in ("aten.linear.default", "aten.addmm.default")
    assert slowest["seconds"] > 0.4 * profile["seconds"]


def test_the_explorer_lays_it_over_a_program(profile: Profile, folder: Path) -> None:
    (folder / "m.json").write_text(json.dumps({"result": {"profile": profile.to_json()}}))
    page = lostwax.explore(folder / "m.pte", profile=folder / "m.json")
    (entry,) = page.data["programs"]
    names = entry["columns"]["name"]
    seconds = {names[at]: took for at, took in entry["profile"]["seconds"].items()}
    assert seconds == {"i0": pytest.approx(6e-4), "i1": pytest.approx(2e-4)}
    edge = lostwax.export(Net().eval(), (torch.randn(1, 3, 8, 8),)).to_edge()
    (entry,) = lostwax.explore(edge, profile=folder / "m.json").data["programs"]
    names = entry["columns"]["name"]
    seconds = {names[at]: took for at, took in entry["profile"]["seconds"].items()}
    assert seconds["convolution"] == 4e-4
