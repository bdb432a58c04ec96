"""What a program in the Edge dialect must be, beside a valid program: the rules as a table.

Must not change what it checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from lostwax.dialects.call_dtypes import list_dtypes
from lostwax.dialects.edge import PLAIN_OPERATORS
from lostwax.dialects.edge_operators import DIM_ORDER, EdgeOperator
from lostwax.ir.data import Program
from lostwax.ir.graph.delegate import find_delegates
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.rules.graph import Found
from lostwax.ir.rules.verify import RULES, GraphRule, validate
from lostwax.ir.text import dtype_text


def validate_edge(program: Program, preserved: Iterable[OpOverload] = ()) -> None:
    """Raise a `VerificationError` that names every broken rule, or return. Programs of delegates
    are of the dialect, too."""
    validate(program, RULES + edge_rules(preserved))
    for module in graph_modules(program.graph_module):
        for _, delegate in find_delegates(module.graph):
            validate_edge(delegate.program, preserved)


def edge_rules(preserved: Iterable[OpOverload] = ()) -> tuple[GraphRule, ...]:
    """The rules of the dialect; `preserved` operators are legal although they are not core."""
    allowed = frozenset(preserved)

    def check_core(module: GraphModule) -> Found:
        for node, operator in _edge_calls(module):
            if not is_core(operator) and operator.overload not in allowed:
                yield node, f"{operator} is not of core ATen, and not one of `preserve_ops`"

    return (
        GraphRule("edge operators", "operators are Edge operators", _operators),
        GraphRule("core operators", "Edge operators are core ATen, or copies of views", check_core),
        GraphRule("no scalars", "numbers do not stand in the place of tensors", _scalars),
        GraphRule("dim order", "values are laid out contiguously", _dim_orders),
        GraphRule("dtypes", "an operator's dtypes are those of one of its rows", _dtypes),
    )


def _edge_calls(module: GraphModule) -> list[tuple[Node, EdgeOperator]]:
    return [
        (node, node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and isinstance(node.target, EdgeOperator)
    ]


def _operators(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target not in PLAIN_OPERATORS:
            yield node, f"{node.target} is an ATen operator; in Edge it is lostwax.ops.edge.*"


def is_core(operator: EdgeOperator) -> bool:
    """Is it core ATen, the copy of a view, or no operator of ATen's?"""
    overload = operator.overload
    if overload.namespace != "aten":
        return True
    tags = overload.tags
    if torch.Tag.core in tags or torch.Tag.view_copy in tags:
        return True
    name = operator.__name__.split(".")[2]
    return name.endswith("_copy")


def _scalars(module: GraphModule) -> Found:
    for node, operator in _edge_calls(module):
        arguments = operator.overload._schema.arguments
        for value, argument in zip(node.args, arguments, strict=False):
            if str(argument.type) == "Tensor" and isinstance(value, (bool, int, float)):
                yield node, f"the argument {argument.name!r} is the number {value}, not a tensor"


def _dim_orders(module: GraphModule) -> Found:
    for node, operator in _edge_calls(module):
        order: Any = node.kwargs.get("dim_order") or ()
        if operator.namespace == DIM_ORDER and list(order) != list(range(len(order))):
            yield node, f"{operator}: the dim order {list(order)} is not that of rows"


def _dtypes(module: GraphModule) -> Found:
    for node, operator in _edge_calls(module):
        rows = operator.rows
        if rows is None:
            continue
        given = dict(list_dtypes(node, operator))
        if rows.allows(given):
            continue
        for name, dtype in given.items():
            allowed = rows.allowed_types.get(name, set())
            if dtype not in allowed:
                names = ", ".join(sorted(dtype_text(d) for d in allowed))
                yield node, f"{operator}: {name!r} is {dtype_text(dtype)}; it may be {names}"
                break
        else:
            listed = ", ".join(f"{name} {dtype_text(d)}" for name, d in given.items())
            yield node, f"{operator}: no row has these dtypes together: {listed}"
