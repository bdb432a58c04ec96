"""The graph of a program's module as torch.export writes it where batch norms are kept whole: each
updates its statistics itself, and so is the count of batches updated.

The program has no such nodes: it shows all that it writes, and the schema of `batch_norm` does not
say that it writes. Quantization aware training looks for them. Must not change what a graph
computes: only what nothing else reads is written where it is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from lostwax.ir.graph.lookup import WHOLE, argument
from lostwax.ir.run.write_back import before_write
from lostwax.ops.registry import aten, operator, writing_twin

_STATISTICS = ("running_mean", "running_var")
"""What such operators write to. The new values are the last results of the node."""


class _Update(NamedTuple):
    """One node computes a value of state from an earlier one."""

    node: Node
    value: Node
    before: Any


def write_in_place(graph: Graph) -> None:
    """Let what stands for a composite operator be that operator, where it can write to its
    statistics as that does; and let other updates of state be written where they are computed."""
    if not any(WHOLE in node.meta for node in graph.nodes):
        return
    writes = [node for node in graph.nodes if _is_write(node)]
    for write in writes:
        _drop_copies(graph, write)
    found = ((node, _follow_updates(node)) for node in writes)
    ways = {write: updates for write, updates in found if updates}
    while halves := {n for n, count in _count_updates(ways) if WHOLE in n.meta and count < 2}:
        ways = {w: way for w, way in ways.items() if halves.isdisjoint(u.node for u in way)}
    changed = [node for node, _ in _count_updates(ways)]
    for write, updates in ways.items():
        _use_state_itself(graph, write, updates)
    for node in changed:
        _replace_node(graph, node)


def _count_updates(ways: Mapping[Node, list[_Update]]) -> Iterable[tuple[Node, int]]:
    """In how many ways each node is: that of a batch norm must be in both of its statistics."""
    return Counter(update.node for way in ways.values() for update in way).items()


def _is_write(node: Node) -> bool:
    """Is this one of the writes at the end of the graph?"""
    target = node.target
    return isinstance(target, OpOverload) and operator(target).kind == "inplace"


def _drop_copies(graph: Graph, write: Node) -> None:
    """Let what is computed be written itself, not a copy of it. A module that was captured
    again has one for each of its writes."""
    value: Any = write.args[1]
    copies = []
    while isinstance(value, Node) and value.target is aten.clone.default and len(value.users) == 1:
        copies.append(value)
        value = value.args[0]
    if copies and _is_made_anew(value) and _read_update(value) is not None:
        write.replace_input_with(copies[0], value)
        for copy in copies:
            graph.erase_node(copy)


def _is_made_anew(value: Any) -> bool:
    """Has it memory of its own? What no view gives has, and so have the results of a batch norm."""
    target = value.target
    return target is getitem or (
        isinstance(target, OpOverload) and operator(target).kind == "functional"
    )


def _follow_updates(write: Node) -> list[_Update]:
    """How the written value comes about, the last update first; none if something else reads what
    is written, before or after."""
    state, value = write.args[0], write.args[1]
    reader, updates = write, list[_Update]()
    while isinstance(value, Node) and list(value.users) == [reader]:
        if value.target is before_write:
            is_only = isinstance(state, Node) and {*state.users} == {value, write}
            return updates if is_only and value.args[0] is state else []
        update = _read_update(value)
        if update is None:
            return []
        updates.append(update)
        reader, value = update.node, update.before
    return []


def _read_update(value: Node) -> _Update | None:
    """The update that this value is the result of; None if it is no such result."""
    if value.target is not getitem:
        return None if _find_twin(value) is None else _Update(value, value, value.args[0])
    node: Any = value.args[0]
    names = _STATISTICS if _is_whole(node) else ()
    places = range(-len(names), 0)
    count = len(node.meta["val"]) if names else 0
    given = {place % count: name for place, name in zip(places, names, strict=True)}
    if value.args[1] not in given or not {u.args[1] for u in node.users} <= {0, *given}:
        return None
    return _Update(node, value, argument(node, node.target, given[value.args[1]]))  # type: ignore[index]


def _is_whole(node: Node) -> bool:
    """Does one node stand for the whole operator, with its arguments?"""
    whole = node.meta.get(WHOLE)
    if whole is None or not isinstance(node.target, OpOverload):
        return False
    return {*operator(node.target).argument_names} < {*operator(whole).argument_names}


def _find_twin(node: Node) -> OpOverload | None:
    """The operator that writes to its first argument what this node computes."""
    target, before = node.target, node.args[0] if node.args else None
    if not isinstance(target, OpOverload) or not isinstance(before, Node):
        return None
    return writing_twin(target) if _is_same_type(node, before) else None


def _is_same_type(node: Node, before: Node) -> bool:
    state = before.args[0] if before.target is before_write else before
    ours, given = node.meta.get("val"), getattr(state, "meta", {}).get("val")
    if not (isinstance(ours, torch.Tensor) and isinstance(given, torch.Tensor)):
        return False
    return ours.shape == given.shape and ours.dtype == given.dtype


def _use_state_itself(graph: Graph, write: Node, updates: list[_Update]) -> None:
    """Let each update read the state, and drop the write at the end."""
    state: Any = write.args[0]
    first = updates[-1].before
    graph.erase_node(write)
    for value in (*(update.value for update in updates), first):
        value.replace_all_uses_with(state)
    graph.erase_node(first)


def _replace_node(graph: Graph, node: Node) -> None:
    """Let a node that computes new values of state write them."""
    whole = node.meta.get(WHOLE)
    target: Any = whole or _find_twin(node)
    with graph.inserting_before(node):
        if whole is None:
            made = graph.call_function(target, node.args, node.kwargs)
        else:
            names = {*operator(node.target).argument_names}  # type: ignore[arg-type]
            # the one argument that is no part of the computation: `cudnn_enabled`
            args = [
                argument(node, node.target, name)  # type: ignore[arg-type]
                if name in names
                else torch.backends.cudnn.enabled
                for name in operator(whole).argument_names
            ]
            made = graph.call_function(whole, tuple(args))
    made.meta.update({key: value for key, value in node.meta.items() if key != WHOLE})
    for item in [*node.users]:
        if item.args[1] == 0:
            made.meta["val"] = item.meta["val"]
            item.replace_all_uses_with(made)
        graph.erase_node(item)
    graph.erase_node(node)
