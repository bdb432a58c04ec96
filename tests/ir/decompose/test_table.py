"""Tables of decompositions that speak of composite operators: what they say holds for programs that
keep these; of programs that do not, the user is told."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from lostwax import default_decompositions, export

aten = torch.ops.aten
X = torch.randn(2, 3)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.GELU())


def own_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return (x.unsqueeze(-2) * weight).sum(-1) + bias


def without_linear() -> Any:
    table = default_decompositions()
    del table[aten.linear.default]
    return table


def torchs_without_linear() -> Any:
    table = torch.export.default_decompositions()
    table.pop(aten.linear.default)
    return table


TABLES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "deleted": (without_linear, "says that it stays", "aten.linear.default"),
    "deleted from torch's": (torchs_without_linear, "says that it stays", "aten.linear.default"),
    "kept": (
        lambda: default_decompositions().keep(aten.linear),
        "says that it stays",
        "aten.linear.default",
    ),
    "own": (lambda: {aten.linear.default: own_linear}, "has a function", "aten.sum.dim_IntList"),
}


def list_targets(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("name", TABLES)
def test_what_a_table_says_of_composites_holds_or_is_told(name: str) -> None:
    make, said, target = TABLES[name]
    program = export(MODEL, (X,))
    text = rf"does not call aten\.linear\.default, of which the table {said}[\s\S]*" + (
        r'keep=\[torch\.ops\.aten\.linear\.default\][\s\S]*keep="composite"'
    )
    with pytest.warns(UserWarning, match=text) as told:
        program.run_decompositions(make())
    assert told[0].filename == __file__
    kept = export(MODEL, (X,), keep="composite")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = kept.run_decompositions(make())
    assert target in list_targets(done)
    torch.testing.assert_close(done.module()(X), MODEL(X))


def test_what_decompositions_have_taken_apart_is_told_too() -> None:
    """Also after the program was saved and loaded."""
    core = export(MODEL, (X,), keep="composite").run_decompositions()
    file = io.BytesIO()
    lostwax.save(core, file)
    file.seek(0)
    for program in (core, lostwax.load(file)):
        with pytest.warns(UserWarning, match=r"does not call aten\.linear\.default"):
            program.run_decompositions(without_linear())


def test_tables_that_say_nothing_of_what_the_program_called_are_silent() -> None:
    program = export(MODEL, (X,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.run_decompositions()
        program.run_decompositions(default_decompositions())
        program.run_decompositions(default_decompositions().keep(aten.conv2d))
        program.run_decompositions({aten.conv2d.default: own_linear})
        program.run_decompositions({aten.gelu.default: lambda x, approximate="none": F.relu(x)})
        program.run_decompositions(torch.export.default_decompositions())


def test_a_function_that_passes_leaves_the_operator():
    program = export(MODEL, (X,), keep="composite")
    found = program.run_decompositions({aten.gelu.default: lambda *_, **__: NotImplemented})
    calls = [node.target for node in found.graph.nodes if node.op == "call_function"]
    assert calls == [aten.linear.default, aten.gelu.default]
    assert torch.equal(found.module()(X), program.module()(X))
