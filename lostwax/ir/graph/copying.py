"""Copies of graphs, with the same nodes under the same names and sub-graphs of their own; and
copies of state.

Values in `meta` are shared, as nothing changes them. Must not evaluate or rename anything.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from lostwax.fake.tensor import storage_key
from lostwax.ir.graph.graph_module import ReadableModule
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import NO_KWARGS, GraphWriter


def copy_module(module: GraphModule) -> tuple[GraphModule, dict[Node, Node]]:
    """Return a copy that can be edited without changing the original, and the new node of each old
    one. The code of the copy is generated when it is first run."""
    graph, nodes = copy_graph(module.graph)
    children: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target not in children:
            value = find_attribute(module, node.target)
            children[node.target] = (
                copy_module(value)[0] if isinstance(value, GraphModule) else value
            )
    copy = ReadableModule(children, graph, module.__class__.__name__)
    copy.meta = dict(module.meta)
    return copy, nodes


def copy_graph(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """Return a copy of the graph, and the new node of each old one."""
    writer = GraphWriter()
    nodes: dict[Node, Node] = {}
    for node in graph.nodes:
        new = writer.append_ready(
            node.op,
            node.name,
            node.target,
            _map_nodes(node.args, nodes),
            [nodes[n] for n in node.all_input_nodes],
            _map_nodes(node.kwargs, nodes) if node.kwargs else NO_KWARGS,
        )
        new.meta.update(node.meta)
        if node.type is not None:
            new.type = node.type
        nodes[node] = new
    return writer.finish(), nodes


def _map_nodes(value: Any, nodes: dict[Node, Node]) -> Any:
    cls = value.__class__
    if cls is Node:
        return nodes[value]
    if cls is tuple:
        return tuple([_map_nodes(v, nodes) for v in value])
    if cls is immutable_list:
        return immutable_list([_map_nodes(v, nodes) for v in value])
    if cls is immutable_dict:
        return immutable_dict({k: _map_nodes(v, nodes) for k, v in value.items()})
    if cls is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*(_map_nodes(v, nodes) for v in parts))
    return value


def copy_shared(values: Iterable[Any], memo: dict[int, Any]) -> None:
    """Copy the parameters that share memory with other state, so that their copies share it too,
    and put them into `memo`: `deepcopy` alone would give each copy a memory of its own."""
    tensors = {id(v): v for v in values if isinstance(v, Tensor)}
    keys = [storage_key(t) for t in tensors.values()]
    if len(set(keys)) == len(keys):
        return
    for (name, tensor), key in zip(tensors.items(), keys, strict=True):
        if isinstance(tensor, nn.Parameter) and keys.count(key) > 1 and name not in memo:
            own = copies.deepcopy(tensor.detach(), memo)
            memo[name] = type(tensor)(own, requires_grad=tensor.requires_grad)
