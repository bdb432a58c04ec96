"""Says which nodes of a program a backend takes: `Partitioner`, and two that are ready to use.

A partitioner gives nodes tags; nodes of one tag become one delegate. Must not change the program.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from lostwax.backends.patterns import BackendOperator
from lostwax.backends.spec import DelegationSpec
from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import CALL_DELEGATE
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import source_place
from lostwax.ops.dialect_operator import overload_of


@dataclass(frozen=True)
class PartitionResult:
    """The tag of each node that a backend takes, what each tag means, and for other nodes why it
    does not take them."""

    tags: Mapping[Node, str]
    specs: Mapping[str, DelegationSpec]
    reasons: Mapping[Node, str] = field(default_factory=dict)
    shared: frozenset[Node] = frozenset()
    """Nodes that each part which reads them computes for itself, such as weights that are
    transposed. Those without a tag stay outside, too, if others read them; of those that have one
    all readers must have one."""

    def __post_init__(self) -> None:
        forms = {"tags": "{node: tag}", "specs": "{tag: DelegationSpec(backend)}"}
        forms["reasons"] = "{node: text}"
        for name, form in forms.items():
            if not isinstance(getattr(self, name), Mapping):
                kind = type(getattr(self, name)).__name__
                raise LoweringError(
                    f"PartitionResult is given a {kind} as its {name}\n  instead: {name}={form}"
                )
        texts = {"tag": self.tags.values(), "reason": self.reasons.values()}
        for name, values in texts.items():
            for value in values:
                if not isinstance(value, str):
                    raise LoweringError(
                        f"PartitionResult is given the {name} {value!r}\n  instead: a text"
                    )


class Partitioner(ABC):
    """Chooses the parts of programs that are handed to a backend."""

    preserve_ops: tuple[OpOverload, ...] = ()
    """Operators that `to_edge_transform_and_lower` does not take apart for it."""
    operators: tuple[BackendOperator, ...] = ()
    """Operators of the backend's own. Programs are partitioned with calls of them in the place of
    the patterns for which they stand."""

    def may_stay(self, node: Node) -> bool:
        """May a call of one of these, which the backend did not take, stay as it is? An executable
        must have a way to compute it; else all of its operator are taken apart after all."""
        return False

    @abstractmethod
    def partition(self, program: ExportedProgram) -> PartitionResult:
        """Say which nodes of the program's graph the backend takes."""


def is_operator(node: Node) -> bool:
    """Is it a call that computes something, and that a backend could take?"""
    if node.op != "call_function" or node.target is CALL_DELEGATE:
        return False
    return isinstance(node.target, (EdgeOperator, HigherOrderOperator))


class CapabilityPartitioner(Partitioner):
    """Takes every operator that a backend can compute. `explain(node)` says why it cannot compute a
    call; "" if it can. As few delegates are made as there can be."""

    def __init__(self, spec: DelegationSpec, explain: Callable[[Node], str]) -> None:
        self.spec, self.explain = spec, explain

    def partition(self, program: ExportedProgram) -> PartitionResult:
        reasons = {n: self._explain(n) for n in program.graph.nodes if is_operator(n)}
        groups = group_nodes(program.graph, {n for n, reason in reasons.items() if not reason})
        tags = {node: f"part{i}" for i, group in enumerate(groups) for node in group}
        return PartitionResult(
            tags,
            dict.fromkeys(tags.values(), self.spec),
            {node: reason for node, reason in reasons.items() if reason},
        )

    def _explain(self, node: Node) -> str:
        reason: Any = self.explain(node)
        if not isinstance(reason, str):
            raise LoweringError.at(
                f"explain says {reason!r} of {node.name!r}",
                source_place(node),
                why="it says as a text why the backend does not take a call",
                instead='"" for a call that the backend takes',
            )
        return reason


class PatternPartitioner(Partitioner):
    """Takes chains of operators, each a delegate of its own: in a chain, each call is the only
    reader of the one before it. Longer patterns are tried first."""

    def __init__(self, spec: DelegationSpec, patterns: Iterable[Sequence[EdgeOperator]]) -> None:
        self.spec = spec
        self.patterns = sorted(map(_require_pattern, patterns), key=len, reverse=True)

    def partition(self, program: ExportedProgram) -> PartitionResult:
        tags: dict[Node, str] = {}
        operators = [n for n in program.graph.nodes if is_operator(n)]
        for node in operators:
            for pattern in self.patterns:
                chain = _match_chain(node, pattern)
                if chain and not any(n in tags for n in chain):
                    tags |= dict.fromkeys(chain, f"part{len(set(tags.values()))}")
                    break
        reasons = {n: "it is in none of the patterns" for n in operators if n not in tags}
        return PartitionResult(tags, dict.fromkeys(tags.values(), self.spec), reasons)


def _require_pattern(pattern: Any) -> tuple[EdgeOperator, ...]:
    listed = tuple(pattern) if isinstance(pattern, (list, tuple)) else ()
    if not listed or not all(isinstance(each, EdgeOperator) for each in listed):
        raise LoweringError(
            f"{pattern!r} is no pattern\n  instead: a list of operators of the Edge dialect, "
            "[lostwax.ops.edge.aten.mul.Tensor, lostwax.ops.edge.aten.erf.default]"
        )
    return listed


def _match_chain(node: Node, pattern: Sequence[EdgeOperator]) -> list[Node]:
    chain = [node]
    while node.target is pattern[len(chain) - 1]:
        if len(chain) == len(pattern):
            return chain
        if len(node.users) != 1:
            return []
        (node,) = node.users
        chain.append(node)
    return []


# ------------------------------------------------------------------------------- groups


def group_nodes(graph: Graph, taken: set[Node]) -> list[list[Node]]:
    """Put the nodes of a `graph` that are `taken` into groups, as few as there can be, such that
    no value leaves a group and comes back into it: each group can be computed at once.

    Each node has a stage. It is that of its latest operand; but a node that is not taken comes a
    stage after those that are. So from a group, which are the nodes of one stage that are taken,
    every way outside leads to later stages alone.
    """
    stages: dict[Node, int] = {}
    taken = set(taken)
    for node in graph.nodes:
        before = find_predecessors(node, stages)
        if follows_producer(node) and node.args[0] in taken:
            taken.add(node)
        is_outside = node not in taken
        stages[node] = max((stages[n] + (is_outside and n in taken) for n in before), default=0)
    _move_to_readers(graph, taken, stages)
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in taken:
            groups.setdefault(stages[node], []).append(node)
    return [groups[stage] for stage in sorted(groups)]


def _move_to_readers(graph: Graph, taken: set[Node], stages: dict[Node, int]) -> None:
    """Let nodes be computed as late as what reads them allows: less is handed from one group to
    another, such as weights that are only transposed."""
    for node in reversed(graph.nodes):
        readers = [n for n in node.users if n.op == "call_function"]
        if node in taken and readers and not is_ordered(node):
            stages[node] = min(stages[n] - (n not in taken) for n in readers)


def follows_producer(node: Node) -> bool:
    """Does it read one of several results of a call? It belongs where that is computed."""
    return node.target is operator.getitem


def find_predecessors(node: Node, known: dict[Node, Any]) -> list[Node]:
    """What must be computed before a node: its operands, and, if it draws random numbers or has
    effects, the last call before it that does."""
    before = list(node.all_input_nodes)
    if is_ordered(node):
        last = next((n for n in reversed(known) if is_ordered(n)), None)
        before += [] if last is None else [last]
    return before


def is_ordered(node: Node) -> bool:
    """Does it matter which of such calls comes first?"""
    target = overload_of(node.target)
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
