"""Programs for readers that write state by copying, one buffer after the other, when the graph is
done: real torch, and what runs its files.

Such a reader returns the state itself in the place of a result that is a written value, and reads
state that it has overwritten already where a value shows state as it was. Copies in the graph keep
them apart. Must not change what a program computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lostwax.ir.draft import Draft
from lostwax.ir.effects import viewed
from lostwax.ir.passes import Pass
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import OutputKind, OutputSpec, StateWrite
from lostwax.ir.write_back import RESULTS, written_placeholders
from lostwax.ops.registry import aten


@dataclass(frozen=True)
class SeparateWrites(Pass):
    """Copies state that is read after it would be overwritten, and results that the original put in
    the place of state."""

    def edit(self, draft: Draft) -> None:
        graph = draft.graph
        output = graph.output_node()
        inputs = list(draft.inputs)
        targets = written_placeholders(list(draft.inputs.values()), inputs, draft.outputs)
        for node in overwritten(output.args[0], targets):
            users = list(node.users)
            with graph.inserting_after(inputs[-1]):
                copy = graph.call_function(aten.clone.default, (node,))
            for user in users:
                user.replace_input_with(node, copy)
        values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        with graph.inserting_before(output):
            for i in returned(values, draft.outputs):
                values[i] = graph.call_function(aten.clone.default, (values[i],))
        output.args = (tuple(values),)


def needs_copies(program: ExportedProgram) -> bool:
    """Would a reader that copies get something else?"""
    signature = program.graph_signature
    if all(s.kind in RESULTS for s in signature.output_specs):
        return False
    values: Any = program.graph.output_node().args[0]
    nodes = program.graph.find_nodes(op="placeholder")
    targets = written_placeholders(signature.input_specs, nodes, signature.output_specs)
    found = (*overwritten(values, targets), *returned(values, signature.output_specs))
    return bool(found)


def overwritten(values: Any, targets: dict[int, Node]) -> list[Node]:
    """The placeholders that are written to, and which an output shows as they were. `targets`: what
    the outputs write to, by index."""
    written = {t for i, t in targets.items() if values[i] is not t}
    found: dict[Node, None] = {}
    for i, value in enumerate(values):
        if isinstance(value, Node) and value is not targets.get(i):
            base: Node | None = value
            while base is not None:
                if base in written:
                    found[base] = None
                base = viewed(base)
    return list(found)


def returned(values: Any, specs: list[OutputSpec]) -> Iterator[int]:
    """The outputs that the original put in the place of state, and returned, too."""
    results = {v for v, s in zip(values, specs, strict=True) if s.kind in RESULTS}
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        is_another = spec.write in (StateWrite.TENSOR, StateWrite.MEMORY)
        if is_another and spec.kind is not OutputKind.USER_INPUT_MUTATION and value in results:
            yield i
