"""Graphs of ours as torch's: the same nodes under the same names, with torch's values and metadata.

Where torch's serializer has no form for something that a graph may hold (an item that is read
twice, a number among the operands of a sub-graph), the graph gets the form it has in files: what is
handed over can be saved by torch. Must not change the program.
"""

from __future__ import annotations

import copy
import json
import operator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from lostwax.classes import SYMBOLIC
from lostwax.errors import SaveError
from lostwax.fake import FakeTensor
from lostwax.interop.numbers import PeerNumbers
from lostwax.interop.values import PeerValues
from lostwax.ir.graph.graph_module import make_graph_module
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import NO_KWARGS, GraphWriter
from lostwax.ops.registry import aten
from lostwax.pt2.graph.metadata import NO_MODULE, OWN, function_named, function_text, type_text
from lostwax.pt2.graph.targets import name_of, unspeakable

_SIZE = aten.sym_constrain_range_for_size.default
AS_NUMBER = "as_number"
"""The name of nodes that make numbers of truths, which a program of ours has not."""


class PeerGraphs:
    """Makes the graphs of one program."""

    def __init__(self, numbers: PeerNumbers, values: PeerValues) -> None:
        self.numbers, self.values = numbers, values
        self._stacks: dict[int, dict[str, tuple[str, str]]] = {}
        self._sources: dict[int, Any] = {}
        self._known: set[int] = set()

    def convert(
        self, module: GraphModule, is_whole: bool = True
    ) -> tuple[GraphModule, dict[Node, Node]]:
        """The module of a graph, and the new node of each old one."""
        made = _PeerGraph(self, module, is_whole)
        for node in module.graph.nodes:
            try:
                made.add(node)
            except SaveError as error:
                raise SaveError(f"{error}\n  while handing over the node {node.name!r}") from None
        whole = make_graph_module(made.children, made.writer.finish())
        whole.meta.update(keep_notes(module))
        return whole, made.nodes

    def check_target(self, target: Any) -> None:
        """Refuse a function that torch has no name for."""
        if id(target) not in self._known:
            name_of(target)
            self._known.add(id(target))

    def metadata(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The entries of `node.meta` that torch knows, in its form."""
        out: dict[str, Any] = {}
        if meta.get("stack_trace"):
            out["stack_trace"] = meta["stack_trace"]
        stack = meta.get("nn_module_stack") or NO_MODULE
        found = self._stacks.get(id(stack))
        if found is None:
            found = {key: (path, type_text(kind)) for key, (path, kind) in stack.items()}
            self._stacks[id(stack)] = found
        out["nn_module_stack"] = found.copy()
        if meta.get("source_fn_stack"):
            out["source_fn_stack"] = [(n, self._source(f)) for n, f in meta["source_fn_stack"]]
        if meta.get("torch_fn"):
            out["torch_fn"] = tuple(meta["torch_fn"])
        if meta.get("custom"):
            out["custom"] = dict(meta["custom"])
        if meta.get("from_node_text"):
            out["from_node"] = _read_sources(meta["from_node_text"])
        for key in OWN:  # for `from_torch`
            if meta.get(key):
                out[key] = meta[key]
        return out

    def _source(self, function: Any) -> Any:
        """A function that a node comes from; its name, if torch would not find it by that."""
        found = self._sources.get(id(function))
        if found is None:
            text = function_text(function)
            is_found = text.startswith(("torch.", "_operator.", "math."))
            if isinstance(function, type):  # parametrizations make a class for each module
                is_found = is_found and function_named(text) is function
            found = function if is_found else text
            self._sources[id(function)] = found
        return found


def keep_notes(module: GraphModule) -> dict[str, Any]:
    """What users noted of a graph."""
    return {"custom": copy.copy(module.meta["custom"])} if module.meta.get("custom") else {}


def _read_sources(text: str) -> list[Any]:
    from torch.fx.traceback import NodeSource

    given = [NodeSource._from_dict(each) for each in json.loads(text) or ()]
    return [each for each in given if each is not None]


class _PeerGraph:
    """One graph that is being made."""

    def __init__(self, graphs: PeerGraphs, module: GraphModule, is_whole: bool) -> None:
        self.graphs, self.module = graphs, module
        self._is_whole = is_whole
        """Is it the program's, which every call runs?"""
        self._given: set[Any] = set()
        """Symbols of data that calls in this graph give."""
        self.writer = GraphWriter()
        self.writer.reserve(node.name for node in module.graph.nodes)
        self.nodes: dict[Node, Node] = {}
        self.children: dict[str, GraphModule] = {}
        self._paths: dict[str, str] = {}

    def add(self, node: Node) -> None:
        if node.op == "call_function":
            self._call(node)
        elif node.op == "placeholder":
            made = self.writer.append_ready("placeholder", node.name, node.name, (), ())
            self._give(made, self.graphs.values.value(node.meta.get("val")))
            self.nodes[node] = made
        elif node.op == "get_attr":
            self.nodes[node] = self._subgraph(node)
        else:
            self._output(node)

    def _output(self, node: Node) -> None:
        made = self._append(node, node.args, NO_KWARGS)
        result: Any = made.args[0]
        if isinstance(result, Node):
            made.meta["val"] = result.meta["val"]
        else:
            values = [r.meta["val"] if isinstance(r, Node) else r for r in result]
            made.meta["val"] = tuple(values)

    def _subgraph(self, node: Node) -> Node:
        path = str(node.target)
        name = self._paths.get(path)
        if name is None:
            child = find_attribute(self.module, path)
            if not isinstance(child, GraphModule):
                raise SaveError(
                    f"{path} is no graph; only graphs are read as attributes\n  instead: hand the "
                    "program over before to_backend; to_executable() writes delegates into a .pte "
                    "file"
                )
            name = path.replace(".", "_")
            while name in self.children:
                name += "_"
            self._paths[path] = name
            self.children[name] = self.graphs.convert(child, is_whole=False)[0]
        return self.writer.append_ready("get_attr", node.name, name, (), ())

    # ---- calls

    def _call(self, node: Node) -> None:
        target: Any = node.target
        self.graphs.check_target(target)
        if target is operator.getitem and self._read_item(node):
            return
        args = node.args
        if isinstance(target, HigherOrderOperator):
            args = tuple([self._operands(each) for each in args])
        elif isinstance(target, OpOverload):
            unnamed = unspeakable(target)
            if unnamed is not None and unnamed[0] == len(args):
                args = (*args, unnamed[1])
            if target is aten._local_scalar_dense.default:
                args = (self._without_truth(args[0]),)
        made = self._append(node, args, node.kwargs)
        made.meta = self.graphs.metadata(node.meta)
        self._give(made, self.graphs.values.value(node.meta.get("val")))
        if isinstance(target, HigherOrderOperator):
            for each in made.all_input_nodes:
                if each.op == "get_attr":
                    each.meta.update(self.graphs.metadata(node.meta))
        else:
            self._learn(made)

    def _read_item(self, node: Node) -> bool:
        """Read an item of a result: of several nodes that read the same one, the first."""
        source, index = node.args
        if not isinstance(source, Node) or not isinstance(index, int):
            return False
        parts = source.meta.get("val")
        if not isinstance(parts, (tuple, list)):
            return False
        of = self.nodes[source]
        index %= len(parts)
        for user in of.users:
            if user.target is operator.getitem and user.args[1] == index:
                self.nodes[node] = user
                return True
        made = self._append(node, (source, index), NO_KWARGS)
        made.meta = self.graphs.metadata(node.meta)
        made.meta["val"] = of.meta["val"][index]
        return True

    def _operands(self, given: Any) -> Any:
        """Operands of a sub-graph. A number that is written out among tensors has no form in files:
        a node gives it."""
        if not isinstance(given, (tuple, list)):
            return given
        if not any(isinstance(self._value(each), FakeTensor) for each in given):
            return given
        made = [self._number(each) if type(each) in (int, float) else each for each in given]
        return tuple(made) if isinstance(given, tuple) else made  # torch adds those of a loop

    def _without_truth(self, tensor: Any) -> Any:
        """What `item` reads. Of a truth it gives `bool` there, and a number here: the tensor is
        made one of numbers."""
        value = tensor.meta["val"]
        if value.dtype is not torch.bool:
            return tensor
        made = self.writer.append_ready(
            *("call_function", self.writer.free_name(AS_NUMBER), aten._to_copy.default),
            *((self.nodes[tensor],), {self.nodes[tensor]: None}, {"dtype": torch.int64}),
        )
        with self.graphs.values.mode:
            fake = self.nodes[tensor].meta["val"].to(torch.int64)
        made.meta.update(self.graphs.metadata(tensor.meta), val=fake)
        self.nodes[made] = made
        return made

    def _number(self, value: int | float) -> Node:
        args = (value, type(value)(0))
        name = self.writer.free_name("number")
        made = self.writer.append_ready("call_function", name, operator.add, args, ())
        made.meta.update(self.graphs.metadata({}), val=value)
        self.nodes[made] = made
        return made

    def _learn(self, made: Node) -> None:
        """Tell torch's environment what holds after a node that checks something. What a branch or
        the body of a loop checks of a symbol that is given outside of it, holds in it alone."""
        self._given.update(made.meta.get("unbacked_bindings", ()))
        if made.target not in (aten._assert_scalar.default, _SIZE):
            return
        checked = self._value(made.args[0])
        if not isinstance(checked, SYMBOLIC):
            return
        if not self._is_whole and not checked.node.expr.free_symbols <= self._given:
            return
        env = self.graphs.numbers.env
        if made.target is _SIZE:
            env._constrain_range_for_size(checked.node.expr)
        else:
            env.guard_or_defer_runtime_assert(checked.node.expr, "", made)

    def _value(self, argument: Any) -> Any:
        return argument.meta.get("val") if isinstance(argument, Node) else argument

    # ---- nodes

    def _append(self, node: Node, args: tuple[Any, ...], kwargs: Any) -> Node:
        inputs: dict[Node, None] = {}
        found = self._map(args, inputs)
        named = self._map(kwargs, inputs) if kwargs else NO_KWARGS
        made = self.writer.append_ready(node.op, node.name, node.target, found, inputs, named)
        self.nodes[node] = made
        return made

    def _map(self, value: Any, inputs: dict[Node, None]) -> Any:
        cls = value.__class__
        if cls is Node:
            made = self.nodes[value]
            inputs[made] = None
            return made
        if cls is tuple:
            return tuple([self._map(v, inputs) for v in value])
        if isinstance(value, list):
            return immutable_list([self._map(v, inputs) for v in value])
        if isinstance(value, dict):
            return immutable_dict({k: self._map(v, inputs) for k, v in value.items()})
        if cls is slice:
            return slice(*(self._map(v, inputs) for v in (value.start, value.stop, value.step)))
        return value

    def _give(self, made: Node, value: Any) -> None:
        """Note what a node gives, and which symbols of data it gives first."""
        made.meta["val"] = value
        unbound = self.graphs.numbers.unbound
        if unbound and value is not None:
            from torch.fx.experimental.symbolic_shapes import _free_unbacked_symbols_with_path

            env = self.graphs.numbers.env
            found = _free_unbacked_symbols_with_path(
                value, (), shape_env=env, pending=unbound, simplify=True
            )
            if found:
                made.meta["unbacked_bindings"] = found
