"""Copies with the gaps of eager's strides go where nobody sees strides, and stay where they are
seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim

SCATTER = torch.ops.aten.as_strided_scatter.default


def write_part(x: Tensor) -> Tensor:
    """A part with gaps, written to."""
    part, _ = torch.unsafe_chunk(x * 2, 2, 1)
    return part.relu_()


def targets(program: Any) -> list[Any]:
    return [n.target for n in program.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("varies", [False, True])
def test_gates_of_a_cell_have_no_gaps(varies: bool) -> None:
    cell = nn.LSTMCell(4, 5).eval()
    call = (torch.randn(3, 4), (torch.randn(3, 5), torch.randn(3, 5)))
    rows = {0: Dim("rows")}
    program = lostwax.export(cell, call, dynamic_shapes=(rows, (rows, rows)) if varies else None)
    assert varies or SCATTER in targets(program)
    core = program.run_decompositions()
    assert SCATTER not in targets(core)
    assert torch.ops.aten.full.default not in targets(core)  # the memory
    for n in (3, 1, 0) if varies else (3,):
        call = (torch.randn(n, 4), (torch.randn(n, 5), torch.randn(n, 5)))
        ours, eager = core.module()(*call), cell(*call)
        torch.testing.assert_close(ours, eager)
        assert [t.stride() for t in ours] == [t.stride() for t in eager]


@pytest.mark.parametrize(
    "read",
    [
        lambda part: part,
        lambda part: (part[1:], part + 1),
        lambda part: torch.empty_like(part).fill_(part.stride(0)),
    ],
    ids=["result", "view", "strides"],
)
def test_strides_that_are_seen_stay(read: Any) -> None:
    def function(x: Tensor) -> Any:
        return read(write_part(x))

    x = torch.randn(3, 6)
    core = lostwax.export(function, (x,)).run_decompositions().module()
    ours, eager = core(x), function(x)
    torch.testing.assert_close(ours, eager)
    for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (ours, eager)), strict=True):
        assert a.stride() == b.stride()


def test_places_that_overlap_are_no_copy() -> None:
    def function(x: Tensor) -> Tensor:
        memory = torch.as_strided_scatter(x.new_zeros(4), x, (2, 3), (1, 1), 0)
        return memory.as_strided((2, 3), (1, 1), 0) * 2

    x = torch.arange(6.0).view(2, 3)
    core = lostwax.export(function, (x,)).run_decompositions()
    assert SCATTER in targets(core)


def test_they_go_on_the_way_to_a_runtime_in_any_case() -> None:
    manager = lostwax.export(write_part, (torch.randn(3, 6),)).to_edge()
    assert "as_strided" not in str(manager.exported_program())
    assert manager.to_executable()
