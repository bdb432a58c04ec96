"""Whether two captures of one call gave the same program: the first node that differs, if not.

Names, targets and arguments are compared, and what is baked in: constants, guards, results that are
no tensors. Types follow from these. Must not change either program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lostwax.capture.strict.values import describe
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.text import argument_text, call_text, source_place


def find_difference(first: ExportedProgram, second: ExportedProgram) -> str | None:
    """The first difference in words, with its line; None if there is none."""
    return next(_list_differences(first, second), None)


def _list_differences(a: ExportedProgram, b: ExportedProgram) -> Iterator[str]:
    yield from _compare_constants(a, b)
    yield from _compare_graphs(a.graph_module, b.graph_module)
    for what, one, other in (
        ("the signature", _signature(a), _signature(b)),
        ("the guards", [str(g.cond) for g in a.guards], [str(g.cond) for g in b.guards]),
        ("the ranges of sizes", *(limits_by_name(p.range_constraints) for p in (a, b))),
    ):
        if one != other:
            yield f"{what}: {one} in the first run, {other} in the second"


def _signature(program: ExportedProgram) -> list[Any]:
    signature = program.graph_signature
    constants = [repr(getattr(spec.arg, "value", None)) for spec in signature.output_specs]
    inputs = [(spec.kind, spec.target) for spec in signature.input_specs]
    outputs = [(spec.kind, spec.target) for spec in signature.output_specs]
    return [inputs, outputs, constants, str(program.call_spec.out_spec)]


def _compare_constants(a: ExportedProgram, b: ExportedProgram) -> Iterator[str]:
    readers = _find_readers(a)
    for name, one in a.constants.items():
        other = b.constants.get(name)
        if one is other or _are_equal(one, other):
            continue
        node = readers.get(name)
        where = f"\n  at {source_place(node)}" if node is not None else ""
        shown = f"{describe(one)} in the first run, {describe(other)} in the second"
        yield f"the constant {name}: {shown}{where}"


def _find_readers(program: ExportedProgram) -> Mapping[str, Node]:
    """The first node that reads each constant."""
    specs = program.graph_signature.input_specs
    pairs = zip(program.graph.nodes, specs, strict=False)
    users = {spec.target: next(iter(node.users), None) for node, spec in pairs}
    return {name: node for name, node in users.items() if name and node is not None}


def _are_equal(one: Any, other: Any) -> bool:
    """Have these constants the same bits?"""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and not isinstance(one, torch.Tensor)
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    if one.layout is not torch.strided or one.is_meta:
        return True  # we cannot look into it
    return torch.equal(*(x.detach().contiguous().view(-1).view(torch.uint8) for x in (one, other)))


def _compare_graphs(a: GraphModule, b: GraphModule) -> Iterator[str]:
    for one, other in zip_longest(a.graph.nodes, b.graph.nodes):
        if one is None or other is None or not _is_same_node(one, other):
            shown = [_text(each) for each in (one, other)]
            node = other if one is None or one.op == "output" else one
            place = source_place(node)
            where = f"\n  at {place}" if place else ""
            yield f"{shown[0]} in the first run, {shown[1]} in the second{where}"
            return
    inner = dict(subgraphs(b))
    for name, graph in subgraphs(a):
        yield from _compare_graphs(graph, inner[name])


def _text(node: Node | None) -> str:
    if node is None:
        return "nothing more"
    if node.op == "output":
        return f"the result {argument_text(node.args[0])}"
    return f"{node.name} = {call_text(node)}" if node.op == "call_function" else node.name


def _is_same_node(one: Node, other: Node) -> bool:
    if one.op != other.op or one.name != other.name:
        return False
    if one.target is not other.target and one.target != other.target:
        return False
    return _is_same_argument(one.args, other.args) and _is_same_argument(one.kwargs, other.kwargs)


def _is_same_argument(one: Any, other: Any) -> bool:
    cls = type(one)
    if cls is not type(other):
        return False
    if cls is Node:
        return bool(one.name == other.name)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same_argument, one, other))
    if isinstance(one, dict):
        values = one.values(), other.values()
        return list(one) == list(other) and all(map(_is_same_argument, *values))
    return one is other or (cls is int and one == other) or repr(one) == repr(other)
