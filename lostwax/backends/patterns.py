"""Operators of a backend's own: each stands for a pattern of Edge operators, and is one call in the
parts that the backend is given.

A pattern is a function, which is traced to a small graph. Where a program has the same calls, and
nothing else reads what is between them, they become one call. Must not choose parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from lostwax.backends.extract import find_constants
from lostwax.capture.export import export
from lostwax.dialects.edge_operators import EdgeOperator, edge_operator
from lostwax.dialects.manager import to_edge
from lostwax.errors import LoweringError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.handles import HANDLE, join_handles
from lostwax.ir.graph.rewriter import GraphRewriter
from lostwax.ir.program import ExportedProgram
from lostwax.ops.dialect_operator import overload_of

Binding = dict[Node, Node]
"""The node of the program for each node of a pattern."""


class BackendOperator:
    """An operator under a name of a backend, `"mybackend::fused"`, that computes what a function
    does. The function is traced with the example inputs, which are tensors; it returns one tensor.
    Sizes that stand in its calls must be those of a program, other sizes need not."""

    def __init__(
        self, name: str, function: Callable[..., Any], inputs: Sequence[torch.Tensor]
    ) -> None:
        if not re.fullmatch(r"(?!aten::)[A-Za-z_]\w*::[A-Za-z_]\w*", str(name)):
            raise LoweringError(
                f"{name!r} cannot be the name of a backend's operator\n  instead: a namespace of "
                'the backend\'s and a name, "mybackend::fused"'
            )
        if not isinstance(inputs, (list, tuple)) or not all(
            isinstance(each, torch.Tensor) for each in inputs
        ):
            raise LoweringError(
                f"the example inputs of {name!r} are no tuple of tensors"
                "\n  instead: (torch.ones(2),)"
            )
        self.name = name
        program = to_edge(export(function, tuple(inputs))).exported_program()
        self.program = program
        constants = find_constants(program)
        data = {**program.state_dict, **program.constants}
        self.constants = {n: data[str(s.target)] for n, s in constants.items()}
        """The constants of the pattern, which a program must have, too."""
        placeholders = program.graph.find_nodes(op="placeholder")
        self.inputs = [n for n in placeholders if n not in constants]
        self.anchor = self._find_anchor()
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        self.operator = _define(self)

    def _find_anchor(self) -> Node:
        """The call whose result the pattern returns."""
        results: Any = self.program.graph.output_node().args[0]
        anchor = results[0] if len(results) == 1 else None
        if not isinstance(anchor, Node) or anchor.op != "call_function":
            raise self._refuse("it returns the result of a single call")
        unread = [n.name for n in self.inputs if not n.users]
        if unread:
            raise self._refuse(f"it reads all its inputs; nothing reads {unread[0]!r}")
        return anchor

    def _refuse(self, what: str) -> LoweringError:
        return LoweringError(f"the pattern of {self.name!r} is not one: {what}")

    def compute(self, *inputs: Any) -> Any:
        """Compute the calls of the pattern."""
        with torch.no_grad():
            state = [t.to(inputs[0].device) for t in self.constants.values()]
            return Interpreter(self.program.graph_module).run(*state, *inputs)[0]

    def __repr__(self) -> str:
        return f"BackendOperator({self.name!r})"


_defined: dict[str, tuple[str, torch.library.Library]] = {}


def _define(made: BackendOperator) -> EdgeOperator:
    """The operator as torch knows it; the same pattern may be given again."""
    namespace, name = made.name.split("::")
    text = "".join(made.program.graph_module.code) + repr(list(made.constants.values()))
    if made.name in _defined and _defined[made.name][0] != text:
        raise LoweringError(f"{made.name!r} stands for another pattern already")
    if made.name not in _defined:
        if hasattr(getattr(torch.ops, namespace), name):
            raise LoweringError(f"torch has an operator {made.name!r} already")
        library = torch.library.Library(namespace, "FRAGMENT")
        arguments = ", ".join(f"Tensor {n.name}" for n in made.inputs)
        library.define(f"{name}({arguments}) -> Tensor")
        library.impl(name, made.compute, "CompositeExplicitAutograd")
        _defined[made.name] = text, library  # what a library defines lives as long as it
    return edge_operator(getattr(getattr(torch.ops, namespace), name).default)


# ------------------------------------------------------------------------------- in programs


def fuse_patterns(
    program: ExportedProgram, operators: Sequence[BackendOperator], but: Collection[str] = ()
) -> ExportedProgram:
    """The program with one call in the place of each pattern, but for those whose last node has one
    of these names. Of patterns that overlap, the one with more calls is taken."""
    constants = _find_values(program)
    fused: dict[Node, tuple[BackendOperator, Binding]] = {}
    inside: set[Node] = set()
    for each in sorted(operators, key=lambda o: len(o.calls), reverse=True):
        for node in reversed(program.graph.nodes):
            if node.name in but:
                continue
            binding = _find_match(each, node, constants)
            members = {binding[call] for call in each.calls} if binding is not None else set()
            if binding is not None and not members & inside:
                fused[node] = each, binding
                inside |= members
    if not fused:
        return program
    left = [n for n in program.graph.nodes if n not in inside or n in fused]
    return replace(program, graph_module=_Fusing(program.graph_module, left, fused).run())


def _find_values(program: ExportedProgram) -> dict[Node, Any]:
    """The constants of a program, by their nodes."""
    data = {**program.state_dict, **program.constants}
    return {n: data[str(s.target)] for n, s in find_constants(program).items()}


def _find_match(
    pattern: BackendOperator, node: Node, constants: Mapping[Node, Any]
) -> Binding | None:
    """What the nodes of the pattern are in the program, if its last call is this node, and nobody
    else reads what is between."""
    for binding in _match(pattern, pattern.anchor, node, {}, constants):
        members = {binding[call] for call in pattern.calls}
        read = (user for member in members if member is not node for user in member.users)
        if all(user in members for user in read):
            return binding
    return None


def _match(
    pattern: BackendOperator, one: Any, other: Any, binding: Binding, constants: Mapping[Node, Any]
) -> Iterator[Binding]:
    """All ways in which a value of the program may be that of the pattern, beside what is known."""
    if isinstance(one, (list, tuple)):
        if isinstance(other, (list, tuple)) and len(one) == len(other):
            yield from _match_all(pattern, list(zip(one, other, strict=True)), binding, constants)
    elif not isinstance(one, Node):
        if one.__class__ is other.__class__ and one == other:
            yield binding
    elif not isinstance(other, Node):
        return
    elif one in binding:
        if binding[one] is other:
            yield binding
    elif one in pattern.constants:
        if _is_equal(pattern.constants[one], other, constants):
            yield {**binding, one: other}
    elif one.op == "placeholder":
        if isinstance(other.meta.get("val"), FakeTensor):
            yield {**binding, one: other}
    elif one.target is other.target and one.kwargs.keys() == other.kwargs.keys():
        bound = {**binding, one: other}
        named = [(one.kwargs[key], other.kwargs[key]) for key in one.kwargs]
        for args in _list_orders(other):
            if len(args) == len(one.args):
                pairs = [*zip(one.args, args, strict=True), *named]
                yield from _match_all(pattern, pairs, bound, constants)


def _match_all(
    pattern: BackendOperator,
    pairs: Sequence[tuple[Any, Any]],
    binding: Binding,
    constants: Mapping[Node, Any],
) -> Iterator[Binding]:
    if not pairs:
        yield binding
        return
    (one, other), *rest = pairs
    for bound in _match(pattern, one, other, binding, constants):
        yield from _match_all(pattern, rest, bound, constants)


_EITHER_WAY = ("aten::add.Tensor", "aten::mul.Tensor")


def _list_orders(node: Node) -> list[tuple[Any, ...]]:
    """The arguments, also the other way round where that computes the same."""
    args = tuple(node.args)
    is_plain = not node.kwargs and len(args) == 2
    if is_plain and getattr(node.target, "name", str)() in _EITHER_WAY:
        return [args, args[::-1]]
    return [args]


def _is_equal(wanted: torch.Tensor, node: Node, constants: Mapping[Node, Any]) -> bool:
    """Is a value of the program this constant?"""
    found = constants.get(node)
    overload = overload_of(node.target)
    if found is None and overload is torch.ops.aten.full.default and not node.all_input_nodes:
        found = overload(*node.args, **node.kwargs)
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
        return False
    if found.dtype is not wanted.dtype or found.device.type == "meta":
        return False
    return torch.equal(found.detach(), wanted.detach())


class _Fusing(GraphRewriter):
    """Writes the graph in which patterns are single calls."""

    def __init__(
        self,
        module: GraphModule,
        left: Sequence[Node],
        fused: Mapping[Node, tuple[BackendOperator, Binding]],
    ) -> None:
        super().__init__(module, left)
        self.fused = fused

    def rewrite_call(self, node: Node) -> None:
        if node not in self.fused:
            self.copy(node)
            return
        each, binding = self.fused[node]
        inputs = tuple(self.new[binding[n]] for n in each.inputs)
        made = self.put(node, each.operator, inputs, {})
        made.meta[HANDLE] = join_handles(binding[call] for call in each.calls)
