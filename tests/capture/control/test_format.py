"""The graphs of control flow are torch's: beside `torch.export` on the same programs, and as the IR
specification prints them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._higher_order_ops as operators
from functorch.experimental.control_flow import cond, map
from torch import fx

from lostwax.capture import export
from tests.capture.control.compare import Small

X = torch.arange(12.0).view(4, 3) / 7 + 0.1


def test_the_specification_s_condition() -> None:
    """With the operands as the tuple that torch has made of its list since."""

    def true_fn(x: Any) -> Any:
        return x.sin()

    def false_fn(x: Any) -> Any:
        return x.cos()

    def f(x: Any, y: Any) -> Any:
        return cond(y, true_fn, false_fn, [x])

    program = export(f, (X, torch.tensor(True)))
    assert str(program.graph).splitlines()[1:] == [
        "    %x : [num_users=1] = placeholder[target=x]",
        "    %y : [num_users=1] = placeholder[target=y]",
        "    %true_graph_0 : [num_users=1] = get_attr[target=true_graph_0]",
        "    %false_graph_0 : [num_users=1] = get_attr[target=false_graph_0]",
        "    %cond : [num_users=1] = call_function[target=torch.ops.higher_order.cond]"
        "(args = (%y, %true_graph_0, %false_graph_0, (%x,)), kwargs = {})",
        "    %getitem : [num_users=1] = call_function[target=operator.getitem]"
        "(args = (%cond, 0), kwargs = {})",
        "    return (getitem,)",
    ]
    inner: Any = program.graph_module.true_graph_0
    assert str(inner.graph).splitlines()[1:] == [
        "    %x : [num_users=1] = placeholder[target=x]",
        "    %sin : [num_users=1] = call_function[target=torch.ops.aten.sin.default]"
        "(args = (%x,), kwargs = {})",
        "    return (sin,)",
    ]


def test_map_as_torch_prints_it() -> None:
    program = export(lambda xs, y: map(lambda x, y: x + y, xs, y), (X, X[0]))
    assert str(program.graph).splitlines()[3:] == [
        "    %body_graph_0 : [num_users=1] = get_attr[target=body_graph_0]",
        "    %map_impl : [num_users=1] = call_function[target=torch.ops.higher_order.map_impl]"
        "(args = (%body_graph_0, [%xs], [%y]), kwargs = {})",
        "    %getitem : [num_users=1] = call_function[target=operator.getitem]"
        "(args = (%map_impl, 0), kwargs = {})",
        "    return (getitem,)",
    ]


def by_data(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))


def nested(self: Any, x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x.max() > 3, lambda x: x.sin(), lambda x: x * 2, (x,))

    return torch.cond(x.sum() > 2, inner, lambda x: x + 1, (x,))


def looping(self: Any, x: Any) -> Any:
    return operators.while_loop(
        lambda i, x: i.sum() < 10, lambda i, x: (i + 1, x.sin()), (torch.zeros(()), x)
    )


def scanning(self: Any, x: Any) -> Any:
    return operators.scan(lambda c, row: (c + row, c * row), x[0] * 1, x)


def mapping(self: Any, x: Any) -> Any:
    return operators.map(lambda row, y: row.sin() + y, x, x.sum(0))


@pytest.mark.parametrize("program", [by_data, nested, looping, scanning, mapping])
def test_as_torch_export(program: Any) -> None:
    ours = export(Small(program), (X,)).graph_module
    theirs: Any = torch.export.export(Small(program), (X,)).graph_module
    assert _describe(ours) == _describe(theirs)


def _describe(module: fx.GraphModule) -> list[Any]:
    """The calls of a graph with the forms of their arguments; sub-graphs in their places."""
    found: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            found.append((node.target, _describe(getattr(module, node.target))))
        elif node.op == "call_function":
            found.append((str(node.target), _form(node.args)))
        elif node.op == "output":
            found.append(_form(node.args))
    return found


def _form(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return "node" if value.op != "get_attr" else value.target
    if isinstance(value, tuple):
        return tuple(_form(v) for v in value)
    return [_form(v) for v in value] if isinstance(value, list) else value
