"""Back from the Edge dialect to ATen: the same graph, over the operators that Edge's stand for.

For consumers that take ATen programs. Must not change the program that it reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from lostwax.dialects.edge_operators import EdgeOperator, edge
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.program import ExportedProgram

aten = torch.ops.aten


def lift_to_aten(program: ExportedProgram) -> ExportedProgram:
    """The program over ATen operators. Views stay copies, and constants stay inputs."""
    module, _ = copy_module(program.graph_module)
    for graph_module in graph_modules(module):
        for node in graph_module.graph.nodes:
            if isinstance(node.target, EdgeOperator):
                _lift(node)
        graph_module.recompile()
    return replace(program, graph_module=module, dialect="ATEN")


def _lift(node: Any) -> None:
    target = _PLAIN.get(node.target)
    if target is None:
        node.target = node.target.overload
        return
    left = {k: v for k, v in node.kwargs.items() if k not in ("dim_order", "non_blocking")}
    node.target, node.kwargs = target, left


_PLAIN = {
    edge.dim_order_ops._to_dim_order_copy.default: aten._to_copy.default,
    edge.dim_order_ops._clone_dim_order.default: aten.clone.default,
    edge.dim_order_ops._empty_dim_order.default: aten.empty.memory_format,
}
"""What stands for copies in a dim order; programs of ours have only contiguous ones."""
