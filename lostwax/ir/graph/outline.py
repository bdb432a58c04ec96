"""Calls of graph modules, which FX's tools make of parts of a graph (a partitioner fuses what a
backend takes), become calls of sub-graphs: programs have no others.

Must not change what a graph computes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lostwax.errors import PassError
from lostwax.ir.graph.lookup import find_attribute, graph_modules


def outline_modules(module: GraphModule) -> None:
    """Make `invoke_subgraph` of each call of a graph module. The sub-graph returns a tuple, as
    torch's operator wants it."""
    calls = [
        (each, node, _find_called(each, node))
        for each in graph_modules(module)
        for node in each.graph.find_nodes(op="call_module")
    ]
    outputs = {called: called.graph.output_node() for _, _, called in calls}
    bare = {called for called, output in outputs.items() if isinstance(output.args[0], Node)}
    for each, node, called in calls:
        _outline(each, node, called, called in bare)
    for called, output in outputs.items():
        _put_inputs_first(called.graph)
        if called in bare:
            output.args = ((output.args[0],),)


def _find_called(module: GraphModule, node: Node) -> GraphModule:
    called = find_attribute(module, str(node.target))
    if not isinstance(called, GraphModule):
        raise PassError(
            f"node {node.name!r} calls a module, and {node.target!r} is a {type(called).__name__}: "
            "a program calls operators, and sub-graphs\n"
            "  instead: call operators, or a GraphModule of them"
        )
    returned: Any = called.graph.output_node().args[0]
    _refuse_lists(node, "takes", node.all_input_nodes)
    _refuse_lists(node, "returns", returned if isinstance(returned, (tuple, list)) else [returned])
    return called


def _refuse_lists(node: Node, what: str, values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, Node) and isinstance(value.meta.get("val"), (tuple, list)):
            raise PassError(
                f"the part {str(node.target)!r} {what} the list {value.name!r}: sub-graphs take "
                "and return tensors and numbers\n"
                "  instead: let the operator and what reads of its list (operator.getitem) be "
                "of one part"
            )


def _outline(module: GraphModule, node: Node, called: GraphModule, is_bare: bool) -> None:
    """Replace one call. Is what the sub-graph returns now a value that is not in a tuple?"""
    name, graph = str(node.target).replace(".", "_"), module.graph
    if name != node.target:
        module.add_module(name, called)
    target: Any = torch.ops.higher_order.invoke_subgraph
    with graph.inserting_before(node):
        made = graph.call_function(target, (graph.get_attr(name), name, *node.args), node.kwargs)
        made.meta.update(node.meta)
        result = made
        if is_bare:
            if "val" in node.meta:
                made.meta["val"] = (node.meta["val"],)
            result = graph.call_function(operator.getitem, (made, 0))
            result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _put_inputs_first(graph: Graph) -> None:
    """Move placeholders to the front: a partitioner writes each where it is first read."""
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in graph.find_nodes(op="placeholder"):
        first.prepend(node)
