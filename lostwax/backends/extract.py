"""Makes a program of a part of a graph: what a backend is given.

State that the part only reads is the new program's own; state that the outer program writes, and
all other values, are inputs. Must not change the outer program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_structure

from lostwax.classes import SYMBOLIC
from lostwax.errors import LoweringError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.graph.delegate import find_guards
from lostwax.ir.graph.rewriter import GraphRewriter, argument_of, hold
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    ArgumentSpec,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
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
    held = [n for n in constants if n in given]
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
    part = GraphRewriter(program.graph_module, body)
    for node in (*held, *inputs):
        given = part.writer.append_ready("placeholder", node.name, node.name, (), ())
        given.meta["val"] = node.meta["val"]
        part.new[node] = given
    for node in body:
        part.write[node.op](node)
    part.writer.append("output", "output", "output", (tuple(part.new[n] for n in outputs),), {})
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = dict(zip(placeholders, program.graph_signature.input_specs, strict=True))
    taken = [specs[n] for n in held]
    asked = [InputSpec(InputKind.USER_INPUT, argument_of(n), None) for n in inputs]
    made = make_program(program, part.finish(), [*taken, *asked], list(map(argument_of, outputs)))
    state, constants = hold(program, taken)
    return replace(made, state_dict=state, constants=constants)


def make_program(
    program: ExportedProgram,
    module: GraphModule,
    inputs: list[InputSpec],
    returned: list[ArgumentSpec],
) -> ExportedProgram:
    """A program of a graph, with the state of another; it returns these values in a tuple."""
    given = [spec.arg for spec in inputs if spec.kind is InputKind.USER_INPUT]
    call = ModuleCallSignature(
        given,
        returned,
        tree_structure(((0,) * len(given), {})),
        tree_structure((0,) * len(returned)),
        [str(a.name) for a in given],
    )
    results = [OutputSpec(OutputKind.USER_OUTPUT, each, None) for each in returned]
    return ExportedProgram(
        graph_module=module,
        graph_signature=ExportGraphSignature(inputs, results),
        state_dict=program.state_dict,
        constants=program.constants,
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", call)],
        dialect=program.dialect,
        guards=find_guards(program.guards, module),
    )
