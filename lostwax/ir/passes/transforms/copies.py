"""Prepares programs for readers that write state by copying, one buffer after the other, after the
graph has run: real torch, and what runs its files.

Such a reader returns the state itself if a result is a written value, and returns overwritten state
if a value is a view of the old state; torch's `unflatten` writes as soon as the new value is there.
Copies in the graph keep them apart. The reader knows state
only by the names of inputs: written state must be an input by each of its names, and state with a
name in the `state_dict` must be read by that name. Must not change what a program computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from lostwax.fake.tensor import storage_key
from lostwax.identity import ByIdentity
from lostwax.ir.graph.effects import view_base
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.write_back import RESULTS, is_rebound, written_placeholders
from lostwax.ir.signature import STATE_WRITES, InputKind, InputSpec, OutputSpec
from lostwax.ops.registry import aten


@dataclass(frozen=True)
class SeparateWrites(Pass):
    """Copies state that is read after it would be overwritten, new state that is there before the
    old is read for the last time, and results that the original put in the place of state. Written
    state that has several names is an input by each of them; the first is one of those that the
    `state_dict` has."""

    def edit(self, draft: Draft) -> None:
        graph = draft.graph
        output = graph.output_node()
        inputs = list(draft.inputs)
        targets = written_placeholders(list(draft.inputs.values()), inputs, draft.outputs)
        for node in overwritten_inputs(output.args[0], targets):
            users = list(node.users)
            with graph.inserting_after(inputs[-1]):
                copy = graph.call_function(aten.clone.default, (node,))
            for user in users:
                user.replace_input_with(node, copy)
        values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        with graph.inserting_before(output):
            for i in {*returned_writes(values, draft.outputs), *early_writes(values, targets)}:
                values[i] = graph.call_function(aten.clone.default, (values[i],))
        output.args = (tuple(values),)
        held = {**draft.constants, **draft.state_dict}
        kept = kept_names(draft.program)
        for node, spec in draft.inputs.items():
            if spec.target in kept:
                draft.inputs[node] = replace(spec, target=kept[spec.target], persistent=True)
        draft.outputs[:] = [
            replace(s, target=kept[s.target]) if s.kind in STATE_WRITES and s.target in kept else s
            for s in draft.outputs
        ]
        for first, name in further_names(list(draft.inputs.values()), draft.outputs, held):
            self._name(draft, first, name)

    def _name(self, draft: Draft, first: str, name: str) -> None:
        """Add an input, which nothing reads, for another name of state. If only one of the two
        names is in the `state_dict`, such a reader has two tensors for them: then both are
        written."""
        node, spec = next((n, s) for n, s in draft.inputs.items() if s.target == first)
        with draft.graph.inserting_after(node):
            other = draft.graph.placeholder(f"{node.name}_as_{name.replace('.', '_')}")
        other.target = other.name
        other.meta = dict(node.meta)
        is_buffer = spec.kind is InputKind.BUFFER
        persistent = name in draft.state_dict if is_buffer else None
        draft.inputs[other] = replace(
            spec, arg=replace(spec.arg, name=other.name), target=name, persistent=persistent
        )
        if is_buffer and persistent != spec.persistent:
            output = draft.graph.output_node()
            values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
            i = next(i for i, each in enumerate(draft.outputs) if each.target == first)
            with draft.graph.inserting_before(output):
                values.insert(i, draft.graph.call_function(aten.clone.default, (values[i],)))
            draft.outputs.insert(i, replace(draft.outputs[i], target=name))
            output.args = (tuple(values),)


def further_names(
    inputs: Iterable[InputSpec], outputs: Iterable[OutputSpec], held: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """The further names of written state, as pairs: the name of its input, and another. `held` is
    the state by all its names."""
    known = {spec.target for spec in inputs}
    written = [s.target for s in outputs if s.kind in STATE_WRITES and s.target]
    return [
        (first, name)
        for first in written
        for name, tensor in held.items()
        if tensor is held[first] and name not in known
    ]


def kept_names(program: ExportedProgram) -> dict[str, str]:
    """For each buffer that is an input by a name that is not in the `state_dict`, its other name
    that is, if there is one."""
    passing = program.graph_signature.non_persistent_buffers
    if not passing:
        return {}
    first = ByIdentity[Any, str]()
    for name, tensor in program.state_dict.items():
        first.setdefault(tensor, name)
    kept = {name: first.get(program.constants.get(name)) for name in passing}
    return {name: other for name, other in kept.items() if other is not None}


def lent_state(program: ExportedProgram) -> list[torch.Tensor]:
    """The state that the original rebinds to another tensor and that shares memory with other
    state. A reader that copies would write to both, so for it this state must have memory of its
    own, as it has after the first call of the original."""
    held = {**program.constants, **program.state_dict}
    specs = [s for s in program.graph_signature.output_specs if s.kind in STATE_WRITES]
    replaced = [held[s.target] for s in specs if s.target is not None and is_rebound(s)]
    tensors = [t for t in held.values() if isinstance(t, torch.Tensor)] if replaced else []
    return [
        tensor
        for tensor in replaced
        if any(t is not tensor and storage_key(t) == storage_key(tensor) for t in tensors)
    ]


def needs_copies(program: ExportedProgram) -> bool:
    """Would a reader that copies get other results?"""
    signature = program.graph_signature
    if kept_names(program):
        return True
    if all(s.kind in RESULTS for s in signature.output_specs):
        return False
    values: Any = program.graph.output_node().args[0]
    nodes = program.graph.find_nodes(op="placeholder")
    targets = written_placeholders(signature.input_specs, nodes, signature.output_specs)
    found = (*overwritten_inputs(values, targets), *returned_writes(values, signature.output_specs))
    held = {**program.constants, **program.state_dict}
    if next(early_writes(values, targets), None) is not None:
        return True
    return bool(found or further_names(signature.input_specs, signature.output_specs, held))


def overwritten_inputs(values: Any, targets: dict[int, Node]) -> list[Node]:
    """The placeholders that are written to, and whose old value is also returned, itself or as a
    view. `targets`: what the outputs write to, by index."""
    written = {t for i, t in targets.items() if values[i] is not t}
    found: dict[Node, None] = {}
    for i, value in enumerate(values):
        if isinstance(value, Node) and value is not targets.get(i):
            base: Node | None = value
            while base is not None:
                if base in written:
                    found[base] = None
                base = view_base(base)
    return list(found)


def returned_writes(values: Any, specs: list[OutputSpec]) -> Iterator[int]:
    """The indices of outputs that the original both rebound state to and returned."""
    results = {v for v, s in zip(values, specs, strict=True) if s.kind in RESULTS}
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if is_rebound(spec) and spec.kind in STATE_WRITES and value in results:
            yield i


def early_writes(values: Any, targets: dict[int, Node]) -> Iterator[int]:
    """The indices of new values that are there before the old value is read for the last time."""
    order: dict[Node, int] = {}
    for i, target in targets.items():
        value = values[i]
        if value is target or not isinstance(value, Node):
            continue
        order = order or {node: at for at, node in enumerate(target.graph.nodes)}
        last = max((order[each] for each in _find_readers(target)), default=-1)
        if value.op == "placeholder" or last > order[value]:
            yield i


def _find_readers(node: Node) -> Iterator[Node]:
    """What reads a value, or a view of it. (The graph's own results are copied in any case.)"""
    for user in node.users:
        if user.op != "output":
            yield user
            if view_base(user) is node:
                yield from _find_readers(user)
