"""What a call does beside returning a new value: it may draw random numbers, check something,
write, talk to other processes, or return a value that shares memory with an argument.

Everything that removes, merges or moves nodes asks here. Must not change a graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

from lostwax.cache import cached_by_identity
from lostwax.ir.graph.gradient import with_gradient
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ops.dialect_operator import overload_of
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait


@cached_by_identity(20_000)
def has_effect(target: Any) -> bool:
    """Does the call do something that matters even if nobody reads its result? Drawing random
    numbers moves the generator; other processes wait for this one in a collective; a call without a
    result is there for what it does."""
    target = overload_of(target)
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or not target._schema.returns:
        return True
    record = operator(target)
    return bool(record.mutates) or not record.traits.isdisjoint(_TALKING)


_TALKING = (Trait.COMMUNICATES, Trait.WAITS)


def must_stay(node: Node) -> bool:
    """Does removing this node change the program, even if nothing reads the node?"""
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function":
        return False
    if isinstance(node.target, HigherOrderOperator):
        return any(_has_effects(graph) for graph in _graphs_of(node))
    return has_effect(node.target)


def _graphs_of(node: Node) -> Iterable[Graph]:
    owner = node.graph.owning_module
    for used in node.all_input_nodes:
        if used.op == "get_attr":
            child = find_attribute(owner, str(used.target))
            if isinstance(child, GraphModule):
                yield child.graph


def _has_effects(graph: Graph) -> bool:
    return any(must_stay(n) for n in graph.nodes if n.op not in ("placeholder", "output"))


def view_base(node: Node) -> Node | None:
    """The argument that this node's value is a view of, by its operator's schema."""
    base = node.args[0] if node.args else None
    if not isinstance(base, Node):
        return None
    if node.target is getitem:
        return base if view_base(base) is not None else None
    return base if _is_view(node.target) else None


def memory_base(node: Node) -> Node | None:
    """As `view_base`, and also for outputs of `with_gradient`: each lies in the memory of the value
    that was given to it; and for operators that may return their argument."""
    if _returns_itself(node):
        return node.args[0] if isinstance(node.args[0], Node) else None
    made = node.args[0] if node.target is getitem else None
    if isinstance(made, Node) and made.target is with_gradient:
        outputs: Any = made.args[1]
        found: Node = outputs[node.args[1]]
        return found
    return view_base(node)


def _returns_itself(node: Node) -> bool:
    itself = operator(node.target).itself if isinstance(node.target, OpOverload) else None
    if itself is None or node.kwargs:
        return False
    return bool(itself(*[a.meta.get("val") if isinstance(a, Node) else a for a in node.args]))


@cached_by_identity(20_000)
def _is_view(target: Any) -> bool:
    target = overload_of(target)
    if not isinstance(target, OpOverload):
        return False
    return operator(target).kind == "view" or has_trait(target, Trait.SHARES_STORAGE)


def memory_chain(node: Node) -> list[Node]:
    """The node, the node in whose memory it lies, and so on to the one that allocated it."""
    chain = [node]
    while (base := memory_base(chain[-1])) is not None:
        chain.append(base)
    return chain


def visible_nodes(graph: Graph) -> set[Node]:
    """The nodes whose memory the caller sees: those the graph returns, and those they view."""
    seen: set[Node] = set()
    for node in graph.output_node().all_input_nodes:
        current: Node | None = node
        while current is not None and current not in seen:
            seen.add(current)
            source = memory_base(current)
            if source is None and current.target is getitem:
                # one of several results: the caller sees the call that gives them
                source = current.args[0]  # type: ignore[assignment]
            current = source
    return seen
