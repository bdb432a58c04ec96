"""Custom operators that write to their arguments, recorded without a write.

torch has a higher-order operator for them, `auto_functionalized`: it calls the operator on copies
and returns these beside its results. Must not know of torch's own operators: those have functional
twins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lostwax.capture.aliasing import self_overlap
from lostwax.capture.trace.record import note_sizes
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.fake.write import flatten
from lostwax.memory import overlap
from lostwax.ops.registry import Operator, operator

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


def write_copies(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a call of an operator that has no functional twin; its arguments take the copies."""
    from torch._higher_order_ops.auto_functionalize import (
        auto_functionalized,
        can_auto_functionalize,
    )

    if not can_auto_functionalize(record.overload):
        raise CaptureError.here(
            f"{record.overload} writes to its arguments, and nothing says how to compute that "
            "without writing",
            instead="use its functional form, or write a custom operator that returns new tensors",
        )
    named = _name_arguments(record, args, kwargs)
    targets = [_map(tracer.adopt, named[name]) for name in record.mutates]
    for target in _flat(targets):
        self_overlap.check(record.overload, target.tracked)
        _check_alone(record, target, named)
    out = _evaluate_results(tracer, record, args, kwargs, targets)
    step = tracer.add_step(auto_functionalized, (record.overload,), named)
    copies = _map(lambda t: new_fake(tracer, tracer.value_of(t).type or t.fake_type), targets)
    tracer.set_results(step, (*(out if isinstance(out, tuple) else (out,)), *copies))
    note_sizes(tracer, out)
    for target, copy in zip(_flat(targets), _flat(copies), strict=True):
        tracer.write(target, copy)
    returned = [r for r in record.results if r.written]
    return targets[0] if returned else out


def _check_alone(record: Operator, target: FakeTensor, named: dict[str, Any]) -> None:
    """Refuse arguments that share memory: the operator would see its writes through the other one,
    and in a copy it does not."""
    shared = [
        name
        for name, value in named.items()
        for each in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(each, FakeTensor)
        and each.fake_storage is target.fake_storage
        and overlap(each.fake_type, target.fake_type)
    ]
    if len(shared) > 1:
        raise CaptureError.here(
            f"{record.overload} writes to memory that its arguments {' and '.join(shared)} share",
            why="what it reads there depends on the order of its writes",
            instead="pass a copy (x.clone()) of one of them",
        )


def record_again(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`auto_functionalized` itself, in a program that is captured again."""
    record = operator(args[0])

    def copy(tensor: Any) -> FakeTensor:
        return tracer.temporary(tracer.value_of(tracer.adopt(tensor)))

    copies = {name: _map(copy, kwargs[name]) for name in record.mutates}
    out = write_copies(tracer, record, (), {**kwargs, **copies})
    return (*(out if isinstance(out, tuple) else (out,)), *copies.values())


def _name_arguments(record: Operator, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by their names, with their defaults."""
    given = dict(zip(record.argument_names, args, strict=False)) | kwargs
    schema = record.overload._schema.arguments
    return {a.name: given.get(a.name, a.default_value) for a in schema}


def _evaluate_results(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any], targets: list[Any]
) -> Any:
    """What the operator returns, by its fake kernel, if it returns something new."""
    if not record.results:
        return None
    if any(r.written for r in record.results):
        return new_fake(tracer, targets[0].fake_type)
    with tracer.pause_recording():
        return tracer.compute(record.overload, args, kwargs)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of each tensor in an argument, which may be a list of them, or None."""
    if isinstance(value, (list, tuple)):
        return [_map(function, each) for each in value]
    return None if value is None else function(value)


def _flat(values: list[Any]) -> list[FakeTensor]:
    return [each for each in flatten(values) if each is not None]
