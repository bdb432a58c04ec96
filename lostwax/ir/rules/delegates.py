"""The rules of calls of delegates: what these are given, and what they return.

Must not change the graph, nor ask questions that add guards.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from lostwax.ir.graph.control import differ, recorded_value, returned_values
from lostwax.ir.graph.delegate import CALL_DELEGATE, LoweredBackendModule, find_delegate
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.rules.graph import value_text
from lostwax.ir.signature import InputKind

Found = Iterator[tuple[Node | str | None, str]]


def check_delegates(module: GraphModule) -> Found:
    """Check that delegates are called, with what their programs take, for what these return."""
    for node in module.graph.find_nodes(op="get_attr"):
        if isinstance(find_attribute(module, str(node.target)), LoweredBackendModule):
            for user in node.users:
                if user.target is not CALL_DELEGATE or user.args.index(node):
                    yield user, f"it reads the delegate {node.name!r}, and does not call it"
    for node in module.graph.find_nodes(op="call_function", target=CALL_DELEGATE):
        delegate = find_delegate(node)
        if delegate is None:
            yield node, "it calls no delegate"
        else:
            yield from _check_call(node, delegate)


def _check_call(node: Node, delegate: LoweredBackendModule) -> Found:
    program = delegate.program
    inputs = [
        each
        for each, spec in zip(
            program.graph.find_nodes(op="placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is InputKind.USER_INPUT
    ]
    given = [recorded_value(a) for a in node.args[1:]]
    if len(given) != len(inputs):
        yield node, f"the delegate takes {len(inputs)} inputs, and is given {len(given)}"
        return
    for each, value in zip(inputs, given, strict=True):
        if differ(each.meta.get("val"), value):
            own = value_text(each.meta.get("val"))
            yield node, f"its input {each.name!r} is {own}, and is given {value_text(value)}"
    values, results = node.meta.get("val"), returned_values(program.graph_module)
    if not isinstance(values, (tuple, list)) or len(values) != len(results):
        yield (
            node,
            f"meta['val'] is {value_text(values)}, and the delegate returns {value_text(results)}",
        )
        return
    for i, (recorded, result) in enumerate(zip(values, results, strict=True)):
        if differ(recorded, result):
            text = f"value {i} of meta['val'] is {value_text(recorded)}"
            yield node, f"{text}, and the delegate returns {value_text(result)}"


DELEGATE_RULE = (
    "delegates",
    "delegates are called with what they take, for what they return",
    check_delegates,
)
