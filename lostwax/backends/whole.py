"""A program as one delegate: `lower_whole`. It is a module to call in other modules.

Must not know which backends there are.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

from torch.fx import Node

from lostwax.backends.asking import require_partitioner
from lostwax.backends.lower import lower_program
from lostwax.backends.partition import Partitioner, PartitionResult, is_operator
from lostwax.backends.spec import DelegationSpec
from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import LoweredBackendModule, WholeCall, find_delegates
from lostwax.ir.graph.handles import REASONS
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.signature import ConstantArgument, OutputKind
from lostwax.ir.text import source_place


class _Everything(Partitioner):
    """Takes all calls."""

    def __init__(self, spec: DelegationSpec) -> None:
        self.spec = spec

    def partition(self, program: ExportedProgram) -> PartitionResult:
        calls = (n for n in program.graph.nodes if n.op == "call_function")
        return PartitionResult(dict.fromkeys(calls, "whole"), {"whole": self.spec})


def lower_whole(
    program: ExportedProgram, backend: Partitioner | DelegationSpec
) -> LoweredBackendModule:
    """Hand all of a program in the Edge dialect to a backend: to the one whose partitioner takes
    all of it, or to that of a `DelegationSpec`, which is not asked.

    What it returns is called as the original was, in a module of yours, say; exported again, that
    has one call of the delegate, and its payload is written into the file as it is."""
    check_is_program(program, "lower_whole()")
    if program.dialect != "EDGE":
        raise LoweringError(
            f"lower_whole() is given a program of the dialect {program.dialect}"
            "\n  instead: program.to_edge().exported_program()"
        )
    _require_plain(program)
    if isinstance(backend, DelegationSpec):
        backend = _Everything(backend)
    lowered = lower_program(program, require_partitioner(backend, "lower_whole"))
    calls = list(find_delegates(lowered.graph))
    others = [n for n in lowered.graph.nodes if is_operator(n)]
    if others or len(calls) != 1:
        _refuse_parts(others, len(calls))
    ((call, delegate),) = calls
    delegate.call = _describe(lowered, call)
    return delegate


def _require_plain(program: ExportedProgram) -> None:
    outputs = program.graph_signature.output_specs
    written = [s.target for s in outputs if s.kind is not OutputKind.USER_OUTPUT]
    if written:
        raise LoweringError(
            f"the program writes to {written[0]!r}, which a delegate cannot"
            "\n  why: it reads what it is given, and what it returns is new"
            "\n  instead: to_backend(partitioner), which leaves writes outside of delegates"
        )
    if any(True for _ in find_delegates(program.graph)):
        raise LoweringError(
            "the program has delegates, which no other one can have in it"
            "\n  instead: lower_whole() before to_backend()"
        )
    if program.root_signature is None:
        raise LoweringError("the program does not say how it is called: it has no signature")


def _refuse_parts(others: list[Node], number: int) -> None:
    if not others:
        what = "one delegate" if number else "a delegate: it computes nothing"
        raise LoweringError(
            f"the program cannot be {what}"
            + (f", the partitioner makes {number} of it" if number else "")
            + "\n  instead: to_backend(partitioner)"
        )
    raise LoweringError.at(
        f"the program cannot be one delegate: {others[0].name!r} is left",
        source_place(others[0]),
        why="; ".join(others[0].meta.get(REASONS, ("the partitioner does not take it",))),
        instead="to_backend(partitioner), which leaves it to the runtime's kernels",
    )


def _describe(program: ExportedProgram, call: Node) -> WholeCall:
    """How the program was called, by what its one delegate takes and returns."""
    inputs = program.graph_signature.input_specs
    first = len(inputs) - len(program.graph_signature.user_inputs)
    asked: list[Any] = program.graph.find_nodes(op="placeholder")[first:]
    constants = {
        i: spec.arg.value
        for i, spec in enumerate(inputs[first:])
        if isinstance(spec.arg, ConstantArgument)
    }
    for each in call.args[1:]:
        _require_given(each, asked)
    returned: Any = program.graph.output_node().args[0]
    root = program.root_signature
    assert root is not None
    return WholeCall(
        root.in_spec,
        tuple(asked.index(n) for n in call.args[1:]),
        constants,
        root.out_spec,
        tuple(_find(value, call, asked) for value in returned),
    )


def _require_given(value: Any, asked: list[Any]) -> None:
    if value not in asked:
        raise LoweringError(
            f"the program cannot be one delegate: it would be given {value}, which is no argument"
            "\n  instead: to_backend(partitioner)"
        )


def _find(value: Any, call: Node, asked: list[Any]) -> tuple[str, Any]:
    """Where a leaf of the result comes from."""
    if not isinstance(value, Node):
        return "value", value
    if value.target is getitem and value.args[0] is call:
        return "result", value.args[1]
    _require_given(value, asked)
    return "argument", asked.index(value)
