"""An example may pass one tensor in several places. Does the module behave differently if these are
several tensors? Or, where its Python asks whether two are one (`x is y`), if they are?

We capture the call twice, with one tensor and with several. If both programs compute the same, the
one with several holds for either. Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from lostwax.capture.attempt import Attempt
from lostwax.ir.data import Assumption, Ref
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.conditions.answers import ONE, same_pairs
from lostwax.ir.signature import InputKind


def choose_program(
    made: ExportedProgram, capture: Callable[[Attempt], ExportedProgram], attempt: Attempt
) -> ExportedProgram:
    """The program that an attempt has made, or one that holds for more calls: whether tensors are
    one or several."""
    asked = _find_asked(made)
    try:  # the module's own code may raise anything: then it matters
        if same_pairs(made):
            return _take_apart(made, capture, attempt._replace(apart=True))
        if len(asked) == 1 and not made.range_constraints:
            one = capture(attempt._replace(joined=asked[0].of))
            if _compute_the_same(one, made):
                return _without(made, asked)
    except Exception:
        pass
    return made


def _take_apart(
    one: ExportedProgram, capture: Callable[[Attempt], ExportedProgram], attempt: Attempt
) -> ExportedProgram:
    """A program that holds for several tensors, too, if there is one."""
    found = capture(attempt)
    group = {ref for pair in same_pairs(one) for ref in pair}
    asked = [each for each in _find_asked(found) if group.issuperset(each.of)]
    if len(asked) > 1 or not _compute_the_same(one, found):
        return one
    if one.range_constraints:
        found = capture(attempt._replace(agreed=False))
    return _without(found, asked)


def _find_asked(program: ExportedProgram) -> list[Assumption]:
    """Where it was asked whether two tensors are one that are not."""
    return [each for each in program.assumptions or () if each.what == ONE and not each.answer]


def _without(program: ExportedProgram, asked: list[Assumption]) -> ExportedProgram:
    left = tuple(each for each in program.assumptions or () if each not in asked)
    return replace(program, assumptions=left)


def _compute_the_same(one: ExportedProgram, apart: ExportedProgram) -> bool:
    groups = [each.of for each in one.assumptions or () if each.what == ONE and each.answer]
    first = {ref: group[0] for group in groups for ref in group[1:]}
    nodes = _nodes_read(one, apart, first)
    if nodes is None or not _are_alike(one.graph_module, apart.graph_module, nodes):
        return False
    kinds = [[(s.kind, s.target) for s in p.graph_signature.output_specs] for p in (one, apart)]
    guards = [[(str(g.cond), g.kind) for g in p.guards] for p in (one, apart)]
    return (
        kinds[0] == kinds[1]
        and guards[0] == guards[1]
        and one.call_spec.out_spec == apart.call_spec.out_spec
        and _list_assumed(one, first) == _list_assumed(apart, first)
        and _are_equal(one.constants, apart.constants)
    )


def _list_assumed(program: ExportedProgram, first: Mapping[Ref, Ref]) -> set[Any]:
    return {
        (a.what, tuple(first.get(ref, ref) for ref in a.of), a.answer, a.computed)
        for a in program.assumptions or ()
        if a.what != ONE
    }


def _nodes_read(
    one: ExportedProgram, apart: ExportedProgram, first: Mapping[Ref, Ref]
) -> dict[Node, Node] | None:
    """For each input of the second program, the node that the first reads in its place."""
    both = [(p.graph.find_nodes(op="placeholder"), p.graph_signature) for p in (one, apart)]
    (mine, signature), (others, other) = both
    kinds = [[(s.kind, s.target) for s in each.input_specs] for each in (signature, other)]
    if kinds[0] != kinds[1]:
        return None
    by_ref: dict[Ref, Node] = {}
    pairs: list[tuple[Node, Ref]] = []
    users = 0
    for node, twin, spec in zip(mine, others, signature.input_specs, strict=True):
        ref: Ref = str(spec.target)
        if spec.kind is InputKind.USER_INPUT:
            ref, users = users, users + 1
        by_ref[ref] = node
        pairs.append((twin, ref))
    return {twin: by_ref[first.get(ref, ref)] for twin, ref in pairs}


def _are_alike(one: GraphModule, other: GraphModule, nodes: dict[Node, Node]) -> bool:
    """Do two graphs compute the same? `nodes` maps inputs of the second to nodes of the first."""
    rest = [[n for n in g.graph.nodes if n.op != "placeholder"] for g in (one, other)]
    if len(rest[0]) != len(rest[1]):
        return False
    for mine, twin in zip(*rest, strict=True):
        if (mine.op, mine.target) != (twin.op, twin.target):
            return False
        if mine.op == "get_attr" and not _are_alike_inside(one, other, str(mine.target)):
            return False
        given = map_arg((twin.args, twin.kwargs), nodes.__getitem__)
        if repr(given) != repr((mine.args, mine.kwargs)):
            return False
        nodes[twin] = mine
    return True


def _are_alike_inside(one: GraphModule, other: GraphModule, target: str) -> bool:
    mine, twin = find_attribute(one, target), find_attribute(other, target)
    if not (isinstance(mine, GraphModule) and isinstance(twin, GraphModule)):
        return mine is twin
    inputs = [g.graph.find_nodes(op="placeholder") for g in (twin, mine)]
    return len(inputs[0]) == len(inputs[1]) and _are_alike(
        mine, twin, dict(zip(*inputs, strict=True))
    )


def _are_equal(constants: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    if constants.keys() != others.keys():
        return False
    return all(a is others[name] or _is_equal(a, others[name]) for name, a in constants.items())


def _is_equal(a: Any, b: Any) -> bool:
    both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return both and a.dtype is b.dtype and not a.is_meta and torch.equal(a, b)
