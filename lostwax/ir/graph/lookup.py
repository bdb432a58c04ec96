"""Finds the sub-graphs that a graph refers to, by the attributes that hold them; the arguments of a
call by their names, and those that it writes to.

Must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from lostwax.ops.dialect_operator import overload_of
from lostwax.ops.registry import operator

WHOLE = "whole"
"""The key in `meta` of a node for the composite operator that it stands for: one that the user
keeps whole, and that writes to its statistics, which a program cannot show."""


def find_attribute(root: Any, path: str) -> Any:
    """Find what lies at a dotted path; None if nothing does."""
    for part in path.split("."):
        root = getattr(root, part, None)
    return root


def subgraphs(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The sub-graphs that the nodes of a graph read, each once, by path."""
    paths = dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    for path in paths:
        child = find_attribute(module, path)
        if isinstance(child, GraphModule):
            yield path, child


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """The module and its sub-graphs, however deep, each once."""
    return (child for child in module.modules() if isinstance(child, GraphModule))


def all_nodes(module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of its sub-graphs, however deep."""
    return (node for each in graph_modules(module) for node in each.graph.nodes)


def silent_writes(node: Node) -> tuple[str, ...]:
    """The arguments that a call writes to although its schema does not say so."""
    target: Any = overload_of(node.target)
    if not isinstance(target, OpOverload):
        return ()
    flag = operator(target).silent_flag
    if flag is None or argument(node, target, flag) is not True:
        return ()
    is_given = isinstance(argument(node, target, "running_mean"), Node)
    return ("running_mean", "running_var") if is_given else ()


def argument(node: Node, overload: OpOverload, name: str) -> Any:
    """An argument of a call by its name in the schema."""
    names = operator(overload).argument_names
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return given.get(name)
