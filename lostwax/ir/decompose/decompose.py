"""Decomposing: replaces the calls of a program that a table takes apart; the others stay.

It goes node by node, without running or tracing the program again. An expansion is recorded once
for each distinct call (target, types and values of the arguments) and replayed for equal ones. Must
not change the program it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from torch import no_grad
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from lostwax import collector
from lostwax.fake.autocast import without_autocast
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.data import TAKEN_APART, Program
from lostwax.ir.decompose.core_aten import as_table, find_advice
from lostwax.ir.decompose.expander import Decomposition
from lostwax.ir.decompose.expansion import Expansion, Expansions
from lostwax.ir.decompose.gaps import find_closed
from lostwax.ir.graph.cse import call_key
from lostwax.ir.graph.delegate import refuse_delegates
from lostwax.ir.graph.effects import has_effect, visible_nodes
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.graph.numbers import SeenNumbers
from lostwax.ir.graph.retype import mode_of, same_type
from lostwax.ir.graph.rewriter import GraphRewriter, rename_arguments, rename_call
from lostwax.ir.graph.writer import base_name
from lostwax.ir.signature import ExportGraphSignature
from lostwax.ir.trace.log import Value
from lostwax.location import warn
from lostwax.ops.registry import aten
from lostwax.ops.registry import operator as record
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.numbers.real import Real
from lostwax.undo.undo import Undo, run_and_undo


class Origin(NamedTuple):
    """A call that was taken apart: the node's name, and its operator. The nodes that stand for it
    have it, after earlier ones, in `meta["decomposed_from"]`."""

    name: str
    target: OpOverload


AnyProgram = TypeVar("AnyProgram", bound=Program)


def decompose_program(
    program: AnyProgram,
    table: Mapping[OpOverload, Decomposition] | None = None,
    *,
    are_strides_seen: bool = True,
) -> AnyProgram:
    """Take the operators of the table apart; without a table, decompose to core ATen.
    `are_strides_seen=False`: for a dialect that chooses layouts itself."""
    if program.dialect != "ATEN":
        refuse_delegates(program.graph_module, "run_decompositions()")
    mode = mode_of(program.graph)
    expansions = Expansions(as_table(table), mode, are_strides_seen)
    if table is not None:
        _warn_of_taken_apart(program, table)

    # The expander is entered once: entering it costs as much as recording an expansion.
    def rewrite(undo: Undo) -> tuple[GraphModule, dict[str, str]]:
        collector.pause(undo.add)
        with no_grad(), without_autocast(), expansions.expander:
            graphs = _Rewriter(program.graph_module, expansions, mode, program.named_by_calls)
            return graphs.run(), graphs.names

    module, names = run_and_undo(rewrite)
    signature = program.graph_signature
    return replace(
        program,
        graph_module=module,
        graph_signature=ExportGraphSignature(
            list(signature.input_specs),
            rename_arguments(signature.output_specs, names),
        ),
        module_call_graph=[rename_call(e, names) for e in program.module_call_graph],
    )


def _warn_of_taken_apart(program: Program, table: Mapping[OpOverload, Decomposition]) -> None:
    """Warn if the table speaks of composite operators that the program does not call any more."""
    nodes = list(all_nodes(program.graph_module))
    origins = [o.target for node in nodes for o in node.meta.get("decomposed_from", ())]
    called = {node.target for node in nodes}
    taken = dict.fromkeys((*program.graph_module.meta.get(TAKEN_APART, ()), *origins))
    unused = [(op, said) for op in taken if op not in called and (said := find_advice(table, op))]
    if unused:
        op, said = unused[0]
        others = f" (and {len(unused) - 1} others)" if len(unused) > 1 else ""
        warn(
            f"the program does not call {op}{others}, of which the table {said}: it was taken "
            "apart before, by export or by other decompositions\n"
            f"  instead: keep it at export, keep=[torch.ops.{op}]; or all of them, "
            'keep="composite"'
        )


class _Rewriter(GraphRewriter):
    """Writes the new graph of one module."""

    def __init__(
        self,
        module: GraphModule,
        expansions: Expansions,
        mode: FakeTensorMode,
        wanted: Container[str] = (),
    ) -> None:
        """The values of the nodes `wanted` stay, even if nobody reads them."""
        super().__init__(module)
        self.expansions, self.mode, self.wanted = expansions, mode, wanted
        self._numbers = SeenNumbers(self._emit_number)
        if mode.shape_env is not None and mode.shape_env.symbols:
            self.note = self._numbers.note
        self._equal: dict[Any, Node] = {}
        """The new calls by target and arguments, so that nothing is computed twice."""
        self._made: list[Node] = []
        self._shown = _nodes_kept_apart(module.graph, self.nodes)
        self._closed: dict[Node, Node] = {}
        """Memories with gaps that are left out, and what was put there."""
        self._meta: dict[str, Any] = {}

    def finish(self) -> GraphModule:
        made = super().finish()
        if any(not n.users and not has_effect(n.target) for n in self._made):
            self._remove_unread(made.graph)
        return made

    def _remove_unread(self, graph: Graph) -> None:
        """Remove the nodes that expansions made and nobody reads."""
        kept = {id(self.new[n]) for n in self.nodes if n.name in self.wanted}
        for node in reversed(self._made):
            if not node.users and not has_effect(node.target) and id(node) not in kept:
                graph.erase_node(node)

    def rewrite_child(self, child: GraphModule) -> GraphModule:
        return _Rewriter(child, self.expansions, self.mode).run()

    def rewrite_call(self, node: Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            parts = self.new[node.args[0]]  # type: ignore[index]
            if not isinstance(parts, Node):
                self.replace(node, parts[node.args[1]])
                return
        elif target is aten.as_strided_scatter.default:
            self._rewrite_gaps(node)
            return
        elif target is aten.as_strided.default and node.args[0] in self._closed:
            self.replace(node, self.new[self._closed[node.args[0]]])  # type: ignore[index]
            return
        elif isinstance(target, OpOverload) and self.expansions.takes(target):
            expansion = self.expansions.find(node, node in self._shown)
            if expansion is not None and self._is_computable(expansion):
                self._expand(node, expansion)
                return
        self._keep(node)

    def _rewrite_gaps(self, node: Node) -> None:
        """Leave out a memory with gaps, if nobody sees them."""
        are_seen = self.expansions.are_strides_seen
        source = find_closed(node, self.mode, are_seen)
        if source is None or (node in self._shown and (are_seen or source in self._shown)):
            self._keep(node)
            return
        self._closed[node] = source
        memory = self.new[node.args[0]]  # type: ignore[index]
        if isinstance(memory, Node) and memory not in self._made:
            self._made.append(memory)  # perhaps nobody reads it now

    def _is_computable(self, expansion: Expansion) -> bool:
        """Can the graph so far compute the numbers that the expansion needs? A sub-graph does not
        have all the sizes that the program has."""
        return all(map(self._numbers.is_known, expansion.numbers))

    def _keep(self, node: Node) -> None:
        """Copy a call that stays, unless the same was computed before."""
        args, kwargs = self.map_arguments(node)
        if has_effect(node.target) or isinstance(node.target, HigherOrderOperator):
            self.put(node, node.target, args, kwargs)
            return
        key = call_key(node.target, args, kwargs)
        found = self._equal.get(key)
        if (
            found is None
            or node in self._shown
            or not same_type(found.meta.get("val"), node.meta.get("val"))  # two `nonzero`s
        ):
            self._equal[key] = self.put(node, node.target, args, kwargs)
        else:
            self.replace(node, found)

    # ----------------------------------------------------------------------------------- expansions

    def _expand(self, node: Node, expansion: Expansion) -> None:
        self._meta = dict(node.meta)
        self._meta.pop("val", None)
        self._meta["decomposed_from"] = (
            *node.meta.get("decomposed_from", ()),
            Origin(node.name, node.target),  # type: ignore[arg-type]
        )
        merge = node not in self._shown
        nodes: dict[Value, Any] = {}
        for value, given in zip(expansion.inputs, tensor_arguments(node), strict=True):
            nodes[value] = self.new[given]
        for step in expansion.steps:
            args = tuple([self._operand(a, nodes) for a in step.args])
            kwargs = {k: self._operand(v, nodes) for k, v in step.kwargs.items()}
            made = self._emit(step.target, args, kwargs, merge)
            if "val" not in made.meta:
                made.meta["val"] = _make_values(step.result, expansion.memory, nodes, self.mode)
                if self.note is not None:
                    self.note(made, made.meta["val"])
            if step is expansion.whole:
                self.replace(node, made)
            if isinstance(step.result, Value):
                nodes[step.result] = made
            else:
                for value in expansion.read[step]:
                    nodes[value] = self._emit_item(made, value, merge)
        if expansion.whole is None:
            self.replace(node, self._operand(expansion.results, nodes))

    def _emit(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], merge: bool
    ) -> Node:
        """Return a new call, or an earlier one that computes the same."""
        key = None if has_effect(target) else call_key(target, args, kwargs)
        found = self._equal.get(key) if merge and key is not None else None
        if found is not None:
            return found
        node = self.writer.append(
            "call_function", self.writer.free_name(base_name(target)), target, args, kwargs
        )
        node.meta.update(self._meta)
        self._made.append(node)
        if key is not None:
            self._equal.setdefault(key, node)
        return node

    def _emit_item(self, made: Node, value: Value, merge: bool) -> Node:
        for place in value.index if isinstance(value.index, tuple) else (value.index,):
            val = made.meta["val"][place]
            made = self._emit(operator.getitem, (made, place), {}, merge)
            made.meta.setdefault("val", val)
        return made

    def _emit_number(self, target: Any, args: tuple[Any, ...]) -> Node:
        return self._emit(target, args, {}, True)

    def _operand(self, value: Any, nodes: dict[Value, Any]) -> Any:
        cls = value.__class__
        if cls is Value:
            return nodes[value]
        if cls is list or cls is tuple:
            return immutable_list([self._operand(v, nodes) for v in value])
        if cls is Expr or cls is BoolExpr or cls is Real:
            return self._numbers.node(value)
        return value


def _make_values(
    result: Any, memory: Mapping[Value, Value], nodes: Mapping[Value, Any], mode: FakeTensorMode
) -> Any:
    """Make fakes for what a step returns; a view shares the storage of its base."""
    if isinstance(result, Value):
        assert result.type is not None
        shown = nodes.get(memory[result])
        fake = shown.meta["val"] if isinstance(shown, Node) else None
        storage = fake.fake_storage if isinstance(fake, FakeTensor) else None
        return new_fake(mode, result.type, storage)
    if isinstance(result, (list, tuple)):
        return type(result)([_make_values(r, memory, nodes, mode) for r in result])
    return result


def tensor_arguments(node: Node) -> list[Node]:
    """The tensors among the arguments of a call, in order, with repetitions."""
    found: list[Node] = []
    _collect(node.args, found)
    if node.kwargs:
        _collect(list(node.kwargs.values()), found)
    return found


def _collect(values: Sequence[Any], found: list[Node]) -> None:
    for value in values:
        if isinstance(value, Node):
            if isinstance(value.meta.get("val"), FakeTensor):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)


def _nodes_kept_apart(graph: Graph, nodes: list[Node]) -> set[Node]:
    """The nodes that must share memory with no other: those whose memory the caller sees; or all,
    if the graph writes in place."""
    targets = {id(t): t for t in [n.target for n in nodes]}  # torch hashes overloads in Python
    if any(isinstance(t, OpOverload) and record(t).mutates for t in targets.values()):
        return set(nodes)
    return visible_nodes(graph)
