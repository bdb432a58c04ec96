"""Common subexpressions: what is computed twice is computed once.

A plain function on a graph, for passes and for decomposition. Names and metadata of what stays are
not touched. Must not merge what a caller could tell apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from lostwax.ir.graph.effects import has_effect, visible_nodes
from lostwax.ir.graph.retype import same_type
from lostwax.ops.registry import operator


def share(graph: Graph) -> int:
    """Merge calls of one function with the same arguments into the first; return how many went.

    These are not merged: calls that draw random numbers or have other effects; values whose
    recorded types differ (two `nonzero`s have sizes of their own); what the graph returns, so that
    outputs keep their names; and two values that the caller sees both, since they would share
    memory. A graph that writes to its values is left as it is.
    """
    merged = 0
    for node, kept in find_duplicates(graph):
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
        merged += 1
    return merged


def find_duplicates(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each node that can be merged, with the node that stays. If the caller merges a pair
    before it asks for the next, the merge can reveal further duplicates."""
    if any(_writes(node) for node in graph.nodes):
        return
    seen = visible_nodes(graph)
    returned = set(graph.output_node().all_input_nodes)
    first: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is node or node in returned or (node in seen and kept in seen):
            continue
        if same_type(kept.meta.get("val"), node.meta.get("val")):
            if node in seen:  # after the merge, the caller sees the node that stays
                seen.add(kept)
            yield node, kept


def _writes(node: Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and bool(operator(target).mutates)


def _key(node: Node) -> Hashable | None:
    """Return a key that is equal for calls that compute the same; None if the node must not be
    merged."""
    target = node.target
    if node.op != "call_function" or has_effect(target):
        return None
    if isinstance(target, HigherOrderOperator):
        return None
    try:
        key = call_key(target, node.args, node.kwargs)
        hash(key)
    except TypeError:
        return None
    return key


def call_key(target: Any, args: Any, kwargs: Any) -> Hashable:
    """Return a key that is equal for calls of one function with the same arguments."""
    operands = tuple([a if a.__class__ is Node else _freeze(a) for a in args])
    return (id(target), operands, _freeze(kwargs) if kwargs else ())


def _freeze(value: Any) -> Hashable:
    """Return an argument as a key. `1`, `1.0` and `True`, or 0.0 and -0.0, are equal in Python but
    mean different things to an operator: their keys differ."""
    cls = value.__class__
    if cls is Node:
        return value  # type: ignore[no-any-return]
    if cls is int:
        return (int, value)
    if isinstance(value, (tuple, list)):
        return tuple([_freeze(v) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _freeze(v)) for k, v in sorted(value.items())])
    if isinstance(value, slice):
        return (slice, _freeze(value.start), _freeze(value.stop), _freeze(value.step))
    if isinstance(value, (float, complex)):
        return (value.__class__, repr(value))
    return (value.__class__, value)
