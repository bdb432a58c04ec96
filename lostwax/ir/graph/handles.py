"""Debug handles: numbers by which what became of a call leads back to it.

A call that is written anew keeps its number, those that are written beside it have the same one,
and what stands for several has all of theirs. Must not know what calls become.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem

from torch.fx import GraphModule, Node

from lostwax.ir.graph.delegate import held_delegates
from lostwax.ir.graph.lookup import graph_modules

HANDLE = "debug_handle"
"""The key of `meta`: a number, or a tuple of several."""
REASONS = "not_delegated"
"""The key of `meta` for the reasons why no backend took a call."""


def number_calls(module: GraphModule) -> None:
    """Give each call of a module, its sub-graphs and delegates a handle, unless it has one. (What
    takes one of several results is no call of its own.)"""
    inside = (delegate.program.graph_module for delegate in held_delegates(module))
    nodes = [
        node
        for each in (*graph_modules(module), *inside)
        for node in each.graph.nodes
        if node.op == "call_function" and node.target is not getitem
    ]
    last = max((handle for node in nodes for handle in handles_of(node)), default=0)
    for node in nodes:
        if HANDLE not in node.meta:
            last += 1
            node.meta[HANDLE] = last


def handles_of(node: Node | None) -> tuple[int, ...]:
    """The handles of a node; none if it has none. What takes one of several results has those of
    the call."""
    while node is not None and node.target is getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    found = node.meta.get(HANDLE, ()) if node is not None else ()
    return found if isinstance(found, tuple) else (found,)


def join_handles(nodes: Iterable[Node]) -> tuple[int, ...]:
    """The handles of several nodes, each once."""
    return tuple(dict.fromkeys(handle for node in nodes for handle in handles_of(node)))
