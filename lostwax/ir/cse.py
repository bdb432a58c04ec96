"""Common subexpressions: what is computed twice is computed once.

A plain function on a graph, for passes and for decomposition. Names and metadata of what stays are
not touched. Must not merge what a caller could tell apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, Node

from lostwax.fake import FakeTensor
from lostwax.fake.symnode import unwrap
from lostwax.ir.effects import has_effect, shown
from lostwax.ops.registry import operator

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def share(graph: Graph) -> int:
    """Merge calls of one function with the same arguments into the first; how many went.

    Not merged are: what draws random numbers or has other effects; values whose recorded types
    differ (two `nonzero`s have sizes of their own); what the graph returns, so that outputs keep
    their names; and two values of which the caller sees both, since they would share memory. A
    graph in which something is written is left as it is.
    """
    if any(_writes(node) for node in graph.nodes):
        return 0
    seen = shown(graph)
    returned = set(graph.output_node().all_input_nodes)
    first: dict[Hashable, Node] = {}
    merged = 0
    for node in list(graph.nodes):
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is node or node in returned or (node in seen and kept in seen):
            continue
        if _type(kept.meta.get("val")) == _type(node.meta.get("val")):
            _merge(node, kept, seen)
            merged += 1
    return merged


def _merge(node: Node, kept: Node, seen: set[Node]) -> None:
    node.replace_all_uses_with(kept)
    node.graph.erase_node(node)
    if node in seen:  # what was seen of the one is seen of the other
        seen.discard(node)
        seen.add(kept)


def _writes(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and bool(operator(target).mutates)


def _key(node: Node) -> Hashable | None:
    """Equal for calls that compute the same; None of what is not to be merged."""
    target = node.target
    if node.op != "call_function" or has_effect(target):
        return None
    if isinstance(target, HigherOrderOperator):
        return None
    try:
        key = (id(target), _frozen(node.args), _frozen(node.kwargs))
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Hashable:
    """An argument as a key. `1`, `1.0` and `True` are equal in Python, but not to an operator; and
    neither are 0.0 and -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (tuple, list)):
        return tuple([_frozen(v) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _frozen(v)) for k, v in sorted(value.items())])
    if isinstance(value, slice):
        return (slice, _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if isinstance(value, (float, complex)):
        return (value.__class__, repr(value))
    return (value.__class__, value)


def _type(value: Any) -> Any:
    """What is recorded of a value, comparable."""
    if isinstance(value, FakeTensor):
        return value.fake_type
    if isinstance(value, (tuple, list)):
        return [_type(v) for v in value]
    if isinstance(value, _SYMBOLIC):
        return unwrap(value)
    return value
