"""Looks into a delegate that computes something else than its program: which operator it is.

The part is handed to its backend once more, with every value as a result, and run by the real
runtime. Must not change the delegate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Interpreter, Node

from lostwax.backends.extract import find_constants
from lostwax.backends.lower import lower_program
from lostwax.backends.partition import Partitioner, PartitionResult
from lostwax.backends.spec import DelegationSpec
from lostwax.checking.result import Close, describe_node, state_values
from lostwax.errors import LostwaxError
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import ExportGraphSignature, OutputKind, OutputSpec, TensorArgument
from lostwax.pte.executable import ExecutableProgram
from lostwax.pte.runtime import load_runtime


def find_in_delegate(delegate: LoweredBackendModule, inputs: Sequence[Any], close: Close) -> str:
    """The first operator of a delegate whose result is another, given what the delegate is given;
    "" if that cannot be found out."""
    program: Any = delegate.program
    if delegate.backend is None or not all(isinstance(i, torch.Tensor) for i in inputs):
        return ""
    nodes = _list_values(program)
    try:
        spec = DelegationSpec(delegate.backend, delegate.compile_specs)
        lowered = lower_program(_return_all(program, nodes), _TakeAll(spec))
        executable = ExecutableProgram({"forward": lowered}, {})
        got = load_runtime(executable.buffer).run(list(inputs))
    except (LostwaxError, RuntimeError):
        return ""
    running = Interpreter(program.graph_module, garbage_collect_values=False)
    with torch.no_grad():
        running.run(*state_values(program), *inputs)
    for node, one in zip(nodes, got, strict=True):
        if wrong := close(one, running.env[node]):
            return describe_node(node, wrong)
    return "none of its operators alone: it is wrong how the backend puts them together"


def _list_values(program: ExportedProgram) -> list[Node]:
    """The tensors that the part computes, but for what it computes from its constants alone."""
    fixed: set[Node] = set(find_constants(program))
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if all(n in fixed for n in node.all_input_nodes):
            fixed.add(node)
        elif isinstance(node.meta.get("val"), torch.Tensor):
            found.append(node)
    return found


def _return_all(program: ExportedProgram, nodes: Sequence[Node]) -> ExportedProgram:
    module, new = copy_module(program.graph_module)
    module.graph.output_node().args = (tuple(new[n] for n in nodes),)
    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in nodes]
    signature = ExportGraphSignature(program.graph_signature.input_specs, results)
    return replace(program, graph_module=module, graph_signature=signature)


class _TakeAll(Partitioner):
    """Takes the whole program."""

    def __init__(self, spec: DelegationSpec) -> None:
        self.spec = spec

    def partition(self, program: ExportedProgram) -> PartitionResult:
        calls = [n for n in program.graph.nodes if n.op == "call_function"]
        return PartitionResult(dict.fromkeys(calls, "part"), {"part": self.spec})
