"""Operators of a backend's own, by pattern: where programs have them, what is not one, and that the
delegate computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from examples.backend import SimulatedBackend
from lostwax.backends import BackendOperator, CapabilityPartitioner, DelegationSpec
from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import find_delegates
from lostwax.ir.graph.lookup import graph_modules


class Names(SimulatedBackend):
    """Writes the names of the operators that it is given."""

    def preprocess(self, program: Any, compile_specs: Any) -> bytes:
        calls = [n for n in program.graph.nodes if n.op == "call_function"]
        return " ".join(n.target.name() for n in calls).encode()


SILU = BackendOperator("tested::silu", lambda x: x * torch.sigmoid(x), (torch.ones(2),))
SCALED = BackendOperator(
    "tested::scaled", lambda x, y: torch.relu(x * 0.5 + y), (torch.ones(2), torch.ones(2))
)
LAYER = BackendOperator(
    "tested::layer",
    lambda x, w, b: torch.relu(torch.nn.functional.linear(x, w, b)),
    (torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)),
)


def lower(
    function: Any, inputs: Any, *patterns: BackendOperator, left: str = "", shapes: Any = None
) -> tuple[list[str], Any]:
    """The operators of each delegate, when all but some are taken; and the program."""
    names = {each.operator for each in patterns}
    partitioner = CapabilityPartitioner(
        DelegationSpec(Names()),
        lambda n: "" if n.target in names and n.name != left else "only its own",
    )
    partitioner.operators = patterns
    program = lostwax.export(function, inputs, dynamic_shapes=shapes)
    edge = program.to_edge().to_backend(partitioner)
    lowered = edge.exported_program()
    modules = graph_modules(lowered.graph_module)
    found = [d.processed_bytes.decode() for m in modules for _, d in find_delegates(m.graph)]
    if not shapes:
        torch.testing.assert_close(lowered.module()(*inputs), program.module()(*inputs))
    edge.to_executable()
    return found, edge


def test_patterns_are_one_call() -> None:
    x = torch.randn(3, 4)
    found, edge = lower(lambda x: torch.cos(torch.sigmoid(x) * x), (x,), SILU)
    assert found == ["tested::silu"]
    text = str(edge.exported_program())
    assert "lostwax.ops.edge.tested.silu.default(x)" in text
    (delegate,) = edge.delegation_report().delegates
    assert delegate.operators == {"lostwax.ops.edge.tested.silu.default": 1}


def test_patterns_fit_other_sizes() -> None:
    shapes = ({0: lostwax.Dim("n", max=9)},)
    found, edge = lower(lambda x: torch.sigmoid(x) * x, (torch.randn(3),), SILU, shapes=shapes)
    assert found == ["tested::silu"]
    x = torch.randn(7)
    torch.testing.assert_close(edge.exported_program().module()(x), torch.sigmoid(x) * x)


def test_weights_and_constants_of_patterns() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU()).eval()
    found, edge = lower(model, (torch.randn(2, 5),), LAYER)
    assert found == ["tested::layer"]
    assert not edge.exported_program().state_dict
    pair = torch.randn(3), torch.randn(3)
    found, edge = lower(lambda x, y: torch.relu(y + x * 0.5), pair, SCALED)
    assert found == ["tested::scaled"]
    assert not edge.exported_program().constants
    assert lower(lambda x, y: torch.relu(y + x * 0.25), pair, SCALED)[0] == []


def test_what_others_read_is_no_pattern() -> None:
    def f(x: Any) -> Any:
        y = torch.sigmoid(x)
        return y * x, y

    assert lower(f, (torch.randn(3),), SILU)[0] == []
    assert lower(lambda x, y: torch.sigmoid(x) * y, (torch.ones(3),) * 2, SILU)[0] == []


def test_the_longer_pattern_is_taken() -> None:
    both = BackendOperator(
        "tested::silu_relu", lambda x: torch.relu(x * torch.sigmoid(x)), (torch.ones(2),)
    )

    def f(x: Any) -> Any:
        return torch.relu(torch.sigmoid(x) * x) + torch.cos(torch.sigmoid(x + 1) * (x + 1))

    found, _ = lower(f, (torch.randn(3),), SILU, both)
    assert sorted(" ".join(found).split()) == ["tested::silu", "tested::silu_relu"]


def test_a_pattern_that_is_not_taken_is_what_it_was() -> None:
    def f(x: Any) -> Any:
        return torch.cos(torch.sigmoid(x) * x) * torch.sigmoid(torch.cos(torch.sigmoid(x) * x))

    found, edge = lower(f, (torch.randn(3),), SILU, left="mul")
    assert found == ["tested::silu"]
    assert "tested" not in "".join(str(n.target) for n in edge.exported_program().graph.nodes)


def test_patterns_in_bodies_of_control_flow() -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x, y: torch.relu(x * 0.5 + y), lambda x, y: x - y, (x, y)
        )

    assert lower(f, (torch.ones(3), torch.ones(3)), SCALED)[0] == ["tested::scaled"]


@pytest.mark.parametrize(
    ("name", "function", "text"),
    [
        ("silu", torch.relu, "cannot be the name of a backend's operator"),
        ("aten::mine", torch.relu, "cannot be the name of a backend's operator"),
        ("tested::silu", torch.relu, "stands for another pattern already"),
        ("quantized::add", torch.relu, "torch has an operator 'quantized::add' already"),
        ("tested::two", lambda x: (x + 1, x + 2), "returns the result of a single call"),
        ("tested::same", lambda x: x, "returns the result of a single call"),
    ],
)
def test_what_is_no_pattern_is_refused(name: str, function: Any, text: str) -> None:
    with pytest.raises(LoweringError, match=text):
        BackendOperator(name, function, (torch.ones(2),))


def test_a_pattern_may_be_given_again() -> None:
    again = BackendOperator("tested::silu", lambda x: x * torch.sigmoid(x), (torch.ones(2),))
    assert again.operator is SILU.operator
