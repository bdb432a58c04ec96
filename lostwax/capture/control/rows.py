"""`map`, `scan` and `associative_scan`: loops over the rows of tensors.

What the body returns for each row is stacked. Must not know how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture.control.cond import record_cond
from lostwax.capture.control.loops import Loop, describe_type, stack_type
from lostwax.capture.control.outputs import new_results
from lostwax.capture.control.scope import RecordedFunction, Scope
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.ir.trace.log import Operands, Value
from lostwax.ops.shapes import require
from lostwax.sym import eq
from lostwax.types import TensorType


def record_map(
    tracer: Tracer,
    f: Callable[..., Any],
    xs: Sequence[Any],
    pos_args: Sequence[Any],
) -> Any:
    """`torch.ops.higher_order.map_impl`: the body gets rows, and then `pos_args` as they are."""
    loop = Loop(tracer, "map")
    length = _find_length(tracer, xs, "map")
    for x in xs:
        loop.take_rows(x)
    body = loop.record_body(f, pos_args, _BodyResults(loop, 0).check)
    loop.check_pure(
        body,
        "the body",
        "map says nothing of the order of its iterations",
        "scan, which hands a value on",
    )
    returned = body.scope.return_new(body.leaves)
    lifting = loop.lift(pos_args, (body, returned))
    graph = lifting.make_graph("body_graph", body.scope, returned)
    given = [slot.given for slot in loop.slices]
    operands = [graph, given, loop.find_additional(lifting)]
    step = tracer.append_step(torch.ops.higher_order.map_impl, operands, {})
    results = new_results(tracer, step, _stack_types(returned, length))
    return _unflatten(results, body)


def record_scan(
    tracer: Tracer,
    combine_fn: Callable[..., Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """`torch.ops.higher_order.scan`: the body gets what is handed on, then rows; it returns what
    goes to the next row, then what is stacked."""
    loop = Loop(tracer, "scan")
    length = _find_length(tracer, xs, "scan")
    count = len(init)
    for each in init:
        loop.pass_to_next_iteration(each)
    for x in xs:
        loop.take_rows(x)
    body = loop.record_body(combine_fn, additional_inputs, _BodyResults(loop, count).check)
    results = append_scan(loop, body, length, additional_inputs)
    loop.note_sharing(body, results[:count])
    return _unflatten(results, body)


def append_scan(
    loop: Loop, body: RecordedFunction, length: Any, additional: Sequence[Any] = ()
) -> list[Any]:
    """Append the step of a scan over so many rows whose body is recorded. Returns what is handed
    on, as it is after the loop, and what is stacked."""
    tracer, count = loop.tracer, len(loop.carried)
    loop.check_apart(body)
    loop.check_first_iteration(body)
    _demand_outside(tracer, body.scope)
    handed, rows = body.leaves[:count], body.leaves[count:]
    slots = [*loop.carried, *loop.rest]
    types = [slot.type for slot in slots]
    values = [*handed, *loop.find_values_after(body), *rows]
    returned = body.scope.return_new(values, types)
    lifting = loop.lift(additional, (body, returned))
    graph = lifting.make_graph("scan_combine_graph", body.scope, returned, list)
    operands = [
        graph,
        [slot.given for slot in slots],
        [slot.given for slot in loop.slices],
        Operands(loop.find_additional(lifting)),
    ]
    step = tracer.append_step(torch.ops.higher_order.scan, operands, {})
    stacked = _stack_types(returned[len(slots) :], length)
    results = new_results(tracer, step, [*loop.find_result_types(), *stacked])
    loop.return_carried(results[count : len(slots)])
    return [*results[:count], *results[len(slots) :]]


def _demand_outside(tracer: Tracer, scope: Scope) -> None:
    """What the body needs of the sizes of inputs is needed in any case, since it runs."""
    needed = [each for each in scope.guards if each.cond.hint is not None]
    scope.guards = [each for each in scope.guards if each.cond.hint is None]
    tracer.shape_env.guards += needed
    for each in needed:
        tracer.shape_env.absorb(each.cond)


def record_associative_scan(
    tracer: Tracer,
    combine_fn: Callable[..., Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """`torch.ops.higher_order.associative_scan`: the body gets two rows of each tensor."""
    loop = Loop(tracer, "associative_scan")
    length = _find_length(tracer, xs, "associative_scan")
    for x in (*xs, *xs):
        loop.take_rows(x)
    body = loop.record_body(combine_fn, additional_inputs, _BodyResults(loop, 0).check)
    why = "associative_scan says nothing of the order of its calls"
    loop.check_pure(body, "the function", why, "scan, which goes from row to row")
    types = [slot.type for slot in loop.slices[: len(xs)]]
    _check_same(loop, body, types)
    returned = body.scope.return_new(body.leaves, types)
    lifting = loop.lift(additional_inputs, (body, returned))
    graph = lifting.make_graph("associative_scan_combine_graph", body.scope, returned, list)
    given = [slot.given for slot in loop.slices[: len(xs)]]
    operands = [graph, given, Operands(loop.find_additional(lifting))]
    step = tracer.append_step(torch.ops.higher_order.associative_scan, operands, {})
    results = new_results(tracer, step, _stack_types(returned, length))
    return _unflatten(results, body)


def scan_rows(
    tracer: Tracer, combine_fn: Callable[..., Any], leaves: Sequence[Any], structure: Any
) -> list[Any]:
    """`associative_scan` of a length that varies, row after row: the function's first argument is
    what the rows before amount to. For the first row it is not called, nor is it differentiated
    there: a row combined with itself may be infinite."""
    count = len(leaves)

    def step(*args: Any) -> list[Any]:
        (is_first, *before), row = args[: count + 1], args[count + 1 :]
        both = [pytree.tree_unflatten(list(each), structure) for each in (before, row)]
        chosen = record_cond(
            tracer,
            is_first,
            lambda: [each.clone() for each in row],
            lambda: pytree.tree_leaves(combine_fn(*both)),
            (),
        )
        return [torch.zeros_like(is_first), *chosen, *[each.clone() for each in chosen]]

    first = torch.ones((), dtype=torch.bool, device=leaves[0].device)
    init = [first, *[leaf[0] for leaf in leaves]]
    return list(record_scan(tracer, step, init, leaves))[count + 1 :]


def _find_length(tracer: Tracer, xs: Sequence[Any], what: str) -> Any:
    """How many rows the tensors have, all of them."""
    if not xs or not all(isinstance(x, torch.Tensor) and x.dim() for x in xs):
        raise CaptureError.here(
            f"{what} goes over {'nothing' if not xs else 'something without rows'}",
            instead="give it tensors that have a dimension",
        )
    first, *others = [tracer.adopt(x).fake_type.size[0] for x in xs]
    for other in others:
        require(eq(first, other), f"{what} expects tensors with as many rows, {first} and {other}")
    return first


class _BodyResults:
    """What a body returns: first what is handed on, then what is stacked."""

    def __init__(self, loop: Loop, count: int) -> None:
        self.loop = loop
        self.count = count

    def check(self, scope: Scope, leaves: list[Any]) -> None:
        count, loop = self.count, self.loop
        if len(leaves) < count:
            raise CaptureError(
                f"the function of {loop.what} is handed {count} values, and returns only "
                f"{len(leaves)}.\n  at {loop.where}\n"
                "  instead: return what goes to the next row, and what is stacked: carry, out"
            )
        names = [f"value {i}" if count > 1 else "the value" for i in range(count)]
        loop.check_carried(leaves[:count], names)
        for leaf in leaves[count:]:
            if not isinstance(leaf, Value) or leaf.type is None:
                raise CaptureError(
                    f"the function of {loop.what} returns {leaf!r}, of class "
                    f"{type(leaf).__name__}.\n  at {loop.where}\n"
                    "  why: what it returns for each row is stacked\n"
                    "  instead: return tensors, torch.tensor(value)"
                )
            if any(s.unbacked and s in self._own(scope) for s in _symbols(leaf.type)):
                raise CaptureError(
                    f"the function of {loop.what} returns {describe_type(leaf.type)}, whose size "
                    f"depends on data.\n  at {loop.where}\n"
                    "  why: what it returns for each row is stacked, so all must have one size\n"
                    "  instead: pad it to a size that does not depend on data"
                )

    def _own(self, scope: Scope) -> Sequence[Any]:
        """The symbols that the body has made."""
        return self.loop.tracer.shape_env.symbols[scope.symbols :]


def _symbols(t: TensorType) -> set[Any]:
    return {s for size in t.size if not isinstance(size, int) for s in size.symbols()}


def _check_same(loop: Loop, body: RecordedFunction, types: Sequence[Any]) -> None:
    for t, leaf in zip(types, body.leaves, strict=False):
        if (t.dtype, t.size) != (leaf.type.dtype, leaf.type.size) or len(body.leaves) != len(types):
            raise CaptureError(
                f"the function of {loop.what} takes {describe_type(t)}, and returns "
                f"{describe_type(leaf.type)}.\n  at {loop.where}\n"
                "  why: what it returns is what it is called with next\n"
                "  instead: return the type and size that it is given"
            )


def _stack_types(rows: Sequence[Value], length: Any) -> list[TensorType]:
    return [stack_type(row.type, length) for row in rows if row.type is not None]


def _unflatten(results: Sequence[Any], body: RecordedFunction) -> Any:
    return pytree.tree_unflatten(list(results), body.structure)
