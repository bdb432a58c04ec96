"""Composite operators that amount to one other operator: `conv2d` to `convolution`.

They are taken apart as all others are (`fake/composite/`), once for arguments of a kind. What came
of it is remembered with the answers of type rules, and recorded at once for the next such call.
Where sizes vary, only if captures to come can have it too: few layers of one model have the same.
Must not take anything apart itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._ops import OpOverload

from lostwax.capture.trace.record import key_call
from lostwax.classes import PLAIN
from lostwax.fake import rule_cache, shared_rule_cache
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.trace.log import Step, Value, is_shared, new_value
from lostwax.ir.trace.views import make_root
from lostwax.ops.registry import Operator
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


class KnownStep(NamedTuple):
    """What a call was recorded as."""

    target: OpOverload
    operands: list[Any]
    """With None in the place of each tensor."""
    tensors: Sequence[int] | None
    """Which of them are tensors, as in `Step`."""
    places: Sequence[tuple[int, int]]
    """The tensors: which operand each is, and which operand of the composite operator."""


shared_rule_cache.SHAREABLE.add(KnownStep)


def record_composite(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a composite operator by the operator that it amounts to."""
    overload = record.overload
    taken_apart = (tracer.provenance.as_one, overload, tracer.compute, overload, args, kwargs)
    asked = None
    if tracer.takes_known_calls and not tracer.is_direct and not kwargs:
        asked = key_call(tracer, record, args)
    if asked is None:
        return taken_apart[0](*taken_apart[1:])
    known = rule_cache.find_answer(tracer, asked[0])
    if known is not None:
        return _record_known(tracer, overload, known, asked[1])
    return _call_and_remember(tracer, asked, args, *taken_apart)


def record_direct(tracer: Tracer, record: Operator, args: Any, function: Callable[..., Any]) -> Any:
    """Record a call that C++ has not seen; the function is called for one that is not known yet."""
    asked = key_call(tracer, record, args)
    if asked is None:
        return function(*args)
    known = rule_cache.find_answer(tracer, asked[0])
    if known is not None:
        return _record_known(tracer, record.overload, known, asked[1])
    tracer.is_direct = True
    try:
        return _call_and_remember(tracer, asked, args, function, *args)
    finally:
        tracer.is_direct = False


def _call_and_remember(
    tracer: Tracer, asked: Any, args: Any, function: Callable[..., Any], *given: Any
) -> Any:
    """Call something, and remember what was recorded if that was one step."""
    key, operands = asked
    steps = tracer.region.steps
    before, state = len(steps), _state(tracer, args)
    may_vary = tracer.shape_env is not None and bool(tracer.shape_env.symbols)
    out = function(*given)
    if len(steps) == before + 1 and type(out) is FakeTensor and state == _state(tracer, args):
        found = _describe_step(steps[-1], operands, out, may_vary)
        if found is not None:
            rule_cache.remember_answer(tracer, key, found)
    return out


def _state(tracer: Tracer, args: Any) -> tuple[Any, ...]:
    """What every guard and every write changes: a call with such an effect is not remembered."""
    assert tracer.shape_env is not None
    written = [a.fake_storage.version for a in args if type(a) is FakeTensor]
    return (*rule_cache.guard_state(tracer.shape_env), *written)


def _describe_step(
    step: Step, operands: list[Any], out: FakeTensor, may_vary: bool
) -> tuple[KnownStep, Any] | None:
    """What became of a call with these operands, and the types of the results, of which the first
    is the composite operator's; None: something else than can be told again."""
    result = step.result
    first = result if result.__class__ is Value else result[0]
    if out.tracked.value is not first or out.tracked.root is not out.tracked or step.kwargs:
        return None
    given = [(id(o), i) for i, o in enumerate(operands) if o.__class__ is Value]
    tensors = dict(given)
    if len(tensors) != len(given):  # one tensor twice: which went where cannot be told
        return None
    places = [(i, tensors.get(id(o), -1)) for i, o in enumerate(step.args) if o.__class__ is Value]
    if any(source < 0 for _, source in places):
        return None
    kept = [None if o.__class__ is Value else o for o in step.args]
    types = result.type if result.__class__ is Value else tuple([v.type for v in result])
    plain = all(o.__class__ in PLAIN or is_shared(o) for o in kept)
    if not plain and may_vary:  # there may be symbols among them
        return None
    return KnownStep(step.target, kept, [at for at, _ in places] if plain else None, places), types


def _record_known(
    tracer: Tracer, whole: OpOverload, known: tuple[KnownStep, Any], given: list[Any]
) -> FakeTensor:
    (target, kept, tensors, places), types = known
    operands = kept.copy()
    for place, source in places:
        operands[place] = given[source]
    step = tracer.append_step(target, operands, {}, tracer.provenance.part_of(whole))
    step.tensors = tensors
    if types.__class__ is TensorType:
        out = new_fake(tracer, types)
        step.result = make_root(out, step, None).value
    else:
        out = new_fake(tracer, types[0])
        rest = [new_value(step, i, types[i], None) for i in range(1, len(types))]
        step.result = (make_root(out, step, 0).value, *rest)
    return out
