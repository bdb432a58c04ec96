"""What nodes tell of where they come from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

import lostwax
from lostwax.capture import export
from lostwax.capture.steps.provenance import Provenance, StepPlace
from lostwax.fake import FakeTensor
from lostwax.ir.program import ExportedProgram
from tests.capture.small import Of, X


def test_metadata_of_nodes() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    program = export(net, (X,))
    addmm = next(n for n in program.graph.nodes if n.name == "addmm")
    assert isinstance(addmm.meta["val"], FakeTensor)
    assert tuple(addmm.meta["val"].shape) == (3, 4)
    assert list(addmm.meta["nn_module_stack"].values()) == [
        ("", "torch.nn.modules.container.Sequential"),
        ("0", "torch.nn.modules.container.Sequential"),
        ("0.0", "torch.nn.modules.linear.Linear"),
    ]
    assert addmm.meta["source_fn_stack"][-1][1] is nn.Linear
    relu = next(n for n in program.graph.nodes if n.name == "relu")
    assert relu.meta["source_fn_stack"][-1][1] is nn.ReLU

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    program = export(Of(forward), (X,))
    trace = next(n for n in program.graph.nodes if n.op == "call_function").meta["stack_trace"]
    lines = trace.splitlines()
    assert 'test_provenance.py", line' in lines[-2]
    assert lines[-1].strip() == "return x.sin()"
    assert any("return helper(x)" in line for line in lines)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_the_function_that_the_user_called_is_the_source_of_its_parts() -> None:
    program = export(lambda x, w: F.linear(x, w), (X, X))
    for node in program.graph.nodes:
        if node.op == "call_function":
            assert node.meta["source_fn_stack"] == [("linear", F.linear)]


class Sources(nn.Module):
    """Each call below is one source of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda module, args, out: out.tanh())
        self.twice = nn.Sequential(nn.ReLU(), nn.LayerNorm(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(self.linear(x))
        x = self.twice(self.twice(x))
        x = F.linear(F.linear(x, self.linear.weight), self.linear.weight)
        x = torch.einsum("ij,kj->ik", x, x)
        return torch.add(F.gelu(x) + 1, x.view(-1, 1).view(3, 3))


@pytest.fixture(scope="module")
def sources() -> ExportedProgram:
    return export(Sources(), (X,))


def test_each_call_is_a_source_of_its_own(sources: ExportedProgram) -> None:
    """FX's own tool for that finds each call of a module or function, also of shared ones."""
    wanted = [nn.Linear, nn.ReLU, nn.LayerNorm, F.linear, F.gelu, torch.einsum, torch.add]
    found = get_source_partitions(sources.graph, wanted)
    assert {kind: len(parts) for kind, parts in found.items()} == {
        nn.Linear: 2, nn.ReLU: 2, nn.LayerNorm: 2, F.linear: 2, F.gelu: 1, torch.einsum: 1,
        torch.add: 2,
    }  # fmt: skip
    first, second = found[nn.Linear]
    assert [n.name for n in first.nodes] == ["t", "addmm"]
    assert [n.name for n in second.nodes] == ["t_1", "addmm_1"]


def test_names_of_sources_are_unique(sources: ExportedProgram) -> None:
    calls = [n for n in sources.graph.nodes if n.op == "call_function"]
    found = {n.name: n.meta["source_fn_stack"] for n in calls}
    assert found["addmm"] == [("linear", nn.Linear)]
    assert found["addmm_1"] == [("linear@1", nn.Linear)]
    assert found["tanh"] == [("tanh", torch.tanh)]  # of the hook, not of the module
    assert found["mm"] == [("linear", F.linear)]
    assert found["mm_1"] == [("linear_1", F.linear)]
    assert found["view"] == [("einsum", torch.einsum)]
    *_, last = [name for name in found if name.startswith("view")]
    assert found[last] == [(last, torch.Tensor.view)]


def test_sources_are_kept_in_files(sources: ExportedProgram, tmp_path: Path) -> None:
    lostwax.save(sources, tmp_path / "program.pt2")
    again = lostwax.load(tmp_path / "program.pt2")
    for ours, read in zip(sources.graph.nodes, again.graph.nodes, strict=True):
        assert ours.meta.get("source_fn_stack") == read.meta.get("source_fn_stack")


def test_a_view_that_is_taken_again_is_that_of_its_line() -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x.clone()
            first, second = y.split([1, 2])
            y.add_(1)
            return first, second.relu()

    program = export(nn.Sequential(Parts()), (X,))
    for node in program.graph.nodes:
        if "split" in node.name or "getitem" in node.name:
            assert node.meta["stack_trace"].endswith("first, second = y.split([1, 2])\n")


def test_a_view_may_be_taken_again_any_number_of_times() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        row = y[0]
        for _ in range(1200):
            y.add_(1)
            row.mul_(1)
        return row

    program = export(Of(forward), (X,))
    *_, last = [n for n in program.graph.nodes if n.op == "call_function"]
    assert last.meta["stack_trace"].endswith("row = y[0]\n")


def test_what_no_line_has_computed_has_none() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.turned = self.turned + 1
        return x

    module = Of(forward)
    module.register_buffer("turned", torch.zeros(4, 8)[:, ::2])
    *_, last = [n for n in export(module, (X,)).graph.nodes if n.op == "call_function"]
    assert last.meta["stack_trace"] == ""


def test_the_users_frames_are_found_however_deep_the_question_is() -> None:
    provenance = Provenance({})

    def ask(depth: int) -> StepPlace:
        return provenance.here() if depth == 0 else ask(depth - 1)

    for depth in range(6):
        with provenance.watch_calls(sys._getframe()):
            frames = ask(depth).frames
        assert frames[::2] == (ask.__code__,) * (depth + 1)
