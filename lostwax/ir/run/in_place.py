"""The state that a training graph writes in place.

Functional graphs return what they write; graphs of the TRAINING dialect keep `add_` and its like,
as the original has them. Must not change the graph.
"""

from __future__ import annotations

from typing import Any

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from lostwax.ir.data import Program
from lostwax.ir.graph.lookup import silent_writes, subgraphs
from lostwax.ops.registry import operator


def find_written_state(program: Program) -> set[str]:
    """The names of the parameters, buffers and constants that running the graph may change."""
    if program.dialect != "TRAINING":
        return set()
    nodes = _written_values(program.graph_module)
    specs = program.graph_signature.input_specs
    placeholders = program.graph.find_nodes(op="placeholder")
    return {
        spec.target
        for node, spec in zip(placeholders, specs, strict=True)
        if node in nodes and spec.target is not None
    }


def _written_values(module: GraphModule) -> set[Node]:
    """The values that are written, and all values that they may be views of."""
    children = dict(subgraphs(module))
    found: set[Node] = set()
    for node in module.graph.nodes:
        for value in _write_targets(node, children):
            while isinstance(value, Node):
                found.add(value)
                value = value.args[0] if value.args and value.op == "call_function" else None
    return found


def _write_targets(node: Node, children: dict[str, GraphModule]) -> list[Any]:
    """The arguments that a node writes to."""
    if node.op != "call_function":
        return []
    if isinstance(node.target, HigherOrderOperator):
        bodies = [n for n in node.all_input_nodes if n.op == "get_attr"]
        writes = any(
            _written_values(children[str(n.target)]) for n in bodies if n.target in children
        )
        return node.all_input_nodes if writes else []
    if not isinstance(node.target, OpOverload):
        return []
    record = operator(node.target)
    given = dict(zip(record.argument_names, node.args, strict=False)) | node.kwargs
    named = [given.get(name) for name in (*record.mutates, *silent_writes(node))]
    return [v for value in named for v in (value if isinstance(value, (list, tuple)) else [value])]
