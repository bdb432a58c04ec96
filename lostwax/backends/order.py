"""The order in which the parts of a graph and the nodes between them are computed.

Must not change the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch.fx import Graph, Node

from lostwax.backends.partition import find_predecessors
from lostwax.errors import LoweringError
from lostwax.ir.text import source_place

Step = str | Node
"""A part by its tag, or a node that is in none."""


def order_steps(graph: Graph, tags: Mapping[Node, str]) -> list[Step]:
    """Parts and other nodes, each after what it needs; nodes keep their order as far as that goes.
    Raise an error if a part needs what is computed from its own results."""
    needs: dict[Step, dict[Step, None]] = {}
    seen: dict[Node, None] = {}
    for node in graph.nodes:
        here: Step = tags.get(node, node)
        before = needs.setdefault(here, {})
        for each in find_predecessors(node, seen):
            there: Step = tags.get(each, each)
            if there != here:
                before[there] = None
        seen[node] = None
    # A part stands where its last node stood, if nothing needs it before.
    places = {tags.get(node, node): at for at, node in enumerate(graph.nodes)}
    ordered: dict[Step, None] = {}
    try:
        for step in sorted(needs, key=places.__getitem__):
            _visit(step, needs, ordered, places)
    except _Cycle as cycle:
        raise _refuse_cycle(cycle.way, tags) from None
    return list(ordered)


class _Cycle(Exception):
    """Steps that need each other; the way is from what needs to what is needed, around."""

    def __init__(self, way: list[Step]) -> None:
        self.way = way


def _visit(
    step: Step,
    needs: Mapping[Step, Mapping[Step, None]],
    ordered: dict[Step, None],
    places: Mapping[Step, int],
) -> None:
    """Put a step behind all that it needs; without recursion, as graphs are deep."""
    open_steps: dict[Step, Iterator[Step]] = {}

    def begin(each: Step) -> None:
        open_steps[each] = iter(sorted(needs[each], key=places.__getitem__))

    if step not in ordered:
        begin(step)
    while open_steps:
        current = next(reversed(open_steps))
        for before in open_steps[current]:
            if before in open_steps:
                raise _Cycle([*list(open_steps)[list(open_steps).index(before) :], before])
            if before not in ordered:
                begin(before)
                break
        else:
            del open_steps[current]
            ordered[current] = None


def _refuse_cycle(way: list[Step], tags: Mapping[Node, str]) -> LoweringError:
    """The error about parts that need each other."""
    first = next((i for i, s in enumerate(way) if isinstance(s, str)), 0)
    way = [*way[first:-1], *way[: first + 1]]
    names = [f"the part {s!r}" if isinstance(s, str) else repr(s.name) for s in reversed(way)]
    nodes = [s for s in way if isinstance(s, Node)]
    nodes += [n for n, tag in tags.items() if tag in way]
    return LoweringError.at(
        f"the partitioner makes a cycle: {' → '.join(names)}",
        next(filter(None, map(source_place, nodes)), ""),
        why="a delegate is computed at once, and cannot wait for what is computed from its results",
        instead="two parts in its place, before and after; lostwax.backends.group_nodes finds them",
    )
