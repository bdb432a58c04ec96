"""Groups of nodes that can each be computed at once: on random graphs none needs its own results;
partitioners by capability and by pattern; what a partitioner may not do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

import lostwax
from examples.backend import SimulatedBackend
from lostwax.backends import (
    BackendOperator,
    CapabilityPartitioner,
    CompileSpec,
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
    text = r"the partitioner makes a cycle: the part(.|\n)*at .*test_partition.py:\d+ in f"
    with pytest.raises(LoweringError, match=text):
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


class Says(Partitioner):
    """Says what a function says."""

    def __init__(self, say: Callable[[lostwax.ExportedProgram], Any]) -> None:
        self.partition = say  # type: ignore[method-assign]

    def partition(self, program: lostwax.ExportedProgram) -> PartitionResult:
        raise NotImplementedError


def insert_call(program: lostwax.ExportedProgram) -> PartitionResult:
    (node,) = program.graph.find_nodes(op="call_function", target=aten.cos.default)
    with program.graph.inserting_after(node):
        program.graph.call_function(aten.cos.default, (node,)).meta.update(node.meta)
    return PartitionResult({node: "a"}, {"a": SPEC})


def tag_all(program: lostwax.ExportedProgram, tag: Any = "a", **options: Any) -> PartitionResult:
    calls = program.graph.find_nodes(op="call_function", target=aten.cos.default)
    return PartitionResult(dict.fromkeys(calls, tag), {tag: SPEC}, **options)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "none": (lambda p: None, r"Says.partition returns a NoneType"),
    "tags": (lambda p: PartitionResult([], {}), r"given a list as its tags\n  instead: tags={node"),
    "specs": (lambda p: PartitionResult({}, None), "given a NoneType as its specs"),
    "reasons": (lambda p: tag_all(p, reasons=None), "given a NoneType as its reasons"),
    "tag": (lambda p: tag_all(p, 1), "is given the tag 1"),
    "reason": (lambda p: tag_all(p, reasons={None: 3}), "is given the reason 3"),
    "no spec": (
        lambda p: PartitionResult(tag_all(p).tags, {}),
        r"the tag 'a' has no DelegationSpec\n  instead: specs=\{'a': DelegationSpec\(backend\)\}",
    ),
    "error": (lambda p: p.nothing, "Says.partition fails: AttributeError: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_result_of_a_partitioner_is_refused(
    edge: lostwax.EdgeProgramManager, name: str
) -> None:
    say, text = WRONG[name]
    with pytest.raises(LoweringError, match=text):
        edge.to_backend(Says(say))


def test_a_partitioner_may_not_change_the_program() -> None:
    program = lostwax.export(lambda x: torch.cos(x) * 2, (torch.ones(3),))
    with pytest.raises(LoweringError, match=r"changes the program\n  why: (.|\n)*transform"):
        program.to_edge().to_backend(Says(insert_call))


def test_partitioners_are_told_what_they_are_given_wrongly(
    edge: lostwax.EdgeProgramManager,
) -> None:
    with pytest.raises(
        LoweringError, match=r"explain says None of 'relu'(.|\n)*test_partition.py:"
    ):
        edge.to_backend(CapabilityPartitioner(SPEC, lambda node: None))  # type: ignore[arg-type, return-value]
    for pattern in ([], [torch.ops.aten.cos.default], aten.cos.default):
        with pytest.raises(LoweringError, match=r"is no pattern\n  instead: a list of operators"):
            PatternPartitioner(SPEC, [pattern])  # type: ignore[list-item]
    with pytest.raises(LoweringError, match="for 'forward' it is given the class Tags"):
        edge.to_backend(Tags)
    partitioner = Tags()
    partitioner.operators = ("swish",)  # type: ignore[assignment]
    with pytest.raises(LoweringError, match=r"Tags.operators has 'swish', a str"):
        edge.to_backend(partitioner)
    with pytest.raises(LoweringError, match="are no tuple of tensors"):
        BackendOperator("mine::twice", lambda x: x * 2, torch.ones(2))
    wanting = Tags()
    wanting.preserve_ops = (torch.ops.aten.silu,)  # type: ignore[assignment]
    program = lostwax.export(torch.nn.SiLU(), (torch.ones(3),))
    with pytest.raises(LoweringError, match=r"Tags.preserve_ops has .*, a OpOverloadPacket"):
        lostwax.to_edge_transform_and_lower(program, partitioner=wanting)


def test_settings_of_another_form_are_refused() -> None:
    with pytest.raises(LoweringError, match="a CompileSpec is a name and bytes, not 'a' and 'b'"):
        CompileSpec("a", "b")  # type: ignore[arg-type]
    with pytest.raises(LoweringError, match="the compile_specs of a DelegationSpec are "):
        DelegationSpec(SimulatedBackend(), CompileSpec("a", b"b"))  # type: ignore[arg-type]
