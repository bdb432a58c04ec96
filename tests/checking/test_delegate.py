"""`lostwax.check` on lowered programs: agreement, and the first operator that differs, also inside
of delegates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax import Dim
from lostwax.backends.xnnpack.payload import PayloadWriter
from tests.backends.xnnpack import lower


def compute(x: Any) -> Any:
    y = torch.exp(torch.cos(x)) + 1
    return torch.erf(torch.relu(torch.sigmoid(y) * 2))


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(scope="module")
def good() -> lostwax.EdgeProgramManager:
    return lower(compute, (X,))


def lower_wrongly(monkeypatch: Any, kind: str, other: str, shapes: Any = None) -> Any:
    """The program with kernels of another kind in its delegates."""
    add = PayloadWriter.add_node

    def add_other(self: Any, name: str, *args: Any, **fields: Any) -> None:
        add(self, other if name == kind else name, *args, **fields)

    monkeypatch.setattr(PayloadWriter, "add_node", add_other)
    return lower(compute, (X,), shapes)


def test_lowered_programs_agree(good: lostwax.EdgeProgramManager) -> None:
    assert lostwax.check(good.to_executable(), compute).agreed == ("the example",)
    assert lostwax.check(good, compute).agreed == ("the example",)
    assert not lostwax.check(good, torch.relu)


@pytest.mark.parametrize(
    ("kind", "other", "named"),
    [("XNNSigmoid", "XNNTanh", "sigmoid"), ("XNNExp", "XNNAbs", "exp")],
)
def test_the_operator_inside_of_a_delegate_is_named(
    kind: str, other: str, named: str, monkeypatch: Any
) -> None:
    wrong = lower_wrongly(monkeypatch, kind, other)
    report = lostwax.check(wrong.to_executable(), compute).report
    assert "a result of the delegate lowered_module_0 of XnnpackBackend; in it: " in report
    assert f"in it: {named} = lostwax.ops.edge.aten.{named}.default" in report
    assert "test_delegate.py" in report.partition("in it: ")[2]


def test_what_only_the_whole_delegate_does_wrong_is_told(monkeypatch: Any) -> None:
    add = PayloadWriter.add_node

    def add_limited(self: Any, name: str, clamp: Any = None, /, **fields: Any) -> None:
        add(self, name, None if clamp is None else (clamp[0], 0.5), **fields)

    monkeypatch.setattr(PayloadWriter, "add_node", add_limited)

    def limited(x: Any) -> Any:
        return torch.relu(x + 1)

    report = lostwax.check(lower(limited, (X,)).to_executable(), limited).report
    assert "in it: " in report


def test_delegates_with_sizes_that_vary_are_named(monkeypatch: Any) -> None:
    shapes = ({0: Dim("rows", min=1, max=5)},)
    wrong = lower_wrongly(monkeypatch, "XNNSigmoid", "XNNTanh", shapes)
    report = lostwax.check(wrong.to_executable(), compute, draws=1).report
    assert "in it: sigmoid = lostwax.ops.edge.aten.sigmoid.default" in report
