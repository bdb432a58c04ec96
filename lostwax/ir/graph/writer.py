"""Writes nodes into a `torch.fx.Graph`, fast and under names of our choice.

`Graph.create_node` searches all arguments and chooses a name: five times the cost. This is the
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
from lostwax.ops.dialect_operator import overload_of

# Names that mean something else in generated code. A placeholder may shadow other Python names.
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
    """Appends nodes to one graph, which is complete after `finish`."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._taken = SPOKEN
        """Names that are never free, ..."""
        self._names: dict[str, int] = {}
        """... and others that are taken, each with the next number to append to it."""
        self._append = self.graph._root._prepend
        self._named: dict[Any, str] = self.graph._graph_namespace._obj_to_name
        self._calls: dict[int, dict[fx.Node, None]] = {}
        """The calls of each target; by identity, as torch hashes overloads in Python."""
        self._others: dict[str, dict[fx.Node, None]] = {}
        """The nodes that call no function, by their `op`."""

    def append(
        self, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """Append a node under exactly this name."""
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
        """As `append`, for arguments that are already immutable and contain just these nodes: FX
        would take them apart and build them again."""
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
        """Append many placeholders, under these names as far as they are free."""
        distinct = dict.fromkeys(names, 1)
        taken = (self._names.keys(), self._taken)
        if len(distinct) == len(names) and all(each.isdisjoint(names) for each in taken):
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
        """Fill the graph's tables of nodes and names, all at once."""
        graph = self.graph
        table = graph._find_nodes_lookup_table.table
        for op, nodes in self._others.items():
            table[op, None] = nodes
        for nodes in self._calls.values():
            table["call_function", next(iter(nodes)).target] = nodes
        graph._graph_namespace._used_names.update(self._named.values())
        graph._len = len(self._named)
        return graph

    def reserve_builtins(self) -> None:
        """From now on `free_name` returns no name that Python knows: a call shadows nothing."""
        self._taken = TAKEN

    def reserve(self, names: Iterable[str]) -> None:
        """From now on `free_name` does not return these names."""
        self._names = {**dict.fromkeys(names, 1), **self._names}

    def free_name(self, base: str) -> str:
        """Return `base`, or the first of base_1, base_2, ... that is free."""
        names = self._names
        count = names.get(base)
        if count is None:
            if base not in self._taken:
                names[base] = 1
                return base
            count = 1
        while True:
            name = f"{base}_{count}"
            count += 1
            if name not in names:
                names[base], names[name] = count, 1
                return name


_Bare: Any = fx.Node.__base__
_new_node, _init_node = fx.Node.__new__, _Bare.__init__
_set_args, _set_kwargs = _Bare._args.__set__, _Bare._kwargs.__set__


def insert_node(
    graph: fx.Graph, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> fx.Node:
    """Insert a node under exactly this name, which must be free, where the graph inserts now."""
    node = fx.Node(graph, name, op, target, args, kwargs)
    graph._graph_namespace.associate_name_with_obj(name, node)
    graph._graph_namespace._used_names.add(name)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def called_functions(graph: fx.Graph) -> list[Any]:
    """The functions that a graph calls or has called, each once."""
    return [target for op, target in graph._find_nodes_lookup_table.table if op == "call_function"]


def graph_border(graph: fx.Graph) -> fx.Node:
    """The sentinel before the first node of a graph and after its last."""
    return graph._root


@cached_by_identity(20_000)
def base_name(target: Any) -> str:
    """The name that nodes with this target get: `aten.mm.default` → `mm`."""
    target = overload_of(target)
    is_overload = isinstance(target, OpOverload)
    known = target._schema.name if is_overload else getattr(target, "__name__", "node")
    name: str = known.rpartition("::")[2]
    return name if name.isidentifier() else "node"
