"""From the log of a capture to a `torch.fx.Graph`.

Only steps that something reads become nodes. Sizes that an operator takes are computed by nodes
made when first needed, in canonical form and shared. Values made without gradients are detached
where gradients see them. Must not evaluate operators.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload
from torch.fx.immutable_collections import immutable_list

from lostwax.classes import list_nested
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.graph.graph_module import make_graph_module
from lostwax.ir.graph.numbers import (
    Numbers,
    SymbolOrigin,
    SymbolOrigins,
    number_sources,
    simplify_number,
)
from lostwax.ir.graph.writer import NO_KWARGS, GraphWriter, base_name
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    strip_class,
)
from lostwax.ir.trace.log import (
    HeldModule,
    InnerGraph,
    NumberValue,
    Operands,
    Region,
    Step,
    Value,
    is_shared,
    values_of,
)
from lostwax.ops.registry import aten
from lostwax.sym import BoolExpr, Expr, Guard
from lostwax.sym.numbers.narrowing import spell
from lostwax.sym.numbers.real import Real

_BUILT = frozenset((Value, list, tuple, Expr, BoolExpr, Real, InnerGraph, HeldModule, Operands))
"""The classes of what a step and its node hold in different forms."""


class Builder:
    """Builds one graph."""

    def __init__(self, mode: Any, origins: SymbolOrigins, grad: bool) -> None:
        self.mode = mode
        self.origins = origins
        self.grad = grad
        """Whether gradients flow through the program at all."""
        self._stops = False
        """Whether gradients stop at some of its steps."""
        self._writer = GraphWriter()
        self._append, self._name = self._writer.append_ready, self._writer.free_name
        self.graph = self._writer.graph
        self.modules: dict[str, nn.Module] = {}
        """The sub-graphs and delegates, by the name that the graph has for them."""
        self._bodies: dict[str, int] = {}
        """How many of them are the bodies of control flow, by kind."""
        self._given: set[Value] = set()
        """Values that were computed outside: where no gradient reaches them is settled there."""
        self._nodes: dict[Value, fx.Node] = {}
        self._step_nodes: dict[Step, fx.Node] = {}
        self._lists: dict[tuple[fx.Node, int], fx.Node] = {}
        self._size_lists: dict[int, Any] = {}
        """The lists of sizes, by identity of the tuple in the log."""
        self._size_tuples: list[tuple[Any, ...]] = []
        """Those tuples, kept alive so that their ids stay theirs."""
        self._within: dict[int, list[fx.Node]] = {}
        """The nodes in each of those lists, by its identity."""
        self._detached: dict[Value, fx.Node] = {}
        self._lent: dict[int, FakeTensor] = {}
        """The graph's own copies of fakes that retire, by the id of the fake."""
        self._unseen: dict[int, FakeTensor] = {}
        """One fake for all results of a type that no one has seen, by identity of the type."""
        self._numbers = Numbers(lambda f, args: self._call(f, args, {}, None), self._read, origins)
        self._current: Step | None = None
        """The step that becomes a node: nodes that it needs first get its line, too."""
        self._asserted_line = ""
        """The line of the assertion that becomes a node."""

    def add_placeholder(self, name: str, value: Value | None, val: Any) -> fx.Node:
        """An input; `val` is what the graph expects there."""
        name = self._name(name)
        if value is not None and value.type is not None:
            val = self._fake_of(value)
        node = self._append("placeholder", name, name, (), ())
        node.meta["val"] = val
        if value is not None:
            self._nodes[value] = node
        return node

    def add_placeholders(
        self, names: Sequence[str], values: Sequence[Value], retiring: bool
    ) -> list[str]:
        """The inputs of a module's state, which may be many, and the names they get. `retiring`:
        the fakes that stand in the module are of no use to anyone when the capture is over."""
        nodes = self._writer.append_placeholders(names)
        for node, value in zip(nodes, values, strict=True):
            if retiring:
                self._lent[id(value.fake)] = _copy_fake(value.fake)
            node.meta["val"] = self._fake_of(value)
        self._nodes.update(zip(values, nodes, strict=True))
        return [node.name for node in nodes]

    def add_steps(self, region: Region, outputs: Sequence[Any], demands: Sequence[Guard]) -> None:
        """Nodes for the steps that the outputs and the demands need, in the order they were
        recorded."""
        self._writer.reserve_builtins()
        conditions = [guard.cond for guard in demands]
        needed, read = find_live(region.steps, [*outputs, *conditions], self.origins)
        if self.mode.addresses:
            self._check_addresses([step for step in region.steps if step in needed], outputs)
        self._stops = self.grad and not all(step.grad for step in region.steps)
        due = self._group_demands(region.steps, demands)
        for guard in due.pop(None, ()):
            self._assert_guard(guard)
        for step in region.steps:
            if step in needed:
                self._add_step(step)
                if step.result.__class__ is not Value:
                    for value in values_of(step.result):
                        if value in read:
                            self._node_of(value)
                if due:
                    for guard in due.get(step, ()):
                        self._assert_guard(guard)

    def _check_addresses(self, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        """Refuse a program that has in it where an object lies."""
        from lostwax.fake.symbolic.objects import refuse_address_in_program  # few ask

        for step in steps:
            if not self.mode.addresses.isdisjoint(
                list_nested((*step.args, *step.kwargs.values()), int)
            ):
                refuse_address_in_program(step.place.location())
        if not self.mode.addresses.isdisjoint(list_nested(outputs, int)):
            refuse_address_in_program(None)

    def _group_demands(
        self, steps: Sequence[Step], demands: Sequence[Guard]
    ) -> dict[Step | None, list[Guard]]:
        """The demands by the step after which they can be checked; None: at once."""
        due: dict[Step | None, list[Guard]] = {}
        order = {step: i for i, step in enumerate(steps)} if demands else {}
        for guard in demands:
            origins = (self.origins[s].value.step for s in number_sources(guard.cond))
            made = [step for step in origins if step in order]  # else it is given
            due.setdefault(max(made, key=order.__getitem__, default=None), []).append(guard)
        return due

    def _assert_guard(self, guard: Guard) -> None:
        """Add the check, when the program runs, of a condition on data that it relies on."""
        self._current, before = None, self._current
        where = guard.where
        frame = f'  File "{where.file}", line {where.line}, in {where.function}\n'
        self._asserted_line = f"{frame}    {where.text}\n"
        holds = self._numbers.node(guard.cond)
        said = guard.reason.partition(": ")[2] if guard.kind == "assert" else ""
        text = f"{spell(guard.cond) or guard.predicate} is required at {where}"
        text += f"\n  because {said}" if said else ""
        self._call(aten._assert_scalar.default, (holds, text), {}, None)
        self._current = before

    def assert_layout(
        self, value: Value, offset: bool, empty: bool, exact: bool, text: str
    ) -> None:
        """Add the check that an input lies in memory as the example's did: `empty`, also if it has
        no elements; `exact`, also the strides of dimensions of size 1."""
        assert value.type is not None
        placeholder, t = self._node_of(value), value.type
        asked: list[tuple[Any, tuple[Any, ...], Any]] = [
            (aten.sym_stride.int, (placeholder, d), stride)
            for d, (size, stride) in enumerate(zip(t.size, t.stride, strict=True))
            if size != 1 or exact
        ]
        if offset:
            asked.append((aten.sym_storage_offset.default, (placeholder,), t.offset))
        numel = 1 if empty else self._numbers.node(t.numel())
        if numel == 0:  # without elements there is no layout
            return
        for target, args, wanted in asked:
            given = self._call(target, args, {}, None, wrap(wanted))
            holds = self._call(operator.eq, (given, self._numbers.node(wanted)), {}, None, True)
            if isinstance(numel, fx.Node):
                is_empty = self._call(operator.eq, (numel, 0), {}, None, False)
                holds = self._call(operator.or_, (holds, is_empty), {}, None, True)
            self._call(aten._assert_scalar.default, (holds, text), {}, None)

    def add_output(self, values: Sequence[Any], form: Any = tuple) -> fx.Node:
        """The end of the program: one flat tuple. A body may return a list, or its only value."""
        args: Any = tuple([strip_class(self._operand(v, self.grad)) for v in values])
        vals: Any = tuple([a.meta.get("val") if isinstance(a, fx.Node) else a for a in args])
        inputs = _nodes_in(args, self._within)
        if form is None:
            (args,), (vals,) = args, vals
        elif form is list:
            args = immutable_list(args)
        node = self._append("output", self._name("output"), "output", (args,), inputs)
        node.meta["val"] = vals
        self._writer.finish()
        return node

    def make_module(self) -> fx.GraphModule:
        """The graph with its sub-graphs."""
        return make_graph_module(self.modules, self.graph)

    def node(self, value: Any) -> Any:
        """The node of a value or a symbolic number; any other value is itself."""
        return self._operand(value, grad=False)

    # --------------------------------------------------------------------------------------- nodes

    def _add_step(self, step: Step) -> None:
        self._current = step
        grad, result, nodes, kwargs = step.grad and self._stops, step.result, self._nodes, NO_KWARGS
        args = list(step.args)
        for i in range(len(args)) if step.tensors is None else step.tensors:
            a = args[i]
            if a.__class__ is Value:  # `_operand`, with what is most common inlined
                node = None if grad else nodes.get(a)
                args[i] = self._operand(a, grad) if node is None else node
            elif a.__class__ in _BUILT:
                args[i] = self._size_lists.get(id(a)) or self._operand(a, grad)
        if step.kwargs:
            kwargs = {k: self._operand(v, grad) for k, v in step.kwargs.items()}
        if result.__class__ is Value:
            val: Any = result.fake
            if val is None or val.fake_type is not result.type:
                val = self._fake_of(result)
            nodes[result] = self._call(step.target, tuple(args), kwargs, step, val, step.tensors)
        else:
            val = self._fakes_of(result)
            node = self._call(step.target, tuple(args), kwargs, step, val, step.tensors)
            self._step_nodes[step] = node

    def _call(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        step: Step | None,
        val: Any = None,
        inputs: Sequence[int] | None = None,
    ) -> fx.Node:
        """`inputs`: which arguments are nodes, if no other one has nodes in it."""
        name = self._name(base_name(target))
        if kwargs:
            node = self._writer.append("call_function", name, target, args, kwargs)
        else:
            read = _nodes_in(args, self._within) if inputs is None else [args[i] for i in inputs]
            node = self._append("call_function", name, target, args, read)
        meta = node.meta
        meta["val"] = val
        step = step or self._current
        if step is not None:
            step.place.describe(target, meta, name)
        else:
            meta.update(stack_trace=self._asserted_line, nn_module_stack={}, source_fn_stack=[])
        return node

    def _operand(self, value: Any, grad: bool) -> Any:
        cls = value.__class__
        if cls is Value:
            step = value.step
            if grad and step is not None and not step.grad and self.grad:
                return self._nodes[value] if value in self._given else self._detach(value)
            return self._node_of(value)
        if cls is tuple:
            return self._size_lists.get(id(value)) or self._share_sizes(value)
        if cls is list:
            return immutable_list([self._operand(v, grad) for v in value])
        if cls is Expr or cls is BoolExpr or cls is Real:
            return self._numbers.node(self._simplify(value))
        if cls is Operands:
            return tuple([self._operand(v, grad) for v in value])
        if cls is InnerGraph:
            return self._add_subgraph(value) if value.origins is None else self._add_body(value)
        if cls is HeldModule:
            return self._add_held(value)
        return value

    def _simplify(self, number: Any) -> Any:
        """The number with all that the trace has learned, unless a part of that is read later: a
        length from data may turn out to be a height times a width, which come after this step."""
        simple = simplify_number(number)
        if simple is number:
            return number
        origins = [self.origins.get(source) for source in number_sources(simple)]
        is_there = all(o is None or self._is_made(o.value) for o in origins)
        return simple if is_there else number

    def _is_made(self, value: Value) -> bool:
        return value in self._nodes or value.step in self._step_nodes

    def _share_sizes(self, numbers: tuple[Any, ...]) -> Any:
        """A list of integers of which some are symbolic, as the log shares it."""
        found = immutable_list([self._operand(n, grad=False) for n in numbers])
        self._size_lists[id(numbers)] = found
        self._size_tuples.append(numbers)
        self._within[id(found)] = [n for n in found if n.__class__ is fx.Node]
        return found

    def _add_subgraph(self, body: InnerGraph) -> fx.Node:
        """The node that reads the graph of a backward."""
        inner = Builder(self.mode, self.origins, grad=False)
        for i, value in enumerate(body.inputs):
            inner.add_placeholder(f"arg_{i}", value, value.fake)
        inner.add_steps(body.region, body.outputs, ())
        inner.add_output(body.outputs)
        name = self._name(body.name)
        self.modules[name] = fx.GraphModule(inner.modules, inner.graph, body.name)
        return self._append("get_attr", name, name, (), ())

    def _add_held(self, held: HeldModule) -> fx.Node:
        """The node that reads a module that a step takes."""
        for name, module in self.modules.items():
            if module is held.module:
                return self._append("get_attr", self._name(name), name, (), ())
        number = self._bodies[held.name] = self._bodies.get(held.name, -1) + 1
        name = self._name(f"{held.name}_{number}")
        self.modules[name] = held.module
        return self._append("get_attr", name, name, (), ())

    def _add_body(self, body: InnerGraph) -> fx.Node:
        """The node that reads the graph of a function that a step calls."""
        step = self._current
        assert step is not None
        inner = Builder(self.mode, body.origins, self.grad and step.grad)
        inner._given.update(body.inputs)
        for i, value in enumerate(body.inputs):
            name = f"arg{i}_1"
            if body.operands is not None:
                node = self._operand(body.operands[i], step.grad and self._stops)
                name = node.name if node.__class__ is _Node else name
            inner.add_placeholder(name, value, value.fake)
        inner.add_steps(body.region, body.outputs, body.demands)
        inner.add_output(body.outputs, body.form)
        number = self._bodies[body.name] = self._bodies.get(body.name, -1) + 1
        name = self._name(f"{body.name}_{number}")
        self.modules[name] = inner.make_module()
        return self._append("get_attr", name, name, (), ())

    def _node_of(self, value: Value) -> fx.Node:
        node = self._nodes.get(value)
        if node is None:
            assert value.step is not None, "a value of another capture"
            made, index = self._step_nodes[value.step], value.index
            if index.__class__ is tuple:  # in a list among several results
                made, index = self._list_item(made, index[0]), index[1]
            node = self._nodes[value] = self._add_item(made, index, self._fake_of(value))
        return node

    def _list_item(self, made: fx.Node, index: int) -> fx.Node:
        found = self._lists.get((made, index))
        if found is None:
            found = self._lists[made, index] = self._add_item(made, index, made.meta["val"][index])
        return found

    def _add_item(self, made: fx.Node, index: Any, val: Any) -> fx.Node:
        name, args = self._name("getitem"), (made, index)
        node = self._append("call_function", name, operator.getitem, args, (made,))
        node.meta.update(made.meta)
        node.meta["val"] = val
        return node

    def _detach(self, value: Value) -> fx.Node:
        node = self._detached.get(value)
        if node is None:
            node = self._call(aten.detach.default, (self._node_of(value),), {}, value.step)
            node.meta["val"] = self._fake_of(value)
            self._detached[value] = node
        return node

    def _fake_of(self, value: Value) -> FakeTensor:
        fake: FakeTensor | None = value.fake
        if fake is not None and fake.fake_type is value.type:
            return self._lent.get(id(fake), fake)
        assert value.type is not None
        known = None if fake is not None else self._unseen.get(id(value.type))
        value.fake = new_fake(self.mode, value.type) if known is None else known
        if fake is None:
            self._unseen[id(value.type)] = value.fake
        return value.fake  # type: ignore[no-any-return]

    def _fakes_of(self, result: Any) -> Any:
        if result.__class__ is Value:
            return self._fake_of(result)
        if isinstance(result, (list, tuple)):
            return type(result)([self._fakes_of(r) for r in result])
        return result.fake if result.__class__ is NumberValue else result

    def _read(self, origin: SymbolOrigin) -> fx.Node:
        """The node that gives the number at an origin."""
        value, dim = origin.value, origin.dim
        if dim is not None:
            return self._call(aten.sym_size.int, (self._node_of(value), dim), {}, value.step)
        if value.__class__ is NumberValue:
            made = self._step_nodes[value.step]  # type: ignore[index]
            return made if value.index is None else self._add_item(made, value.index, value.fake)
        if value.type is None:
            return self._node_of(value)
        args = (self._node_of(value),)
        return self._call(aten._local_scalar_dense.default, args, {}, value.step)


def _copy_fake(fake: FakeTensor) -> FakeTensor:
    """A fake like it, in the same memory."""
    own = fake.snapshot()
    if getattr(fake, "_is_parameter", False):
        own._is_param = True
    return own


def _nodes_in(values: Sequence[Any], known: Mapping[int, list[fx.Node]]) -> list[fx.Node]:
    """The nodes among the values; `known`: those in some lists, by identity of the list."""
    found: list[fx.Node] = []
    for v in values:
        if v.__class__ is _Node:
            found.append(v)
        elif v.__class__ in _NESTED and not is_shared(v):
            found += known.get(id(v)) or _nodes_in(v, known)
    return found


_NESTED = frozenset((immutable_list, tuple))
_Node: Any = fx.Node


def find_live(
    steps: Sequence[Step], outputs: Sequence[Any], origins: SymbolOrigins
) -> tuple[set[Step | None], set[Value]]:
    """The steps that the outputs, or the world (random numbers), depend on, and the values read."""
    found: set[Step | None] = set()
    read: set[Value] = set()
    numbers: set[Any] = set()
    several: set[int] = set()

    def need(value: Any) -> None:
        cls = value.__class__
        if cls is Value:
            read.add(value)
            if value.step is not None:
                found.add(value.step)
        elif cls is list or cls is tuple or cls is Operands:
            if cls is tuple:  # the log has one of each
                if id(value) in several:
                    return
                several.add(id(value))
            for v in value:
                if v.__class__ in _BUILT:
                    need(v)
        elif (cls is Expr or cls is BoolExpr or cls is Real) and value not in numbers:
            numbers.add(value)
            for source in number_sources(value):
                if source in origins:
                    need(origins[source].value)
        elif cls is NumberValue:
            found.add(value.step)

    need(list(outputs))
    for step in reversed(steps):  # what a step reads was made before it
        if step in found or acts(step):
            found.add(step)
            args, tensors = step.args, step.tensors
            if tensors is not None:
                for i in tensors:
                    read.add(args[i])
                    found.add(args[i].step)
                continue
            for arg in args:
                if arg.__class__ in _BUILT:
                    if arg.__class__ is Value:  # `need`, with what is most common inlined
                        read.add(arg)
                        found.add(arg.step)
                    elif id(arg) not in several:
                        need(arg)
            if step.kwargs:
                need(list(step.kwargs.values()))
    return found, read


def acts(step: Step) -> bool:
    """Does it do something beside computing, or does a graph that it takes?"""
    if has_effect(step.target):
        return True
    if step.result.__class__ is Value or step.target.__class__ is OpOverload:
        return False
    graphs = [a for a in step.args if a.__class__ is InnerGraph]
    return any(graph.demands or any(map(acts, graph.region.steps)) for graph in graphs)


def make_argument_spec(value: Any, arg: Any) -> ArgumentSpec:
    if isinstance(value, Value):
        return TensorArgument(arg.name)
    if not isinstance(arg, fx.Node):
        return ConstantArgument("", value)
    if isinstance(value, Real):
        return SymFloatArgument(arg.name)
    is_bool = isinstance(value, BoolExpr)
    return SymBoolArgument(arg.name) if is_bool else SymIntArgument(arg.name)
