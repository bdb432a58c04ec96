"""A program without delegates: what each computes stands in the place of its calls.

Who reads programs and knows no backend reads that: records for debugging. Must not change the
program that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import getitem
from typing import Any, TypeVar

from torch.fx import Graph, GraphModule, Node

from lostwax.ir.data import Program
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.delegate import LoweredBackendModule, find_delegates
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.rewriter import GraphRewriter, rename_arguments, rename_call
from lostwax.ir.signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

AnyProgram = TypeVar("AnyProgram", bound=Program)


def inline_delegates(program: AnyProgram) -> AnyProgram:
    """The program with what delegates compute in their place; their weights are constants of it.
    Delegates in branches and loops stay."""
    if not any(True for _ in find_delegates(program.graph)):
        return program
    inlining = _Inlining(program)
    module = inlining.run()
    signature = program.graph_signature
    first = len(signature.input_specs) - len(signature.user_inputs)
    specs = list(signature.input_specs)
    specs[first:first] = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name)
        for name in inlining.constants
    ]
    made: AnyProgram = replace(
        program,
        graph_module=module,
        graph_signature=ExportGraphSignature(
            specs, rename_arguments(signature.output_specs, inlining.names)
        ),
        module_call_graph=[rename_call(each, inlining.names) for each in program.module_call_graph],
        constants={**program.constants, **inlining.constants},
    )
    return made


class _Inlining(GraphRewriter):
    """Writes the graph."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.graph_module)
        self.program = program
        self.constants: dict[str, Any] = {}
        """The state of the delegates, by the names of its new inputs."""
        self.state: dict[tuple[LoweredBackendModule, str], Node] = {}
        self.calls = dict(find_delegates(program.graph))

    def run(self) -> GraphModule:
        inputs = self.module.graph.find_nodes(op="placeholder")
        first = len(inputs) - len(self.program.graph_signature.user_inputs)
        for node in inputs[:first]:
            self.copy_input(node)
        for delegate in self.calls.values():
            self._add_state(delegate)
        for node in inputs[first:]:
            self.copy_input(node)
        lowered = set(self.calls.values())
        for node in self.nodes:
            if node.op == "get_attr" and find_attribute(self.module, str(node.target)) in lowered:
                self.new[node] = None
            elif node.op != "placeholder":
                self.write[node.op](node)
        return self.finish()

    def _add_state(self, delegate: LoweredBackendModule) -> None:
        program = delegate.program
        held = {**program.state_dict, **program.constants}
        for node, spec in _inputs(program):
            if spec.kind is InputKind.USER_INPUT or (delegate, node.name) in self.state:
                continue
            name = self.writer.free_name(f"lowered_{node.name}")
            made = self.writer.append_ready("placeholder", name, name, (), ())
            made.meta["val"] = node.meta["val"]
            self.constants[name] = held[str(spec.target)]
            self.state[delegate, node.name] = made

    def rewrite_call(self, node: Node) -> None:
        delegate, source = self.calls.get(node), node.args[0] if node.args else None
        if delegate is not None:
            self.new[node] = self._write_inside(delegate, self.map_arguments(node)[0][1:])
        elif node.target is getitem and isinstance(source, Node) and source in self.calls:
            self.replace(node, self.new[source][node.args[1]])
        else:
            self.copy(node)

    def _write_inside(self, delegate: LoweredBackendModule, given: Sequence[Any]) -> list[Any]:
        """Write what a delegate computes; return its results."""
        module, _ = copy_module(delegate.program.graph_module)
        graph: Graph = module.graph
        rest = iter(given)
        for node, spec in _inputs(replace(delegate.program, graph_module=module)):
            is_given = spec.kind is InputKind.USER_INPUT
            self.new[node] = next(rest) if is_given else self.state[delegate, node.name]
        for node in graph.nodes:
            if node.op in ("call_function", "get_attr"):
                self._write_inner(module, node)
        returned: Any = graph.output_node().args[0]
        return [self.new[n] for n in returned]

    def _write_inner(self, module: GraphModule, node: Node) -> None:
        name = self.writer.free_name(node.name)
        target: Any = node.target
        if node.op == "get_attr":
            self.children[name] = module.get_submodule(target)
            target = name
        made = self.writer.append(node.op, name, target, *self.map_arguments(node))
        made.meta.update(node.meta)
        self.new[node] = made


def _inputs(program: Program) -> zip[tuple[Node, InputSpec]]:
    placeholders: list[Node] = program.graph.find_nodes(op="placeholder")
    return zip(placeholders, program.graph_signature.input_specs, strict=True)
