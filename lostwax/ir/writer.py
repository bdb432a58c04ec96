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

# Names that FX's generated code uses for something else.
_TAKEN = frozenset(
    (*dir(builtins), "inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree")
)


class GraphWriter:
    """Appends nodes to one graph. `reserved` names are given only to those who ask for them."""

    def __init__(self, graph: fx.Graph, reserved: Iterable[str] = ()) -> None:
        self.graph = graph
        self._counts: dict[str, int] = {}
        self._used = set(reserved)
        self._namespace = graph._graph_namespace
        self._lookup = graph._find_nodes_lookup_table

    def append(
        self, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """A node of this very name, last in the graph."""
        graph = self.graph
        node = fx.Node(graph, name, op, target, args, kwargs)
        self._namespace.associate_name_with_obj(name, node)
        self._namespace._used_names.add(name)
        graph._insert(node)
        self._lookup.insert(node)
        graph._len += 1
        return node

    def name(self, base: str) -> str:
        """`base`, or the first of base_1, base_2, ... that is free; no word that Python knows."""
        count = self._counts.get(base, 0)
        if count == 0 and not keyword.iskeyword(base) and base not in _TAKEN:
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


def base_name(target: Any) -> str:
    """What nodes of this target are called: `aten.mm.default` → `mm`."""
    found = _BASE_NAMES.get(id(target))
    if found is None:
        is_overload = isinstance(target, OpOverload)
        name = target._schema.name.rpartition("::")[2] if is_overload else target.__name__
        name = name if name.isidentifier() else "node"
        found = _BASE_NAMES[id(target)] = (target, name)
    return found[1]


_BASE_NAMES: dict[int, tuple[Any, str]] = {}  # by identity: torch hashes its overloads in Python
