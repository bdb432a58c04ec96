"""From a program to delegates at once: `to_edge_transform_and_lower`.

Must not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch._ops import OpOverload

from lostwax.backends.asking import require_partitioner
from lostwax.backends.lower import Partitioners, lower_methods
from lostwax.backends.partition import Partitioner
from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.dialects.manager import AnyPass, EdgeConfig, EdgeProgramManager, Programs, to_edge
from lostwax.dialects.methods import require_config
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.program import ExportedProgram


def to_edge_transform_and_lower(
    program: Programs,
    transform_passes: Sequence[AnyPass] | Mapping[str, Sequence[AnyPass]] | None = None,
    partitioner: Partitioners | Mapping[str, Partitioners] | None = None,
    *,
    constant_methods: Mapping[str, Any] | None = None,
    config: EdgeConfig | None = None,
) -> EdgeProgramManager:
    """Take a `program`, or several by the names of their methods, to the Edge dialect, run
    `transform_passes`, and hand what each `partitioner` takes to its backend. `constant_methods`
    and `config` are those of `to_edge`.

    Operators that a partitioner wants whole (`preserve_ops`) are not taken apart. If it then leaves
    a call of one of them that may not stay, all of that operator are taken apart after all.
    """
    config = require_config(config, EdgeConfig)
    partitioners = _list_partitioners(partitioner)
    wanted = {op for each in partitioners for op in each.preserve_ops}
    kept = _find_called(program) & wanted - set(config.preserve_ops)
    while True:
        wider = replace(config, preserve_ops=(*config.preserve_ops, *kept))
        edge = to_edge(program, constant_methods=constant_methods, config=wider)
        if transform_passes is not None:
            edge = edge.transform(transform_passes)
        if partitioner is not None:
            edge = lower_methods(edge, partitioner)
        left = _find_calls(edge, kept, partitioners)
        if not left:
            return edge
        kept -= left


def _list_partitioners(given: Any) -> list[Partitioner]:
    if isinstance(given, Mapping):
        return [each for several in given.values() for each in _list_partitioners(several)]
    several = given if isinstance(given, (list, tuple)) else (given,)
    return [require_partitioner(e, "forward") for e in several if isinstance(e, Partitioner)]


def _find_called(given: Programs) -> set[Any]:
    """What programs call, in ATen."""
    programs = given.values() if isinstance(given, Mapping) else (given,)
    listed = [p for p in programs if isinstance(p, ExportedProgram)]
    return {n.target for p in listed for n in all_nodes(p.graph_module) if n.op == "call_function"}


def _find_calls(
    edge: EdgeProgramManager, kept: set[OpOverload], partitioners: Sequence[Partitioner]
) -> set[OpOverload]:
    """Those of the operators that programs still call, and that may not stay."""
    return {
        node.target.overload
        for name in edge.methods
        for node in all_nodes(edge.exported_program(name).graph_module)
        if isinstance(node.target, EdgeOperator)
        and node.target.overload in kept
        and not any(each.may_stay(node) for each in partitioners)
    }
