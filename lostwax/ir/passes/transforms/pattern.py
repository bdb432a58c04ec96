"""Replacement by pattern: torch.fx's subgraph rewriter, on programs.

Patterns and replacements are functions that call ATen operators. New nodes get their types and
their provenance when the draft is finished. Must not judge whether a replacement computes the same:
the user answers for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, GraphModule, subgraph_rewriter, symbolic_trace

from lostwax.errors import PassError
from lostwax.ir.graph.retype import PROVENANCE
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass

Pattern = Callable[..., Any] | Graph | GraphModule
Filter = Callable[[Any, Graph, Graph], bool]


@dataclass(frozen=True)
class ReplacePattern(Pass):
    """Replaces each match of `pattern` by `replacement`, in sub-graphs too.

    Both are functions with the same arguments, of tensors, that call ATen operators:

        def pattern(x, y):
            return torch.ops.aten.relu.default(torch.ops.aten.add.Tensor(x, y))

    A match is taken only if each of `filters` (match, graph, pattern graph) → bool says so. With
    `ignore_literals`, numbers in the pattern match any number. New nodes come from the lines of the
    nodes that they replace.
    """

    pattern: Pattern
    replacement: Pattern
    filters: tuple[Filter, ...] = ()
    ignore_literals: bool = False

    def edit(self, draft: Draft) -> None:
        pattern, replacement = _pattern_graph(self.pattern), _pattern_graph(self.replacement)
        taken, given = (_count_arguments(g) for g in (pattern, replacement))
        if taken != given:
            raise PassError(f"the pattern takes {taken} arguments, its replacement {given}")
        for module in list(draft.graph_modules()):
            found = subgraph_rewriter.replace_pattern_with_filters(
                module,
                pattern,
                replacement,
                list(self.filters) or None,
                self.ignore_literals,
            )
            for match in found:
                _explain_match(match)


def _pattern_graph(pattern: Pattern) -> Graph:
    if isinstance(pattern, Graph):
        return pattern
    return pattern.graph if isinstance(pattern, GraphModule) else symbolic_trace(pattern).graph


def _count_arguments(graph: Graph) -> int:
    return sum(n.op == "placeholder" for n in graph.nodes)


def _explain_match(match: subgraph_rewriter.ReplacedPatterns) -> None:
    """Give new nodes the source line of the last node that they replace, which others read."""
    last = match.nodes_map[match.anchor]
    for node in match.replacements:
        node.meta.update({k: last.meta[k] for k in PROVENANCE if k in last.meta})
