"""Nodes into a `torch.fx.Graph`, at speed and under names of our choice.

`Graph.create_node` looks through all arguments and chooses a name: five times the cost. This is the
only file that knows how FX keeps its nodes: their list, their names, the table by target. Must not
know what the nodes mean.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch.fx.immutable_collections import immutable_dict

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


NO_KWARGS: Any = immutable_dict()


class GraphWriter:
    """Appends nodes to one graph, which is whole after `finish`."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._names = _SPOKEN.copy()
        """Names that are taken, each with the next number to try behind it."""
        self._append = self.graph._root._prepend
        self._named: dict[Any, str] = self.graph._graph_namespace._obj_to_name
        self._calls: dict[int, dict[fx.Node, None]] = {}
        """The calls of each target; by identity, as torch hashes overloads in Python."""
        self._others: dict[str, dict[fx.Node, None]] = {}
        """The nodes that call nothing, by what they do."""

    def append(
        self, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """A node of this very name, last in the graph."""
        node = fx.Node(self.graph, name, op, target, args, kwargs)
        self._note(node, op, name, target)
        return node

    def append_ready(
        self,
        op: str,
        name: str,
        target: Any,
        args: tuple[Any, ...],
        inputs: Iterable[fx.Node],
        kwargs: Any = NO_KWARGS,
    ) -> fx.Node:
        """As `append`, for arguments that are immutable already and have these nodes in them: FX
        would take them apart and make all of them anew."""
        node = _new_node(fx.Node)
        _init_node(node, self.graph, name, op, target, None)
        _set_args(node, args)
        _set_kwargs(node, kwargs)
        read = node._input_nodes
        for each in inputs:
            read[each] = None
            each.users[node] = None
        self._note(node, op, name, target)
        return node

    def append_placeholders(self, names: Sequence[str]) -> list[fx.Node]:
        """Many inputs, under these names as far as they are free."""
        distinct = dict.fromkeys(names, 1)
        if len(distinct) == len(names) and self._names.keys().isdisjoint(names):
            self._names |= distinct
        else:
            names = list(map(self.free_name, names))
        return [self.append_ready("placeholder", name, name, (), ()) for name in names]

    def _note(self, node: fx.Node, op: str, name: str, target: Any) -> None:
        self._append(node)
        self._named[node] = name
        if op == "call_function":
            alike = self._calls.get(id(target))
            if alike is None:
                alike = self._calls[id(target)] = {}
            alike[node] = None
        else:
            self._others.setdefault(op, {})[node] = None

    def finish(self) -> fx.Graph:
        """Tell the graph of its nodes and names, all at once."""
        graph = self.graph
        table = graph._find_nodes_lookup_table.table
        for op, nodes in self._others.items():
            table[op, None] = nodes
        for nodes in self._calls.values():
            table["call_function", next(iter(nodes)).target] = nodes
        graph._graph_namespace._used_names.update(self._named.values())
        graph._len = len(self._named)
        return graph

    def reserve(self, names: Iterable[str]) -> None:
        """From now on these names are given only to those who append under them."""
        self._names = {**dict.fromkeys(names, 1), **self._names}

    def free_name(self, base: str) -> str:
        """`base`, or the first of base_1, base_2, ... that is free."""
        names = self._names
        count = names.get(base)
        if count is None:
            names[base] = 1
            return base
        while True:
            name = f"{base}_{count}"
            count += 1
            if name not in names:
                names[base], names[name] = count, 1
                return name


_SPOKEN = dict.fromkeys(SPOKEN, 1)
_Bare: Any = fx.Node.__base__
_new_node, _init_node = fx.Node.__new__, _Bare.__init__
_set_args, _set_kwargs = _Bare._args.__set__, _Bare._kwargs.__set__


def insert_node(
    graph: fx.Graph, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> fx.Node:
    """A node under exactly this name, which must be free, where the graph inserts nodes now."""
    node = fx.Node(graph, name, op, target, args, kwargs)
    graph._graph_namespace.associate_name_with_obj(name, node)
    graph._graph_namespace._used_names.add(name)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def graph_border(graph: fx.Graph) -> fx.Node:
    """What stands before the first node of a graph and behind its last, and is none of them."""
    return graph._root


@cached_by_identity(20_000)
def base_name(target: Any) -> str:
    """What nodes of this target are called: `aten.mm.default` → `mm`."""
    is_overload = isinstance(target, OpOverload)
    known = target._schema.name if is_overload else getattr(target, "__name__", "node")
    name: str = known.rpartition("::")[2]
    return name if name.isidentifier() else "node"
