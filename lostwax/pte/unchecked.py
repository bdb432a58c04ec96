"""Tells the user which conditions of a program an executable does not check.

The runtime compares the number of elements of an input with its bound, and nothing else; it has no
kernel for assertions. Must not refuse a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import source_place
from lostwax.location import warn
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait

MOST = 12
"""How many conditions a warning lists."""


def warn_of_unchecked(programs: Mapping[str, ExportedProgram]) -> None:
    """Warn once of all conditions that the methods have, with their lines."""
    lines = []
    for name, program in programs.items():
        listed = dict.fromkeys(list_conditions(program))
        lines += [text if len(programs) == 1 else f"{name}: {text}" for text in listed]
    if not lines:
        return
    more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
    text = "\n  ".join(["", *lines[:MOST], *more])
    warn(
        "the executable does not check these conditions of the program, its results are wrong "
        f"where they do not hold:{text}\n  instead: check them before the executable is called"
    )


def list_conditions(program: ExportedProgram) -> Iterator[str]:
    """The conditions on inputs that a program was captured under, and those that it asserts."""
    for guard in program.guards:
        yield f"{guard.predicate}  at {guard.where}"
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            if node.op == "call_function" and has_trait(node.target, Trait.ASSERTS):
                texts = [a for a in node.args if isinstance(a, str)]
                yield texts[0] if texts else f"an assertion  at {source_place(node)}"
