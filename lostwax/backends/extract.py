"""Makes a program of a part of a graph: what a backend is given.

State that the part only reads is the new program's own; state that the outer program writes, and
all other values, are inputs. Must not change the outer program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_structure

from lostwax.classes import SYMBOLIC
from lostwax.errors import LoweringError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.graph.graph_module import ReadableModule
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import GraphWriter
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from lostwax.ir.text import source_place

STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Part:
    """A part of a graph: its nodes, the values that it is given, and those that others read."""

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]
    program: ExportedProgram


def find_constants(program: ExportedProgram) -> dict[Node, InputSpec]:
    """The state that the program does not write, by its placeholder."""
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind is not OutputKind.USER_OUTPUT}
    placeholders = program.graph.find_nodes(op="placeholder")
    return {
        node: spec
        for node, spec in zip(placeholders, signature.input_specs, strict=True)
        if spec.kind in STATE and spec.target not in written
    }


def extract_part(
    program: ExportedProgram,
    nodes: Sequence[Node],
    constants: Mapping[Node, InputSpec],
    shared: Set[Node] = frozenset(),
) -> Part:
    """The part that these nodes are, in order of the graph, with those of the `shared` nodes that
    it reads."""
    inside = _add_shared(nodes, shared)
    nodes = [n for n in program.graph.nodes if n in inside]
    outputs = [n for n in nodes if n not in shared and _is_read_outside(n, inside, shared)]
    for node in outputs:
        if not isinstance(node.meta.get("val"), FakeTensor):
            raise LoweringError.at(
                f"the result {node.name!r} of a delegate is no tensor",
                source_place(node),
                why="a delegate returns tensors",
                instead="a part with all that reads it",
            )
    inside.update(n for node in nodes for n in node.all_input_nodes if n.op == "get_attr")
    given = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    held = [n for n in given if n in constants]
    tensors = [n for n in given if n not in constants and not _is_number(n)]
    numbers = [n for n in given if _is_number(n)]
    pulled = _pull_numbers(numbers, inside.union(tensors, held))
    inputs = tensors + [n for n in numbers if n not in pulled]
    body = [n for n in program.graph.nodes if n in inside or n in pulled]
    return Part(list(nodes), inputs, outputs, _write(program, body, held, inputs, outputs))


def _add_shared(nodes: Sequence[Node], shared: Set[Node]) -> set[Node]:
    """The nodes, and what they read of the shared ones, however far back."""
    inside, todo = set(nodes), list(nodes)
    while todo:
        more = [n for n in todo.pop().all_input_nodes if n in shared and n not in inside]
        inside.update(more)
        todo += more
    return inside


def _is_read_outside(node: Node, inside: Set[Node], shared: Set[Node]) -> bool:
    """Does another part read it, or what it computes for itself from it of the shared nodes?"""
    todo = list(node.users)
    while todo:
        user = todo.pop()
        if user not in inside:
            return True
        todo += user.users if user in shared else ()
    return False


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), SYMBOLIC)


def _pull_numbers(numbers: Sequence[Node], known: set[Node]) -> set[Node]:
    """The numbers, and what they are computed from, that the part can compute itself: from sizes
    of tensors that it has."""
    pulled: set[Node] = set()
    for number in numbers:
        needed = set(_trace_back(number, known))
        if all(n in known or n.op == "call_function" for n in needed):
            pulled |= {n for n in needed if n not in known}
    return pulled


def _trace_back(number: Node, known: set[Node]) -> Iterator[Node]:
    """The number and all that it is computed from, up to what is known."""
    todo, seen = [number], {number}
    while todo:
        node = todo.pop()
        yield node
        if node in known or (node is not number and not _is_number(node)):
            if node not in known:
                yield node.graph.output_node()  # a tensor that the part does not have
            continue
        todo += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)


def _write(
    program: ExportedProgram,
    body: Sequence[Node],
    held: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
) -> ExportedProgram:
    writer = GraphWriter()
    new: dict[Node, Node] = {}
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    held = sorted(held, key=order.__getitem__)
    for node in (*held, *inputs):
        new[node] = writer.append_ready("placeholder", node.name, node.name, (), ())
        new[node].meta.update({"val": node.meta["val"]})
    children: dict[str, Any] = {}
    for node in body:
        if node.op == "get_attr":  # a body of control flow
            children[str(node.target)] = find_attribute(program.graph_module, str(node.target))
        args, kwargs = map_arg((node.args, node.kwargs), new.__getitem__)
        new[node] = writer.append(node.op, node.name, node.target, args, kwargs)
        new[node].meta.update(node.meta)
    results = tuple(new[n] for n in outputs)
    writer.append("output", "output", "output", (results,), {})
    module = ReadableModule(children, writer.finish())
    specs = dict(zip(program.graph.find_nodes(op="placeholder"), _specs(program), strict=True))
    taken = [specs[n] for n in held]
    given = [InputSpec(InputKind.USER_INPUT, make_argument(n), None) for n in inputs]
    returned = [TensorArgument(n.name) for n in outputs]
    names = {str(s.target) for s in taken}
    call = ModuleCallSignature(
        [s.arg for s in given],
        list(returned),
        tree_structure(((0,) * len(given), {})),
        tree_structure((0,) * len(returned)),
        [n.name for n in inputs],
    )
    return ExportedProgram(
        graph_module=module,
        graph_signature=ExportGraphSignature(
            [*taken, *given], [OutputSpec(OutputKind.USER_OUTPUT, r, None) for r in returned]
        ),
        state_dict={k: v for k, v in program.state_dict.items() if k in names},
        constants={k: v for k, v in program.constants.items() if k in names},
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", call)],
        dialect=program.dialect,
    )


def _specs(program: ExportedProgram) -> list[InputSpec]:
    return program.graph_signature.input_specs


def make_argument(node: Any) -> Any:
    """How a signature names a value of a graph."""
    if not isinstance(node, Node):
        return ConstantArgument("", node)
    value = node.meta["val"]
    kinds = {
        torch.SymInt: SymIntArgument,
        torch.SymFloat: SymFloatArgument,
        torch.SymBool: SymBoolArgument,
    }
    return kinds.get(type(value), TensorArgument)(node.name)
