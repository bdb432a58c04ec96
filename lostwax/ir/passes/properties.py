"""Properties of programs that passes require and ensure: a name, a sentence, a check.

A check yields what breaks the property, as the rules of `rules/graph.py` do. Users add their own to
the table. Must not change a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch._ops import OpOverload

from lostwax.ir.decompose.core_aten import default_decomposition
from lostwax.ir.graph.cse import find_duplicates
from lostwax.ir.graph.effects import must_stay
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.program import ExportedProgram
from lostwax.ir.rules.graph import GRAPH_RULES, Found
from lostwax.ir.signature import InputKind


@dataclass(frozen=True)
class Property:
    """What can be said of a program. `check` yields each node that breaks it, and why."""

    name: str
    sentence: str
    check: Callable[[ExportedProgram], Found]


def _functional(program: ExportedProgram) -> Found:
    check = next(check for name, _, check in GRAPH_RULES if name == "functional")
    for module in graph_modules(program.graph_module):
        yield from check(module)


def _core_aten(program: ExportedProgram) -> Found:
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            target = node.target
            if isinstance(target, OpOverload) and default_decomposition(target) is not None:
                yield node, f"{target} is not a core ATen operator"


def _no_dead_code(program: ExportedProgram) -> Found:
    named = program.named_by_calls
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            if not node.users and not must_stay(node) and node.name not in named:
                yield node, "nothing reads it"


def _no_duplicates(program: ExportedProgram) -> Found:
    for module in graph_modules(program.graph_module):
        for node, kept in find_duplicates(module.graph):
            yield node, f"it computes what {kept.name!r} has computed"


def _no_unused_state(program: ExportedProgram) -> Found:
    written = {s.target for s in program.graph_signature.output_specs}
    specs = program.graph_signature.input_specs
    nodes = (n for n in program.graph.nodes if n.op == "placeholder")
    for node, spec in zip(nodes, specs, strict=True):
        is_state = spec.kind not in (InputKind.USER_INPUT, InputKind.TOKEN)
        if is_state and not node.users and spec.target not in written:
            yield node, f"nothing reads {spec.target!r}"


PROPERTIES: dict[str, Property] = {
    p.name: p
    for p in (
        Property("functional", "no operator writes to its arguments", _functional),
        Property("core-aten", "operators are core ATen, or nothing takes them apart", _core_aten),
        Property("no-dead-code", "every call is read, or acts", _no_dead_code),
        Property("no-duplicates", "nothing is computed twice", _no_duplicates),
        Property("no-unused-state", "all state is read or written", _no_unused_state),
    )
}
"""The known properties by name. A property of your own: `PROPERTIES[name] = Property(...)`."""
