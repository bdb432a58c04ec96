"""The rules of calls that run sub-graphs: what these are given, and what they return.

A sub-graph is a graph like any other, and all rules of graphs hold for it (`verify.py`); these say
how it fits the call. Sizes are compared where both are numbers. Must not change the graph, nor ask
questions that add guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.fake import FakeTensor
from lostwax.ir.graph.control import (
    Body,
    ControlCall,
    describe_call,
    differ,
    find_described,
    recorded_value,
    returned_values,
    row_of,
)
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.rules.graph import value_text

Found = Iterator[tuple[Node | str | None, str]]
_ONE_VALUE = ("invoke_subgraph", "wrap_with_set_grad_enabled", "wrap_with_autocast")
"""The operators whose sub-graph may return one value that is not in a tuple."""


def check_nesting(module: GraphModule) -> Found:
    """Check that no sub-graph contains itself."""
    for path, child in subgraphs(module):
        if _reaches(child, module, set()):
            yield path, "the sub-graph contains the graph that reads it"


def _reaches(module: GraphModule, wanted: GraphModule, seen: set[GraphModule]) -> bool:
    if module is wanted:
        return True
    seen.add(module)
    return any(_reaches(c, wanted, seen) for _, c in subgraphs(module) if c not in seen)


def check_uses(module: GraphModule) -> Found:
    """Check that sub-graphs are arguments of higher-order calls, and nothing else."""
    for node in module.graph.find_nodes(op="get_attr"):
        for user in node.users:
            if not isinstance(user.target, HigherOrderOperator):
                yield user, f"it reads the sub-graph {node.name!r}, and is no higher-order call"


def check_form(module: GraphModule) -> Found:
    """Check that a call has the arguments of its operator, sub-graphs in the places of those."""
    for node in find_described(module.graph):
        call = _describe(node)
        if call is None:
            yield node, f"{node.target} does not take such arguments"
            continue
        for body in call.bodies:
            if body.find_module() is None:
                yield node, f"its {body.role} is {body.source!r}, which reads no sub-graph"
            for i in body.rows:
                value = recorded_value(body.operands[i])
                if not isinstance(value, FakeTensor) or not value.fake_type.size:
                    text = value_text(value)
                    yield node, f"it goes over the rows of {text}, which has no dimension"
        if not call.bodies[0].rows and _name(node) in ("map_impl", "scan", "associative_scan"):
            yield node, "there is nothing that it goes over"


def check_predicates(module: GraphModule) -> Found:
    """Check that a branch or a loop depends on one truth value."""
    for call in _described_calls(module):
        name = _name(call.node)
        if name == "cond":
            value = recorded_value(call.node.args[0])
            if not _is_one(value):
                yield call.node, f"its predicate is {value_text(value)}, not one truth value"
        elif name == "while_loop":
            condition = call.bodies[0].find_module()
            assert condition is not None
            value = returned_values(condition)
            is_true = isinstance(value, (bool, torch.SymBool)) or (
                isinstance(value, FakeTensor) and value.dtype is torch.bool
            )
            if not is_true or not _is_one(value):
                yield call.node, f"its condition returns {value_text(value)}, not one truth value"


def _is_one(value: Any) -> bool:
    if isinstance(value, FakeTensor):
        return all(s == 1 for s in value.fake_type.size if s.__class__ is int)
    return isinstance(value, (bool, int, float, *SYMBOLIC))


def check_operands(module: GraphModule) -> Found:
    """Check that the inputs of a sub-graph are what the call gives it."""
    for call in _described_calls(module):
        for body in call.bodies:
            inputs = body.find_module().graph.find_nodes(op="placeholder")  # type: ignore[union-attr]
            if len(inputs) != len(body.operands):
                count = f"has {_count(len(inputs), 'input')}, and is given {len(body.operands)}"
                yield call.node, f"its {body.role} {count}"
                continue
            for node, given in zip(inputs, body.given_values(), strict=True):
                if differ(node.meta.get("val"), given):
                    own = value_text(node.meta.get("val"))
                    text = f"the input {node.name!r} of its {body.role} is {own}"
                    yield call.node, f"{text}, and is given {value_text(given)}"


def check_results(module: GraphModule) -> Found:
    """Check that sub-graphs return what the call needs, and the call what is recorded for it."""
    for call in _described_calls(module):
        broken = False
        for text in _form_of_results(call):
            broken = True
            yield call.node, text
        for text in () if broken else _compare_results(call):
            yield call.node, text


def _form_of_results(call: ControlCall) -> Iterator[str]:
    name = _name(call.node)
    value = call.node.meta["val"]
    if name not in _ONE_VALUE and not isinstance(value, (tuple, list)):
        yield f"meta['val'] is {value_text(value)}, and {name} returns a tuple"
    for body in call.bodies:
        is_tuple = isinstance(_results(body), tuple)
        if body.role == "condition" or (name in _ONE_VALUE and not is_tuple):
            continue
        if not is_tuple:
            yield f"its {body.role} returns {value_text(_results(body))}, not a tuple"


def _compare_results(call: ControlCall) -> Iterator[str]:
    name = _name(call.node)
    value = call.node.meta["val"]
    recorded = list(value) if isinstance(value, (tuple, list)) else [value]
    if name == "cond":
        on_true, on_false = map(_list_results, call.bodies)
        yield from _compare("its true branch", on_true, "its false branch", on_false, False)
        for body, results in zip(call.bodies, (on_true, on_false), strict=True):
            yield from _compare("meta['val']", recorded, f"its {body.role}", results)
        return
    body = call.bodies[-1]
    results = _list_results(body)
    if name == "while_loop":
        carried = [recorded_value(v) for v in call.node.args[2]]  # type: ignore[union-attr]
        yield from _compare("its body", results, "what it carries", carried)
    elif name == "scan":
        count = body.rows[0]
        carried = body.given_values()[:count]
        yield from _compare("its body", results[:count], "what it carries", carried)
        recorded = [*recorded[:count], *map(row_of, recorded[count:])]
    elif name == "associative_scan":
        rows = body.given_values()[: len(body.rows) // 2]
        yield from _compare("its body", results, "a row of what it goes over", rows)
        recorded = list(map(row_of, recorded))
    elif name == "map_impl":
        recorded = list(map(row_of, recorded))
    yield from _compare("meta['val']", recorded, "its body", results)


def _compare(
    what: str, values: Sequence[Any], other: str, others: Sequence[Any], sizes: bool = True
) -> Iterator[str]:
    if len(values) != len(others):
        yield f"{what} has {_count(len(values), 'value')}, {other} {len(others)}"
        return
    for i, (a, b) in enumerate(zip(values, others, strict=True)):
        if differ(a, b, sizes):
            yield f"value {i} of {what} is {value_text(a)}, of {other} {value_text(b)}"


# ------------------------------------------------------------------------------------------- values


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _name(node: Node) -> str:
    """The name of the operator that a node calls."""
    found: str = node.target.name()  # type: ignore[union-attr]
    return found


def _results(body: Body) -> Any:
    return returned_values(body.find_module())  # type: ignore[arg-type]


def _list_results(body: Body) -> list[Any]:
    results = _results(body)
    return list(results) if isinstance(results, tuple) else [results]


def _described_calls(module: GraphModule) -> Iterator[ControlCall]:
    for node in find_described(module.graph):
        call = _describe(node)
        if call is not None:
            yield call


def _describe(node: Node) -> ControlCall | None:
    try:
        return None if node.kwargs else describe_call(node)
    except (ValueError, IndexError):
        return None


CONTROL_RULES = (
    ("nesting", "no sub-graph contains itself", check_nesting),
    ("sub-graph uses", "sub-graphs are arguments of higher-order calls alone", check_uses),
    ("sub-graph calls", "a call has the arguments of its operator, with sub-graphs", check_form),
    ("predicates", "a branch or a loop depends on one truth value", check_predicates),
    ("operands", "the inputs of a sub-graph are what the call gives it", check_operands),
    ("sub-graph results", "sub-graphs return what the call needs and returns", check_results),
)
