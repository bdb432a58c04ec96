"""Finds the sub-graphs that a graph refers to, by the attributes that hold them.

Must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule


def find_attribute(root: Any, path: str) -> Any:
    """Find what lies at a dotted path; None if nothing does."""
    for part in path.split("."):
        root = getattr(root, part, None)
    return root


def subgraphs(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The sub-graphs that the nodes of a graph read, each once, by path."""
    paths = dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    for path in paths:
        child = find_attribute(module, path)
        if isinstance(child, GraphModule):
            yield path, child


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """The module and its sub-graphs, however deep, each once."""
    return (child for child in module.modules() if isinstance(child, GraphModule))
