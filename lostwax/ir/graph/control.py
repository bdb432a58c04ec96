"""Calls that take sub-graphs: which graphs a call runs, what it gives to each, what it returns.

One description for all that reads programs: rules, types, passes. An operator that is not described
here (a user's own, or one that carries other functions) is left as it is. Must not run anything,
and must not ask questions that add guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.fake import FakeTensor
from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import called_functions, insert_node
from lostwax.ops.shapes import is_same
from lostwax.types import TensorType


class Body(NamedTuple):
    """A sub-graph of a call: its role, the argument that reads it, and what it is given."""

    role: str
    source: Any
    operands: tuple[Any, ...]
    """The arguments of the call that become its inputs, in order."""
    rows: range = range(0)
    """Which of these it gets row by row."""
    fixed: int = 0
    """The first of these that is the same whenever the call runs it."""

    def find_module(self) -> GraphModule | None:
        """The sub-graph; None if the argument does not read one."""
        source = self.source
        if not isinstance(source, Node) or source.op != "get_attr":
            return None
        found = find_attribute(source.graph.owning_module, str(source.target))
        return found if isinstance(found, GraphModule) else None

    def given_values(self) -> list[Any]:
        """The values of its inputs, as they are recorded for the arguments of the call."""
        values = [recorded_value(o) for o in self.operands]
        return [row_of(v) if i in self.rows else v for i, v in enumerate(values)]


class ControlCall(NamedTuple):
    """A call of a higher-order operator."""

    node: Node
    bodies: tuple[Body, ...]
    extra: tuple[int, int | None]
    """Where the arguments lie that all its bodies get last: the place of the list, or of the first
    one if they are not in a list (then the second is None)."""


# ------------------------------------------------------------------------------------ descriptions


def _describe_cond(node: Node) -> ControlCall:
    _, on_true, on_false, operands = node.args
    given = _as_tuple(operands)
    bodies = Body("true branch", on_true, given), Body("false branch", on_false, given)
    return ControlCall(node, bodies, (3, 3))


def _describe_while_loop(node: Node) -> ControlCall:
    condition, body, carried, more = node.args
    given = (*_as_tuple(carried), *_as_tuple(more))
    fixed = len(_as_tuple(carried))
    bodies = (
        Body("condition", condition, given, fixed=fixed),
        Body("body", body, given, fixed=fixed),
    )
    return ControlCall(node, bodies, (3, 3))


def _describe_map(node: Node) -> ControlCall:
    body, mapped, more = node.args
    rows = _as_tuple(mapped)
    given = (*rows, *_as_tuple(more))
    return ControlCall(node, (Body("body", body, given, range(len(rows)), len(rows)),), (2, 2))


def _describe_scan(node: Node) -> ControlCall:
    body, first, scanned, more = node.args
    carried, rows = _as_tuple(first), _as_tuple(scanned)
    places = range(len(carried), len(carried) + len(rows))
    given = (*carried, *rows, *_as_tuple(more))
    return ControlCall(node, (Body("body", body, given, places, places.stop),), (3, 3))


def _describe_associative_scan(node: Node) -> ControlCall:
    body, scanned, more = node.args
    rows = _as_tuple(scanned)
    given = (*rows, *rows, *_as_tuple(more))
    both = range(2 * len(rows))
    return ControlCall(node, (Body("body", body, given, both, both.stop),), (2, 2))


def _describe_plain(place: int, first: int) -> Callable[[Node], ControlCall]:
    """Describe a call that runs one graph once, on the arguments from the place `first` on."""

    def describe(node: Node) -> ControlCall:
        body = Body("body", node.args[place], tuple(node.args[first:]))
        return ControlCall(node, (body,), (first, None))

    return describe


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{value!r} is no list of operands")
    return tuple(value)


TUPLES = {"cond": (3,), "while_loop": (2, 3), "scan": (3,), "associative_scan": (2,)}
"""For each operator, the places of the operands that a capture gives as a tuple, as torch does;
other operands are lists."""
LISTS = ("scan", "associative_scan")
"""The operators whose body returns a list, as torch's does; other bodies return tuples."""
_DESCRIPTIONS: dict[str, Callable[[Node], ControlCall]] = {
    "cond": _describe_cond,
    "while_loop": _describe_while_loop,
    "map_impl": _describe_map,
    "scan": _describe_scan,
    "associative_scan": _describe_associative_scan,
    "invoke_subgraph": _describe_plain(0, 2),
    "wrap_with_set_grad_enabled": _describe_plain(1, 2),
    "wrap_with_autocast": _describe_plain(4, 5),
}


def describe_call(node: Node) -> ControlCall | None:
    """Say what a call runs; None if nothing is known of its operator. Raise `ValueError` if its
    arguments are not those of the operator."""
    target = node.target
    if not isinstance(target, HigherOrderOperator) or target.name() not in _DESCRIPTIONS:
        return None
    return _DESCRIPTIONS[target.name()](node)


def find_described(graph: Graph) -> list[Node]:
    """The calls of a graph whose operators this file knows, in order of the graph."""
    targets = [t for t in called_functions(graph) if isinstance(t, HigherOrderOperator)]
    if not any(t.name() in _DESCRIPTIONS for t in targets):
        return []
    return [n for n in graph.nodes if n.target in targets and n.target.name() in _DESCRIPTIONS]


def find_calls(graph: Graph) -> Iterator[ControlCall]:
    """The calls of a graph that run sub-graphs."""
    for node in find_described(graph):
        call = describe_call(node)
        assert call is not None
        yield call


# ------------------------------------------------------------------------------------------ values


def recorded_value(value: Any) -> Any:
    """What is recorded for an argument; a constant is itself."""
    return value.meta.get("val") if isinstance(value, Node) else value


def differ(a: Any, b: Any, sizes: bool = True) -> bool:
    """Are two values surely of different types? Without `sizes`, these may differ."""
    if isinstance(a, FakeTensor) and isinstance(b, FakeTensor):
        t, other = a.fake_type, b.fake_type
        if t.dtype is not other.dtype or len(t.size) != len(other.size):
            return True
        if t.device.type != other.device.type:
            return True
        pairs = zip(t.size, other.size, strict=True) if sizes else ()
        return any(x != y for x, y in pairs if x.__class__ is int and y.__class__ is int)
    return _kind_of(a) is not _kind_of(b)


def _kind_of(value: Any) -> Any:
    """The class of a value, the same for a number and a symbolic one."""
    if isinstance(value, FakeTensor):
        return FakeTensor
    plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return plain.get(value.__class__, value.__class__)


def row_of(value: Any) -> Any:
    """The type of one row of a tensor, without its first dimension."""
    if not isinstance(value, FakeTensor) or not value.fake_type.size:
        return value
    t = value.fake_type
    return new_fake(value.fake_mode, t.replace(size=t.size[1:], stride=t.stride[1:]))


def stack_of(value: Any, length: Any) -> Any:
    """The type of `length` such values, stacked."""
    if not isinstance(value, FakeTensor):
        return value
    t = value.fake_type
    return new_fake(value.fake_mode, TensorType((length, *t.size), t.dtype, t.device))


def returned_values(module: GraphModule) -> Any:
    """What is recorded for the results of a sub-graph: a tuple, or one value."""
    result: Any = module.graph.output_node().args[0]
    if isinstance(result, (tuple, list)):
        return tuple(map(recorded_value, result))
    return recorded_value(result)


def call_value(call: ControlCall) -> Any:
    """What a call returns, by the values that are recorded for the results of its sub-graphs. Sizes
    in which branches differ stay as they are recorded for the call."""
    graphs = [body.find_module() for body in call.bodies]
    results = [returned_values(graph) for graph in graphs if graph is not None]
    name = call.node.target.name()  # type: ignore[union-attr]
    old = call.node.meta.get("val")
    if name == "cond":
        return _merge(results[0], results[1], old)
    if name == "while_loop":
        carried = tuple(recorded_value(v) for v in _as_tuple(call.node.args[2]))
        return _merge(results[1], carried, old)
    if name in ("map_impl", "scan"):
        rows = call.bodies[0].rows
        length = recorded_value(call.bodies[0].operands[rows[0]]).fake_type.size[0]
        (made,) = results
        first = call.bodies[0].given_values()[: rows[0]]
        olds = old[: rows[0]] if isinstance(old, (tuple, list)) else None
        return (
            *_merge(made[: rows[0]], first, olds),
            *(stack_of(value, length) for value in made[rows[0] :]),
        )
    if name == "associative_scan":
        scanned = _as_tuple(call.node.args[1])
        return tuple(_dense(recorded_value(v)) for v in scanned)
    return results[0]


def _merge(a: Any, b: Any, old: Any) -> Any:
    """A value that is the one or the other. The sizes that differ are those of `old`."""
    if isinstance(a, (tuple, list)):
        olds = old if isinstance(old, (tuple, list)) and len(old) == len(a) else [None] * len(a)
        return tuple(_merge(x, y, z) for x, y, z in zip(a, b, olds, strict=True))
    if isinstance(a, FakeTensor) and isinstance(b, FakeTensor):
        t, other = a.fake_type, b.fake_type
        if t.size == other.size and t.stride == other.stride:
            return a
        if isinstance(old, FakeTensor) and old.ndim == a.ndim:
            pairs = zip(t.size, other.size, old.fake_type.size, strict=True)
            size = tuple(x if is_same(x, y) else z for x, y, z in pairs)
            if size == old.fake_type.size:
                t = t.replace(size=size, stride=old.fake_type.stride)
                return new_fake(a.fake_mode, t)
            return new_fake(a.fake_mode, TensorType(size, t.dtype, t.device))
        return a
    if isinstance(old, SYMBOLIC) and a is not b:
        return old
    return a


def _dense(value: Any) -> Any:
    t = value.fake_type
    return new_fake(value.fake_mode, TensorType(t.size, t.dtype, t.device))


# ------------------------------------------------------------------------------------------- edits


def add_operand(call: ControlCall, value: Node, name: str) -> list[Node]:
    """Give a further value to all bodies of a call; return the new input of each of them."""
    place, listed = call.extra
    args = list(call.node.args)
    if listed is None:
        args.append(value)
    else:
        given = (*_as_tuple(args[place]), value)
        args[place] = given if isinstance(args[place], tuple) else list(given)
    call.node.args = tuple(args)
    made = []
    for body in call.bodies:
        module = body.find_module()
        assert module is not None
        graph = module.graph
        taken = {n.name for n in graph.nodes}
        free = next(n for n in _count_names(name) if n not in taken)
        with graph.inserting_before(_first_after_inputs(graph)):
            node = insert_node(graph, "placeholder", free, free, (), {})
        node.meta["val"] = value.meta["val"]
        made.append(node)
    return made


def _count_names(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1


def _first_after_inputs(graph: Graph) -> Node:
    found: Node = next(n for n in graph.nodes if n.op != "placeholder")
    return found
