"""Delegates in the branches and bodies of control flow.

A body is partitioned as a program of its own: what the call gives it of constants is that program's
state, all else are its inputs. Constants that no body reads any more, as they moved into delegates,
are no longer given. Must not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from lostwax.backends.extract import find_constants, make_program
from lostwax.backends.partition import PartitionResult
from lostwax.ir.graph.control import Body, ControlCall, describe_call, find_calls
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.rewriter import argument_of
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import InputKind, InputSpec

Lower = Callable[[ExportedProgram], ExportedProgram]
"""Lowers a body as a program, whose inputs all stay."""


def lower_bodies(
    program: ExportedProgram, result: PartitionResult, lower: Lower
) -> tuple[ExportedProgram, PartitionResult]:
    """The program with lowered bodies, but for those of calls that a backend takes whole; and what
    the partitioner said of it."""
    calls = [c for c in find_calls(program.graph) if c.node not in result.tags]
    if not calls:
        return program, result
    constants = find_constants(program)
    readers: dict[str, list[Body]] = {}
    for call in find_calls(program.graph):
        for body in call.bodies:
            readers.setdefault(body.source.target, []).append(body)
    module, new = copy_module(program.graph_module)
    for path in dict.fromkeys(b.source.target for c in calls for b in c.bodies):
        found = readers[path][0].find_module()
        assert found is not None
        bound = _bind_constants(found, readers[path], constants)
        lowered = lower(_make_program(program, found, bound))
        setattr(module, path, lowered.graph_module)
    for call in calls:
        if all(len(readers[body.source.target]) == 1 for body in call.bodies):
            again = describe_call(new[call.node])
            assert again is not None
            _drop_unread(again, {new[n] for n in constants})
    return replace(program, graph_module=module), _translate(result, new)


def _bind_constants(
    module: GraphModule, bodies: list[Body], constants: Mapping[Node, InputSpec]
) -> dict[Node, InputSpec]:
    """The inputs of a body that are always the same constant, whichever call runs it."""
    bound: dict[Node, InputSpec] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        given = {body.operands[i] if i >= body.fixed else None for body in bodies}
        (only, *others) = given
        if not others and isinstance(only, Node) and only in constants:
            bound[node] = constants[only]
    return bound


def _make_program(
    program: ExportedProgram, module: GraphModule, bound: Mapping[Node, InputSpec]
) -> ExportedProgram:
    """The body as a program. It may return a single value: its graph is that of the body."""
    inputs = []
    for node in module.graph.find_nodes(op="placeholder"):
        spec = bound.get(node) or InputSpec(InputKind.USER_INPUT, argument_of(node), None)
        inputs.append(replace(spec, arg=argument_of(node)))
    returned = [argument_of(v) for v in tree_leaves(module.graph.output_node().args[0])]
    return make_program(program, module, inputs, returned)


def _drop_unread(call: ControlCall, constants: set[Node]) -> None:
    """Do not give the bodies of a call constants that none of them reads."""
    place, listed = call.extra
    if listed is None:
        return
    modules: Any = [body.find_module() for body in call.bodies]
    inputs = [module.graph.find_nodes(op="placeholder") for module in modules]
    operands, first = call.bodies[0].operands, call.bodies[0].fixed
    unread = [
        i
        for i in range(first, len(operands))
        if operands[i] in constants and not any(nodes[i].users for nodes in inputs)
    ]
    for module, nodes in zip(modules, inputs, strict=True):
        for i in unread:
            module.graph.erase_node(nodes[i])
    args = list(call.node.args)
    given: Any = args[place]
    left = [operands[i] for i in range(first, len(operands)) if i not in unread]
    args[place] = tuple(left) if isinstance(given, tuple) else left
    call.node.args = tuple(args)


def _translate(result: PartitionResult, new: Mapping[Node, Node]) -> PartitionResult:
    """What the partitioner said, of the copied nodes."""
    return replace(
        result,
        tags={new.get(n, n): tag for n, tag in result.tags.items()},
        reasons={new[n]: reason for n, reason in result.reasons.items() if n in new},
        shared=frozenset(new[n] for n in result.shared if n in new),
    )
