"""Groups of nodes that can each be computed at once: on random graphs none needs its own results;
partitioners by capability and by pattern; what a partitioner may not do."""

from __future__ import annotations

import random

import pytest
import torch
from torch.fx import Graph, Node

import lostwax
from examples.backend import SimulatedBackend
from lostwax.backends import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    PatternPartitioner,
    group_nodes,
)
from lostwax.backends.order import order_steps
from lostwax.errors import LoweringError

aten = lostwax.ops.edge.aten
SPEC = DelegationSpec(SimulatedBackend())


def draw_graph(seed: int) -> tuple[Graph, set[Node]]:
    draw = random.Random(seed)
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    calls: list[Node] = []
    for _ in range(draw.randint(1, 40)):
        given = draw.choices(nodes[-8:], k=draw.randint(1, 3))
        calls.append(graph.call_function(torch.add, tuple(given)))
        nodes.append(calls[-1])
    graph.output(tuple(nodes[-2:]))
    return graph, {n for n in calls if draw.random() < 0.6}


def longest_alternation(graph: Graph, taken: set[Node]) -> int:
    """How many groups there must be at least: on the way with the most changes between what is
    taken and what is not."""
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        starts = (depth[n] + (node in taken and n not in taken) for n in node.all_input_nodes)
        depth[node] = max(starts, default=0)
        if node in taken and depth[node] == 0:
            depth[node] = 1
    return max(depth.values(), default=0)


@pytest.mark.parametrize("seeds", [range(i, i + 100) for i in range(0, 500, 100)])
def test_groups_of_random_graphs_make_no_cycle(seeds: range) -> None:
    for seed in seeds:
        graph, taken = draw_graph(seed)
        groups = group_nodes(graph, taken)
        assert sorted(n.name for g in groups for n in g) == sorted(n.name for n in taken)
        tags = {node: f"part{i}" for i, group in enumerate(groups) for node in group}
        steps = order_steps(graph, tags)
        done: set[Node] = set()
        for step in steps:
            members = groups[int(step[4:])] if isinstance(step, str) else [step]
            inside = done.union(members)
            assert all(n in inside for m in members for n in m.all_input_nodes)
            done = inside
        assert len(done) == len(graph.nodes)


def test_few_groups_are_made() -> None:
    for seed in range(200):
        graph, taken = draw_graph(seed)
        assert len(group_nodes(graph, taken)) <= max(longest_alternation(graph, taken), 0)


@pytest.fixture(scope="module")
def edge() -> lostwax.EdgeProgramManager:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        return torch.sigmoid(torch.cos(y)) + y

    return lostwax.export(f, (torch.ones(3),)).to_edge()


class Tags(Partitioner):
    """Gives fixed tags by the names of nodes."""

    def __init__(self, **tags: str) -> None:
        self.tags = tags

    def partition(self, program: lostwax.ExportedProgram) -> PartitionResult:
        tags = {n: self.tags[n.name] for n in program.graph.nodes if n.name in self.tags}
        return PartitionResult(tags, dict.fromkeys(self.tags.values(), SPEC))


def test_a_part_that_needs_its_own_results_is_refused(edge: lostwax.EdgeProgramManager) -> None:
    with pytest.raises(LoweringError, match=r"cycle: the part 'a' → 'cos' → the part 'a'"):
        edge.to_backend(Tags(relu="a", sigmoid="a", add="a"))


def test_parts_that_need_each_other_are_refused(edge: lostwax.EdgeProgramManager) -> None:
    with pytest.raises(LoweringError, match=r"the partitioner makes a cycle: the part"):
        edge.to_backend(Tags(relu="a", sigmoid="b", add="a"))
    both = edge.to_backend(Tags(relu="a", sigmoid="b", add="b"))
    assert len(both.delegation_report().delegates) == 2


def test_tags_that_mean_nothing_are_refused(edge: lostwax.EdgeProgramManager) -> None:
    with pytest.raises(LoweringError, match="which is no call of the program's graph"):
        edge.to_backend(Tags(x="a"))
    with pytest.raises(LoweringError, match="to_backend takes partitioners"):
        edge.to_backend(SPEC)
    with pytest.raises(LoweringError, match="there is no method 'other'"):
        edge.to_backend({"other": Tags()})


def test_patterns_are_parts_of_their_own(edge: lostwax.EdgeProgramManager) -> None:
    chains = [[aten.sigmoid.default, aten.add.Tensor], [aten.relu.default]]
    lowered = edge.to_backend(PatternPartitioner(SPEC, chains))
    report = lowered.delegation_report()
    assert [sum(d.operators.values()) for d in report.delegates] == [1, 2]
    (left,) = report.undelegated
    assert left.node == "cos"
    assert left.reasons == ("it is in none of the patterns",)
