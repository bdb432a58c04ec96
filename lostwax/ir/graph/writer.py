"""Nodes into a `torch.fx.Graph`, at speed and under names of our choice.

`Graph.create_node` looks through all arguments and chooses a name: five times the cost. Must not
know what the nodes mean.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable
from typing import Any

from torch import fx
from torch._ops import OpOverload

from lostwax.cache import cached_by_identity

# What generated code means something else by. A placeholder may shadow other names of Python.
SPOKEN = frozenset(
    (
        *keyword.kwlist, "self", "torch", "math", "builtins", "operator", "_operator", "pytree",
        "fx_pytree", "inf", "nan", "device", "NoneType", "round", "abs", "slice", "range",
        "getattr",
    )
)  # fmt: skip
TAKEN = SPOKEN.union(dir(builtins))


class GraphWriter:
    """Appends nodes to one graph, which is whole after `finish`. `reserved` names are given only to
    those who ask for them."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.graph = fx.Graph()
        self._counts: dict[str, int] = {}
        self._used = set(reserved)
        self._append = self.graph._root._prepend
        self._named: dict[Any, str] = self.graph._graph_namespace._obj_to_name

    def append(
        self, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """A node of this very name, last in the graph."""
        node = fx.Node(self.graph, name, op, target, args, kwargs)
        self._append(node)
        self._named[node] = name
        return node

    def finish(self) -> fx.Graph:
        """Tell the graph of its nodes and names, all at once."""
        graph = self.graph
        calls: dict[int, dict[fx.Node, None]] = {}  # by identity: torch hashes overloads in Python
        table = graph._find_nodes_lookup_table.table
        for node in graph.nodes:
            if node.op == "call_function":
                calls.setdefault(id(node.target), {})[node] = None
            else:
                table[node.op, None][node] = None
        for nodes in calls.values():
            table["call_function", next(iter(nodes)).target] = nodes
        graph._graph_namespace._used_names.update(self._named.values())
        graph._len = len(self._named)
        return graph

    def name(self, base: str) -> str:
        """`base`, or the first of base_1, base_2, ... that is free; no word that Python knows."""
        count = self._counts.get(base, 0)
        if count == 0 and base not in TAKEN:
            self._counts[base] = 1
            if base not in self._used:
                self._used.add(base)
                return base
        while True:
            count = max(count, 1)
            name = f"{base}_{count}"
            count += 1
            if name not in self._used:
                self._counts[base] = count
                self._used.add(name)
                return name


@cached_by_identity(20_000)
def base_name(target: Any) -> str:
    """What nodes of this target are called: `aten.mm.default` → `mm`."""
    is_overload = isinstance(target, OpOverload)
    name = target._schema.name.rpartition("::")[2] if is_overload else target.__name__
    return name if name.isidentifier() else "node"
