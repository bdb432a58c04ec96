"""Writes a new graph in the place of another, node by node: the one walk under decompositions,
dialects and backends, which say only what some nodes become.

Names stay; those of new nodes are free in the old graph. Must not change the graph it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from lostwax.classes import PLAIN, SYMBOLIC
from lostwax.ir.data import ModuleCallEntry, Program
from lostwax.ir.graph.graph_module import ReadableModule
from lostwax.ir.graph.handles import HANDLE
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.retype import PROVENANCE
from lostwax.ir.graph.writer import GraphWriter, base_name
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    InputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)


class GraphRewriter:
    """Copies the nodes of one graph module; subclasses say otherwise for some of them."""

    def __init__(self, module: GraphModule, nodes: Iterable[Node] | None = None) -> None:
        """The new graph has all nodes of the module, or these alone."""
        self.module = module
        self.nodes = list(module.graph.nodes if nodes is None else nodes)
        self.writer = GraphWriter()
        self.writer.reserve_builtins()
        self.writer.reserve([n.name for n in self.nodes])
        self.children: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        """The new names of the nodes that others stand for now."""
        self.new: dict[Node, Any] = {}
        """For each old node the new one, or the list of new ones for its outputs."""
        self.write: dict[str, Callable[[Node], Any]] = {
            "placeholder": self.copy_input,
            "get_attr": self.copy_child,
            "call_function": self.rewrite_call,
            "output": self.copy,
        }
        """Writes what a node becomes, by its `op`."""
        self.note: Callable[[Node, Any], None] | None = None
        """Is told of each node that is put in the place of another, and of what that returns."""

    def run(self) -> GraphModule:
        """The module with the new graph."""
        for node in self.nodes:
            self.write[node.op](node)
        return self.finish()

    def finish(self) -> GraphModule:
        made = ReadableModule(self.children, self.writer.finish())
        made.meta.update(self.module.meta)
        return made

    def rewrite_call(self, node: Node) -> None:
        """Write what a call becomes."""
        self.copy(node)

    def rewrite_child(self, child: GraphModule) -> GraphModule:
        """What a sub-graph becomes."""
        return child

    def copy_input(self, node: Node) -> Node:
        return self.put(node, node.target, node.args, {})  # no node is among its arguments

    def copy_child(self, node: Node) -> None:
        path = str(node.target)
        if path not in self.children:
            child = find_attribute(self.module, path)
            is_graph = isinstance(child, GraphModule)
            self.children[path] = self.rewrite_child(child) if is_graph else child
        self.copy(node)

    def copy(self, node: Node) -> Node:
        return self.put(node, node.target, *self.map_arguments(node))

    def put(self, node: Node, target: Any, args: Any, kwargs: Any) -> Node:
        """Write a node in the place of another, under its name and with its metadata."""
        made = self.writer.append(node.op, node.name, target, args, kwargs)
        made.meta.update(node.meta)  # in place: setting an attribute of a node costs as much as it
        if node.type is not None:
            made.type = node.type
        self.new[node] = made
        if self.note is not None:
            self.note(made, node.meta.get("val"))
        return made

    def add(self, node: Node, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
        """Write a further call, which comes from where a node comes from."""
        name = self.writer.free_name(base_name(target).strip("_"))
        made = self.writer.append("call_function", name, target, args, kwargs)
        made.meta.update({key: node.meta.get(key, nothing) for key, nothing in PROVENANCE.items()})
        if HANDLE in node.meta:
            made.meta[HANDLE] = node.meta[HANDLE]
        made.meta["val"] = value
        return made

    def replace(self, node: Node, new: Any) -> None:
        """Let another node of the new graph, or several, stand for a node."""
        self.new[node] = new
        if isinstance(new, Node):
            self.names[node.name] = new.name

    def map_arguments(self, node: Node) -> tuple[Any, Any]:
        """The arguments of a node in the new graph."""
        new = self.new
        args = [
            new[a] if a.__class__ is Node else a if a.__class__ in PLAIN else self.map_argument(a)
            for a in node.args
        ]
        return tuple(args), self.map_argument(node.kwargs) if node.kwargs else {}

    def map_argument(self, argument: Any) -> Any:
        return map_arg(argument, self.new.__getitem__)


# ------------------------------------------------------------------------------------ signatures


def rename_arguments(specs: Iterable[Any], names: Mapping[str, str]) -> list[Any]:
    """The arguments of a signature, or specs of them, by the names that their nodes have now."""
    return [_rename(spec, names) for spec in specs]


def rename_call(entry: ModuleCallEntry, names: Mapping[str, str]) -> ModuleCallEntry:
    """The same for what a call of a module takes and gives."""
    call = entry.signature
    if call is None:
        return entry
    inputs, outputs = (rename_arguments(a, names) for a in (call.inputs, call.outputs))
    return replace(entry, signature=replace(call, inputs=inputs, outputs=outputs))


def _rename(spec: Any, names: Mapping[str, str]) -> Any:
    if hasattr(spec, "arg"):
        return replace(spec, arg=_rename(spec.arg, names))
    return replace(spec, name=names[spec.name]) if spec.name in names else spec


def argument_of(value: Any) -> ArgumentSpec:
    """How a signature names a value of a graph."""
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    kind: type[TensorArgument] = _KINDS.get(type(value.meta.get("val")), TensorArgument)
    return kind(value.name)


_KINDS: dict[type, Any] = dict(
    zip(SYMBOLIC, (SymIntArgument, SymFloatArgument, SymBoolArgument), strict=True)
)


def hold(
    program: Program, specs: Iterable[InputSpec]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state and the constants of a program, as far as these inputs name them."""
    kept = {spec.target for spec in specs}
    return (
        {name: value for name, value in program.state_dict.items() if name in kept},
        {name: value for name, value in program.constants.items() if name in kept},
    )
