"""The delegation report: what was handed to backends, and for all else why not, with the line.

Reasons are kept in the `meta` of nodes, so that they stay with a program through further passes.
Must not change what a program computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from lostwax.backends.partition import is_operator
from lostwax.dialects.manager import EdgeProgramManager
from lostwax.ir.graph.delegate import find_delegates
from lostwax.ir.graph.handles import REASONS
from lostwax.ir.graph.lookup import all_nodes, subgraphs
from lostwax.ir.text import source_place, target_text


def note_reason(node: Node, reason: str) -> None:
    """Write into a node that stays why a backend did not take it."""
    known = node.meta.get(REASONS, ())
    node.meta[REASONS] = (*(r for r in known if r != reason), reason)


@dataclass(frozen=True)
class Undelegated:
    """A call that no backend took."""

    method: str
    node: str
    operator: str
    reasons: tuple[str, ...]
    place: str

    def __str__(self) -> str:
        return f"{self.node} = {self.operator}: {'; '.join(self.reasons)}\n    at {self.place}"


@dataclass(frozen=True)
class Delegated:
    """A delegate: its backend, and how often it has each operator."""

    method: str
    name: str
    backend_id: str
    operators: Mapping[str, int]
    size: int

    def __str__(self) -> str:
        count = sum(self.operators.values())
        return f"{self.name}: {self.backend_id}, {count} operators, {self.size:,} bytes"


@dataclass(frozen=True)
class DelegationReport:
    """What was handed to backends, and what was not."""

    delegates: tuple[Delegated, ...]
    undelegated: tuple[Undelegated, ...]

    @property
    def share(self) -> float:
        """The share of operators that backends took."""
        taken = sum(sum(d.operators.values()) for d in self.delegates)
        return taken / max(taken + len(self.undelegated), 1)

    def __str__(self) -> str:
        taken = sum(sum(d.operators.values()) for d in self.delegates)
        total = taken + len(self.undelegated)
        count = len(self.delegates)
        lines = [f"{taken} of {total} operators in {count} delegate{'s' if count != 1 else ''}"]
        lines += [f"  {each}" for each in (*self.delegates, *self.undelegated)]
        return "\n".join(lines).replace("\n    at", "\n      at")


def make_report(edge: EdgeProgramManager) -> DelegationReport:
    """The report on all methods; see `EdgeProgramManager.delegation_report`."""
    delegates, others = [], []
    for name in sorted(edge.methods):
        module = edge.exported_program(name).graph_module
        delegates += list(_list_delegates(name, module))
        others += list(_list_undelegated(name, module))
    return DelegationReport(tuple(delegates), tuple(others))


def _list_delegates(method: str, module: GraphModule, path: str = "") -> Iterator[Delegated]:
    """The delegates of a graph, then those of its bodies of control flow, by their paths."""
    for node, delegate in find_delegates(module.graph):
        calls = (n for n in all_nodes(delegate.program.graph_module) if is_operator(n))
        operators = Counter(target_text(n.target) for n in calls)
        size = len(delegate.processed_bytes)
        name = f"{path}{node.args[0]}"
        yield Delegated(method, name, delegate.backend_id, operators, size)
    for name, body in subgraphs(module):
        yield from _list_delegates(method, body, f"{path}{name}.")


def _list_undelegated(method: str, module: GraphModule) -> Iterator[Undelegated]:
    for node in all_nodes(module):
        if is_operator(node):
            reasons = node.meta.get(REASONS, ("no backend was asked",))
            text = target_text(node.target)
            yield Undelegated(method, node.name, text, reasons, source_place(node))
