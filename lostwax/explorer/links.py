"""Which node of an earlier stage each node of a later one comes from.

A node that a stage does not touch keeps its name; one that was made of another says of which, in
`meta["decomposed_from"]`. What says neither comes from nowhere that is known.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lostwax.explorer.graph import ProgramWriter
from lostwax.ops.dialect_operator import overload_of


def link_nodes(earlier: ProgramWriter, later: ProgramWriter) -> list[int]:
    """For each node of the later stage the number of that which it comes from; -1: not known."""
    named: dict[str, list[Node]] = {}
    for node in earlier.nodes:
        named.setdefault(node.name, []).append(node)
    return [_find_origin(node, named, earlier, later) for node in later.nodes]


def _find_origin(
    node: Node, named: dict[str, list[Node]], earlier: ProgramWriter, later: ProgramWriter
) -> int:
    origins = node.meta.get("decomposed_from") or ()
    same = [
        each
        for each in named.get(node.name, ())
        if each.op == node.op and _is_same_call(each, node, origins)
    ]
    for origin in () if same else reversed(origins):
        same = [each for each in named.get(origin.name, ()) if _calls(each) is _calls(origin)]
        if same:
            break
    if len(same) > 1:  # bodies of control flow have names of their own
        here = later.graphs[later.columns["graph"][later.numbers[node]]]["name"]
        same.sort(
            key=lambda n: (
                earlier.graphs[earlier.columns["graph"][earlier.numbers[n]]]["name"] != here
            )
        )
    return earlier.numbers[same[0]] if same else -1


def _is_same_call(old: Node, new: Node, origins: tuple[Any, ...]) -> bool:
    """Is it the same call, in another dialect perhaps? What was made of others has the same
    name only by chance, unless it was made so before."""
    known = [o.name for o in old.meta.get("decomposed_from") or ()]
    return known == [o.name for o in origins] and (
        old.op != "call_function" or _calls(old) is _calls(new) or not origins
    )


def _calls(node: Any) -> Any:
    return overload_of(node.target)
