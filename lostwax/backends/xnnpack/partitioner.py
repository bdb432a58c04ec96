"""`XnnpackPartitioner` and `XnnpackBackend`: which calls XNNPACK takes, and what is made of them.

Must not know single operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from lostwax.backends.extract import find_constants
from lostwax.backends.partition import (
    Partitioner,
    PartitionResult,
    follows_producer,
    group_nodes,
    is_operator,
    is_ordered,
)
from lostwax.backends.spec import Backend, CompileSpec, DelegationSpec, Payload
from lostwax.backends.xnnpack.calls import bound_of, list_tensors, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.operators import MOVING, OPERATORS
from lostwax.backends.xnnpack.products import find_views
from lostwax.backends.xnnpack.quantized.quantum import get_name, is_dequantize, is_quantize
from lostwax.backends.xnnpack.schema import MOST_DIMS
from lostwax.backends.xnnpack.shapes import VIEWS, explain_reshape, is_regrouped
from lostwax.backends.xnnpack.writer import PartWriter
from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import dtype_text, source_place
from lostwax.location import warn
from lostwax.sym import Expr

aten = torch.ops.aten


class XnnpackBackend(Backend):
    """Writes parts as payloads of XNNPACK's."""

    backend_id = "XnnpackBackend"

    def preprocess(self, program: ExportedProgram, compile_specs: Sequence[CompileSpec]) -> Payload:
        return PartWriter(program, OPERATORS).run()


class XnnpackPartitioner(Partitioner):
    """Takes every call that XNNPACK computes, in float32, or quantized to eight bits."""

    def __init__(self) -> None:
        self.spec = DelegationSpec(XnnpackBackend())
        self.preserve_ops = (
            aten.linear.default,
            aten.hardswish.default,
            aten._prelu_kernel.default,
            *_list_torchao(),
        )

    def may_stay(self, node: Node) -> bool:
        """torchao's operators may: an executable computes them, in float32."""
        floats = [v for v in list_tensors(node) if v.dtype.is_floating_point]
        is_single = all(v.dtype is torch.float32 for v in floats)
        return is_single and get_name(node).startswith("torchao::")

    def partition(self, program: ExportedProgram) -> PartitionResult:
        facts = _find_facts(program)
        reasons = {n: explain(n, facts) for n in program.graph.nodes if is_operator(n)}
        while True:
            groups = group_nodes(program.graph, {n for n, reason in reasons.items() if not reason})
            left = _find_unfit(groups)
            if not left:
                break
            reasons |= left
        rows = {n for group in groups for n in group if _is_of_rows(n)}
        _warn_of_empty_batches([node for group in groups for node in group])
        tags = {node: f"part{i}" for i, group in enumerate(groups) for node in group}
        reasons = {node: reason for node, reason in reasons.items() if reason}
        shared = frozenset(n for n in facts.constants if n.op == "call_function") | rows
        return PartitionResult(tags, dict.fromkeys(tags.values(), self.spec), reasons, shared)


def _list_torchao() -> list[OpOverload]:
    """The operators of torchao's that quantize, if it is loaded."""
    names = ("choose_qparams_affine", "quantize_affine", "dequantize_affine")
    found = [getattr(torch.ops.torchao, name, None) for name in names]
    return [packet.default for packet in found if packet is not None]


def _find_facts(program: ExportedProgram) -> ProgramFacts:
    """Which nodes are constants: state that the program only reads, and what is computed from it
    alone."""
    given = find_constants(program)
    data = {**program.state_dict, **program.constants}
    state = {node: data[str(spec.target)] for node, spec in given.items()}
    found: set[Node] = set(given)
    for node in program.graph.nodes:
        if node.op != "call_function" or is_ordered(node):
            continue
        is_pure = isinstance(node.target, EdgeOperator) or follows_producer(node)
        if is_pure and all(n in found for n in node.all_input_nodes):
            found.add(node)
    return ProgramFacts(found, state)


def _find_unfit(groups: Sequence[Sequence[Node]]) -> dict[Node, str]:
    """Nodes that are better outside, although XNNPACK takes them: groups that only move elements,
    and views that a layer was to see through, of which something is in another group."""
    unfit: dict[Node, str] = {}
    for group in groups:
        inside = set(group)
        for node in group:
            if get_name(node) in VIEWS and (reason := explain_reshape(size_of(node))):
                near = [n for n in (*node.users, *node.all_input_nodes) if node in find_views(n)]
                if any(n not in inside for layer in near for n in (layer, *find_views(layer))):
                    unfit[node] = reason
                elif not near and is_regrouped(node) and _is_at_border(node, inside):
                    unfit[node] = f"{reason}, and outside it costs nothing"
        unfit |= {n: reason for n in group if (reason := _explain_integers(n, inside))}
        if all(map(_only_moves, group)):
            unfit |= dict.fromkeys(group, "XNNPACK would only move its elements")
    return {node: reason for node, reason in unfit.items() if is_operator(node)}


def _warn_of_empty_batches(nodes: Sequence[Node]) -> None:
    """Say that a call with an empty batch fails, if there may be one."""
    for node in nodes:
        entry = OPERATORS.get(get_name(node))
        batch = size_of(node.all_input_nodes[0])[0] if entry and entry.windows else 1
        if isinstance(batch, Expr) and not batch.env.bounds(batch).lo:
            warn(
                "XNNPACK's convolutions and pools do not run on an empty batch, and "
                f"{batch} may be 0.\n  at {source_place(node)}\n"
                "  instead: say that it is not, Dim(..., min=1)"
            )
            return


def _is_at_border(node: Node, inside: set[Node]) -> bool:
    """Is a view of what others computed, or read by others alone?"""
    is_first = not all(n in inside for n in node.all_input_nodes if _is_tensor(n))
    return is_first or not any(n in inside for n in node.users)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _explain_integers(node: Node, inside: set[Node]) -> str:
    """Why integers are not quantized or read by XNNPACK: it knows uint8 inside of a part alone."""
    if is_quantize(node):
        ends = [node, *node.users]
    elif is_dequantize(node) and is_quantize(node.args[0]):
        ends = [node.args[0], *node.args[0].users]  # type: ignore[list-item, union-attr]
    else:
        return ""
    is_handed_on = read_arguments(node).dtype is torch.uint8 and any(n not in inside for n in ends)
    return "XNNPACK hands on integers of int8, not of uint8" if is_handed_on else ""


def _is_of_rows(node: Node) -> bool:
    """Is it part of the layers that read it? Each part has it for itself then."""
    entry = OPERATORS.get(get_name(node.args[0] if follows_producer(node) else node))
    return entry is not None and entry.any_values


def _only_moves(node: Node) -> bool:
    target = node.target
    return not isinstance(target, EdgeOperator) or target.name() in MOVING


def explain(node: Node, facts: ProgramFacts) -> str:
    """Why XNNPACK does not take a call; "" if it does."""
    if node in facts.constants:
        return "it is computed from constants alone, and not for XNNPACK"
    if not isinstance(node.target, EdgeOperator):
        return "XNNPACK has no control flow"
    entry: OperatorEntry | None = OPERATORS.get(node.target.name())
    if entry is None:
        return f"XNNPACK has no {node.target.name()}"
    for number in (*node.args, *node.kwargs.values()):
        if isinstance(number, float) and math.isfinite(number) and abs(number) > MOST:
            return f"XNNPACK computes in float32, which has no {number}"
    if entry.any_values:
        return entry.explain(node, facts)
    values = list_tensors(node, facts.constants if entry.any_constants else ())
    if entry.quantized:
        return entry.explain(node, facts) or _explain_values(node, values, facts, INTEGERS)
    return _explain_values(node, values, facts, FLOATS) or entry.explain(node, facts)


MOST = torch.finfo(torch.float32).max
FLOATS = (torch.float32,)
INTEGERS = (torch.float32, torch.int8, torch.uint8)


def _explain_values(
    node: Node, tensors: Sequence[Any], facts: ProgramFacts, dtypes: Sequence[torch.dtype]
) -> str:
    for value in tensors:
        t = value.fake_type
        if t.dtype not in dtypes:
            return f"XNNPACK computes in float32, not {dtype_text(t.dtype)}"
        if t.ndim > MOST_DIMS:
            return f"XNNPACK has tensors of at most {MOST_DIMS} dimensions"
        if 0 in t.size:
            return "it has no elements"
        for size in t.size:
            if bound_of(size) is None:
                return f"the size {size} has no upper bound"
    given = [n for n in node.all_input_nodes if n not in facts.constants]
    values = [node, *(n for n in given if isinstance(n.meta.get("val"), torch.Tensor))]
    if any(getattr(n.meta.get("val"), "ndim", 1) == 0 for n in values):
        return "it has a tensor without dimensions"
    return ""
