"""Hands parts of programs to backends: each becomes a delegate, and one call of it.

What a backend returns stands in the new program; the old one stays as it is. Must not know which
backends there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

from torch.fx import GraphModule, Node

from lostwax.backends.asking import ask_backend, ask_partitioner, require_partitioner
from lostwax.backends.bodies import lower_bodies
from lostwax.backends.extract import Part, extract_part, find_constants
from lostwax.backends.order import order_steps
from lostwax.backends.partition import Partitioner, PartitionResult, follows_producer, is_operator
from lostwax.backends.patterns import fuse_patterns
from lostwax.backends.report import note_reason
from lostwax.backends.spec import DelegationSpec
from lostwax.dialects.manager import EdgeProgramManager
from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import CALL_DELEGATE, LoweredBackendModule
from lostwax.ir.graph.rewriter import GraphRewriter, hold
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import ExportGraphSignature

Partitioners = Partitioner | Sequence[Partitioner]


def lower_methods(
    edge: EdgeProgramManager, partitioner: Partitioners | Mapping[str, Partitioners]
) -> EdgeProgramManager:
    """The methods with parts handed to backends; see `EdgeProgramManager.to_backend`."""
    programs = {name: edge.exported_program(name) for name in edge.methods}
    if isinstance(partitioner, Mapping):
        for name in partitioner:
            edge.exported_program(name)
        chosen = dict(partitioner)
    else:
        chosen = dict.fromkeys(programs, partitioner)
    for name, several in chosen.items():
        for each in several if isinstance(several, (list, tuple)) else (several,):
            programs[name] = lower_program(programs[name], require_partitioner(each, name))
    return EdgeProgramManager(programs, edge.constant_methods, edge.config, edge.whole)


def lower_program(program: ExportedProgram, partitioner: Partitioner) -> ExportedProgram:
    """The program with the parts that the partitioner chooses as delegates, also in the bodies of
    control flow."""
    return _lower(program, partitioner, is_body=False)


def _lower(program: ExportedProgram, partitioner: Partitioner, is_body: bool) -> ExportedProgram:
    fused, result = _partition(program, partitioner)
    result = replace(result, tags=_complete_tags(fused, result))
    ready, result = lower_bodies(
        fused, result, lambda body: _lower(body, partitioner, is_body=True)
    )
    return _Rewriting(ready, result, _find_freed(program, ready), is_body).lower()


def _partition(
    program: ExportedProgram, partitioner: Partitioner
) -> tuple[ExportedProgram, PartitionResult]:
    """What the partitioner says of the program, in which patterns are calls of the backend's own
    operators. One that it does not take is what it was before."""
    left: set[str] = set()
    while True:
        fused = fuse_patterns(program, partitioner.operators, left)
        result = ask_partitioner(partitioner, fused)
        own = {each.operator for each in partitioner.operators}
        more = {n.name for n in fused.graph.nodes if n.target in own and n not in result.tags}
        if not more:
            return fused, result
        left |= more


def _find_freed(program: ExportedProgram, ready: ExportedProgram) -> set[Node]:
    """The inputs that are read in a program, and in what was made of it are not."""
    read = {n.name for n in program.graph.find_nodes(op="placeholder") if n.users}
    inputs = ready.graph.find_nodes(op="placeholder")
    return {n for n in inputs if n.name in read and not n.users}


def _complete_tags(program: ExportedProgram, result: PartitionResult) -> dict[Node, str]:
    """The tags, also of what reads one of several results; refuse those that mean nothing."""
    nodes = set(program.graph.nodes)
    for node, tag in result.tags.items():
        if node not in nodes or node.op != "call_function":
            raise LoweringError(
                f"the partitioner takes {getattr(node, 'name', node)!r}, which is no call of the "
                "program's graph\n  instead: calls alone; constants follow who reads them"
            )
        if not isinstance(result.specs.get(tag), DelegationSpec):
            raise LoweringError(
                f"the tag {tag!r} has no DelegationSpec\n  instead: specs={{{tag!r}: "
                "DelegationSpec(backend)}"
            )
    tags = dict(result.tags)
    for node in program.graph.nodes:
        if follows_producer(node) and (node in tags or node.args[0] in tags):
            source: Any = node.args[0]
            tags.pop(node, None)
            if source in tags:
                tags[node] = tags[source]
    return tags


class _Rewriting(GraphRewriter):
    """Writes the graph in which the parts are calls."""

    def __init__(
        self,
        program: ExportedProgram,
        result: PartitionResult,
        freed: set[Node],
        is_body: bool,
    ) -> None:
        super().__init__(program.graph_module)
        self.program, self.result, self.freed, self.is_body = program, result, freed, is_body
        self.tags = tags = result.tags
        self.constants = find_constants(program)
        members: dict[str, list[Node]] = {}
        for node in program.graph.nodes:
            if node in tags:
                members.setdefault(tags[node], []).append(node)
        self.steps = order_steps(program.graph, tags)
        self.parts = {
            tag: extract_part(program, nodes, self.constants, result.shared)
            for tag, nodes in members.items()
        }

    def lower(self) -> ExportedProgram:
        kept = self._find_kept()
        for step in self.steps:
            if isinstance(step, str):
                self._write_call(self.parts[step], self.result.specs[step])
            elif step in kept:
                self.write[step.op](step)
        return self._make_program(self.finish(), kept)

    def _find_kept(self) -> set[Node]:
        """The nodes that stay: all but those of the parts, and what these alone read of state, of
        sub-graphs and of shared nodes. A body keeps its inputs, as the call gives them."""
        kept: set[Node] = set()
        for node in reversed(self.program.graph.nodes):
            is_free = node in self.constants or node in self.result.shared or node.op == "get_attr"
            if self.is_body and node.op == "placeholder":
                is_free = False
            is_unread = not node.users and node not in self.freed
            if node not in self.tags and (
                not is_free or is_unread or any(user in kept for user in node.users)
            ):
                kept.add(node)
        return kept

    def rewrite_call(self, node: Node) -> None:
        copy = self.copy(node)
        if is_operator(node):
            note_reason(copy, self.result.reasons.get(node, "the partitioner gives no reason"))

    def _write_call(self, part: Part, spec: DelegationSpec) -> None:
        if not part.outputs:  # nothing reads what it computes
            return
        name = self._free_child()
        self.children[name] = _preprocess(part.program, spec)
        source = self.writer.append("get_attr", self.writer.free_name(name), name, (), {})
        args = (source, *(self.new[n] for n in part.inputs))
        values = tuple(n.meta["val"] for n in part.outputs)
        call = self.add(part.outputs[-1], CALL_DELEGATE, args, {}, values)
        for i, node in enumerate(part.outputs):
            self.put(node, getitem, (call, i), {})

    def _free_child(self) -> str:
        taken = {str(n.target) for n in self.program.graph.find_nodes(op="get_attr")}
        taken.update(self.children)
        numbers = range(len(taken) + 1)
        return next(n for i in numbers if (n := f"lowered_module_{i}") not in taken)

    def _make_program(self, module: GraphModule, kept: set[Node]) -> ExportedProgram:
        program = self.program
        nodes = program.graph.find_nodes(op="placeholder")
        pairs = zip(nodes, program.graph_signature.input_specs, strict=True)
        specs = [spec for node, spec in pairs if node in kept]
        state, constants = hold(program, specs)
        return replace(
            program,
            graph_module=module,
            graph_signature=ExportGraphSignature(specs, program.graph_signature.output_specs),
            state_dict=state,
            constants=constants,
        )


def _preprocess(program: ExportedProgram, spec: DelegationSpec) -> LoweredBackendModule:
    backend, payload = ask_backend(program, spec)
    return LoweredBackendModule(
        program,
        backend.backend_id,
        bytes(payload.data),
        spec.compile_specs,
        payload.named_data,
        backend,
        payload.events,
    )
