"""`while_loop`: a condition and a body, each a graph of what is handed on.

Inside of the body the condition is known. Must not run an iteration for what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture.control.loops import Loop
from lostwax.capture.control.outputs import new_results
from lostwax.capture.control.scope import RecordedFunction, Scope
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.ir.pytree import leaf_paths
from lostwax.ir.trace.log import Operands, Value
from lostwax.sym import BoolExpr


def call_while(tracer: Tracer, cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """`while_loop` as users call it: what is handed on may be nested."""
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(f"Expect carried_inputs to be a tuple, but got {carried_inputs}.")
    return _While(tracer).record(cond_fn, body_fn, tuple(carried_inputs), ())


def record_while(
    tracer: Tracer,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """`torch.ops.higher_order.while_loop`."""
    given = tuple(additional_inputs)
    return _While(tracer).record(cond_fn, body_fn, tuple(carried_inputs), given)


class _While:
    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.loop = Loop(tracer, "while_loop")

    def record(
        self,
        cond_fn: Callable[..., Any],
        body_fn: Callable[..., Any],
        carried: tuple[Any, ...],
        additional: tuple[Any, ...],
    ) -> Any:
        loop = self.loop
        leaves, structure = pytree.tree_flatten(carried)
        for leaf in leaves:
            loop.pass_to_next_iteration(leaf)
        names = list(leaf_paths(structure, "carried_inputs"))
        loop.check_starts(leaves, names)

        def check(scope: Scope, values: list[Any]) -> None:
            if len(values) != len(leaves):
                raise CaptureError(
                    f"the body of while_loop is handed {len(leaves)} values, and returns "
                    f"{len(values)}.\n  at {loop.where}\n"
                    "  why: what it returns is what the next iteration is handed\n"
                    "  instead: return a tuple of the structure of carried_inputs"
                )
            loop.check_carried(values, names)

        while True:
            objects = [slot.object for slot in loop.carried]
            args = (*pytree.tree_unflatten(objects, structure), *additional)
            condition = self._record_condition(cond_fn, args)
            (holds,) = condition.leaves
            facts = [holds] if isinstance(holds, BoolExpr) else []
            body = loop.record("the body", body_fn, args, facts, check)
            if not loop.is_changed_by(body):
                break
        results = append_while(loop, condition, body, additional)
        return pytree.tree_unflatten(results, body.structure)

    def _record_condition(
        self, cond_fn: Callable[..., Any], args: Sequence[Any]
    ) -> RecordedFunction:
        found = self.loop.record("the condition", cond_fn, args, check=self._check_condition)
        why = "it is asked once more than the body runs"
        self.loop.check_pure(found, "the condition", why, "write to it in the body")
        return found

    def _check_condition(self, scope: Scope, leaves: list[Any]) -> None:
        holds = leaves[0] if len(leaves) == 1 else None
        if isinstance(holds, (bool, BoolExpr)):
            return
        t = holds.type if isinstance(holds, Value) else None
        if t is not None and t.dtype is torch.bool and t.ndim == 0:
            return
        raise CaptureError(
            f"the condition of while_loop returns {_describe(leaves)}.\n  at {self.loop.where}\n"
            "  why: it must be one boolean: a tensor of dtype bool without dimensions, or a bool\n"
            "  instead: say which is meant, (x > 0).any() or (x > 0).all(); x.sum() != 0"
        )


def append_while(
    loop: Loop, condition: RecordedFunction, body: RecordedFunction, additional: Sequence[Any] = ()
) -> list[Any]:
    """Append the step of a loop whose condition and body are recorded. Returns what is handed on,
    as it is after the loop."""
    tracer, (holds,) = loop.tracer, condition.leaves
    loop.check_apart(body)
    loop.check_first_iteration(body)
    values = [*body.leaves, *loop.find_values_after(body)]
    slots = [*loop.carried, *loop.rest]
    returned = body.scope.return_new(values, [slot.type for slot in slots])
    asked = condition.scope.return_new([holds])
    lifting = loop.lift(additional, (condition, asked), (body, returned))
    graphs = [
        lifting.make_graph("while_loop_cond_graph", condition.scope, asked, None),
        lifting.make_graph("while_loop_body_graph", body.scope, returned),
    ]
    step = tracer.append_step(
        torch.ops.higher_order.while_loop,
        [*graphs, Operands([s.given for s in slots]), Operands(loop.find_additional(lifting))],
        {},
    )
    env = tracer.shape_env
    types = [
        t or env.unbacked(origin="a number that a loop returns") for t in loop.find_result_types()
    ]
    results = new_results(tracer, step, types)
    count = len(loop.carried)
    loop.return_carried(results[count:])
    loop.note_sharing(body, results[:count])
    loop.note_starts(results[:count])
    return results[:count]


def _describe(leaves: list[Any]) -> str:
    if len(leaves) != 1:
        return f"{len(leaves)} values"
    (leaf,) = leaves
    if not isinstance(leaf, Value) or leaf.type is None:
        return repr(leaf)
    return f"a tensor of {leaf.type.dtype} and size {list(leaf.type.size)}"
