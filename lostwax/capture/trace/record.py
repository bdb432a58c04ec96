"""How operators that compute are recorded: evaluated on fakes, a step appended, the result tracked.

Views, data-dependent operators and tensor literals included. Must not know of writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import get_default_dtype, is_inference_mode_enabled

from lostwax.capture.aliasing import storage
from lostwax.capture.trace.gradient_steps import wants_gradient
from lostwax.classes import LISTS, PLAIN, SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake import data, rule_cache, shared_rule_cache
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.mode import functional
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.symbolic.objects import refuse_address_in_program
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.fake.write import flatten
from lostwax.ir.graph.numbers import SymbolOrigin, number_sources, solve_size
from lostwax.ir.trace.log import SHARED, Value, new_value
from lostwax.ir.trace.views import View, make_root, track, track_view, track_views
from lostwax.location import user_location
from lostwax.ops.registry import Operator, aten, has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import Expr, Symbol
from lostwax.sym.numbers.real import definition
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


def record_by_rule(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The most common operator: it has a rule, and its result is new."""
    asked = _ask_rule(tracer, record, args, kwargs)
    if asked is None:
        out = functional(tracer, record, args, kwargs)
        step = tracer.add_step(record.overload, args, kwargs)
    else:
        answer, operands = asked
        out = new_fake(tracer, answer) if answer.__class__ is TensorType else tracer.wrap(answer)
        step = tracer.append_step(record.overload, operands, kwargs)
    if type(out) is not FakeTensor:
        return tracer.set_results(step, out)
    step.result = make_root(out, step, None).value
    return out


def record_made(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """What is made of numbers alone, `torch.arange(n)`. Its elements are known where inputs are
    declared to be constants: most of what is computed from these meets such."""
    out = record_by_rule(tracer, record, args, kwargs)
    if tracer.known_limit > data.CONSTANT_LIMIT:
        data.propagate_constants(record, args, kwargs, out)
    return out


def _ask_rule(
    tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, list[Any]] | None:
    """What the rule answers to a call, and the operands; None if no key can be made of the call."""
    found = key_call(tracer, record, args)
    if found is None:
        return None
    key, operands = found
    if kwargs:
        for name, value in kwargs.items():
            if type(value) not in PLAIN:
                return None
            key += (name, value, value.__class__)
    answer = rule_cache.find_answer(tracer, key)
    if answer is None:
        answer = rule_cache.ask_rule(tracer, key, record.rule, *tracer.types(args, kwargs))
    return answer, operands


def key_call(
    tracer: Tracer, record: Operator, args: Any
) -> tuple[rule_cache.Question, list[Any]] | None:
    """A key for a call, and its operands: `rule_cache.question` and `Tracer.operand` at once."""
    key: list[Any] = [id(record), get_default_dtype()]
    operands: list[Any] = []
    for a in args:
        cls = type(a)
        if cls is FakeTensor:
            t, tracked = a.fake_type, a.tracked
            token = t.token or t.mark
            if token is None or tracked is None or tracked.seen != tracked.root.version:
                return None
            if a.fake_mode is not tracer or a.constant is not None:
                return None
            key.append(token)
            operands.append(tracked.value)
        elif cls in PLAIN:
            key += (a, cls)
            operands.append(a)
        elif cls is list or cls is tuple:
            members: Any = tuple(a)
            if tuple(map(type, members)) in _INTEGERS:
                operands.append(SHARED.get(members) or tracer.numbers(members)[0])
            else:
                numbers = members if _SIZES.issuperset(map(type, members)) else rule_cache.sizes(a)
                if numbers is not None:
                    operand, members = tracer.numbers(numbers)
                else:
                    members = rule_cache.list_key(tracer, a)
                    if members is None:
                        return None
                    operand = tracer.operand(a)
                operands.append(operand)
            key.append(members)
        elif cls is _SymInt or cls is Expr:
            number = unwrap(a)
            key.append(shared_rule_cache.shared_key(number))
            operands.append(number)
        else:
            return None
    return tuple(key), operands


_INTEGERS, _SIZES = rule_cache.INTEGERS, frozenset((int, Expr))
_SymInt: Any = torch.SymInt


def record_call(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    if record.rule is None:  # evaluated by other operators, which are not the program's
        with tracer.pause_recording():
            out = tracer.compute(record.overload, args, kwargs)
    else:
        out = tracer.compute(record.overload, args, kwargs)
    step = tracer.add_step(record.overload, args, kwargs)
    if type(out) is FakeTensor:
        value = step.result = new_value(step, None, out.fake_type, out)
        track(out, value)
    else:
        tracer.set_results(step, out)
    if record.rule is None or record.data_dependent:
        note_sizes(tracer, out)
    return out


def note_sizes(tracer: Tracer, out: Any) -> None:
    """From here on the program reads sizes that depend on data off the results that have them.
    (Those that are made of floats are computed, also before there is such a result.)"""
    for fake in flatten([out]):
        if isinstance(fake, FakeTensor) and fake.fake_type.is_symbolic:
            for d, size in enumerate(fake.fake_type.size):
                found = solve_size(size, fake.tracked.value, d) if isinstance(size, Expr) else None
                if found and found[0].unbacked and definition(found[0]) is None:
                    tracer.origins.setdefault(*found)


def record_plain_view(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A view as most are: `view`, in fewer steps."""
    asked = None
    try:
        if not kwargs and not is_inference_mode_enabled():
            asked = _ask_rule(tracer, record, args, kwargs)
        if asked is None:
            return record_view(tracer, record, args, kwargs)
    except RuntimeError:  # which the program may catch: with other strides it would not be raised
        what = f"{record.overload} that fails"
        tracer.observer.note_layout(tracer.adopt(args[0]), what, exact=False)
        raise
    answer, operands = asked
    base = args[0]
    if answer.__class__ is TensorType:
        out: Any = new_fake(tracer, answer, base.fake_storage)
    else:
        out = [new_fake(tracer, t, base.fake_storage) for t in answer]
    step = tracer.append_step(record.overload, operands, {})
    return track_views(step, base.tracked, args, kwargs, out)


def record_known_view(tracer: Tracer, record: Operator, base: FakeTensor, size: Any) -> Any:
    """`x.view(*size)` as `record_plain_view` would record it, if the rule has answered before; else
    None."""
    if len(size) == 1 and size[0].__class__ in LISTS:
        (size,) = size
    args = (base, list(size))
    if is_inference_mode_enabled() or not rule_cache.SIZES.issuperset(map(type, size)):
        return None
    found = key_call(tracer, record, args)
    answer = None if found is None else rule_cache.find_answer(tracer, found[0])
    if answer is None:
        return None
    out = new_fake(tracer, answer, base.fake_storage)
    step = tracer.append_step(record.overload, found[1], {})  # type: ignore[index]
    return track_views(step, base.tracked, args, {}, out)


def record_unsafe_view(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`_unsafe_view` aliases its argument, which by contract is not read again: recorded as new."""
    asked = None
    if not kwargs and not is_inference_mode_enabled():
        asked = _ask_rule(tracer, record, args, kwargs)
    if asked is None or asked[0].__class__ is not TensorType:
        return record_call(tracer, record, args, kwargs)
    out = new_fake(tracer, asked[0], args[0].fake_storage)
    step = tracer.append_step(record.overload, asked[1], kwargs)
    step.result = make_root(out, step, None).value
    return out


def record_view(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    base = tracer.adopt(args[0])
    func = record.overload
    out = tracer.compute(func, args, kwargs)
    if Trait.VIEWS_STORAGE in record.traits:
        return _record_strided(tracer, base, out)
    return track_views(tracer.add_step(func, args, kwargs), base.tracked, args, kwargs, out)


def record_whole_view(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A view by an operator of the user's, which is evaluated by others."""
    base = tracer.adopt(args[0])
    if any(r.argument != record.argument_names[0] for r in record.results):
        raise CaptureError.here(
            f"{record.overload} returns a view of an argument that is not its first, or one view "
            "among new tensors",
            why="a program has views of one tensor only",
            instead="let it return copies (x.clone()), and declare no alias in its schema",
        )
    with tracer.pause_recording():
        out = tracer.compute(record.overload, args, kwargs)
        if out is base:
            out = tracer.compute(aten.alias.default, (base,), {})
    step = tracer.add_step(record.overload, args, kwargs)
    return track_views(step, base.tracked, args, kwargs, out)


def record_detach(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A step only where it stops a gradient: not for what has none."""
    if type(args[0]) is not FakeTensor and not args[0].requires_grad:
        return tracer.outside.detach_unrecorded(args[0])
    return detach_fake(tracer, record, args, kwargs)


def detach_fake(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    base = tracer.adopt(args[0])
    value = tracer.value_of(base)
    gradless = is_gradless(value)
    has_gradient = value.step is not None or is_marked(base) or base.tracked.root.kind
    if has_gradient and not gradless and not tracer.gradients.stay_inside:
        return record_view(tracer, record, args, kwargs)
    out = tracer.compute(record.overload, args, kwargs)
    if gradless and value.fake is base:  # by C++, and no code has seen it yet
        out.tracked = base.tracked
        tracer.gradients.made.append(out)
    else:
        track_view(out, value, base.tracked, View(record.overload, (), {}, None))
    return out


def is_gradless(value: Value) -> bool:
    """Is it a literal, or made by a factory? C++ detaches those, and no gradient reaches them."""
    step = value.step
    if step is None:
        return value.is_literal
    return has_trait(step.target, Trait.FACTORY)


def _record_strided(tracer: Tracer, given: FakeTensor, out: FakeTensor) -> FakeTensor:
    """`as_strided` speaks of the storage: recorded as a view of the tensor that owns it."""
    base = storage.strided_base(given.tracked)
    is_beside = tracer.gradients.enabled and storage.shows_others(given.tracked, out.fake_type)
    if is_beside and wants_gradient(tracer, tracer.value_of(given)):
        storage.refuse_others(out.fake_type)
    tracer.layout_assumptions.note(base.root, "as_strided")
    is_row = tracer.scope is not None and tracer.scope.is_given(base.root)
    arguments = storage.strided_arguments(base.type, out.fake_type, is_row)
    flows = tracer.has_grad and storage.are_made_with_gradients(given.tracked, base)
    view = View(aten.as_strided.default, arguments, {}, None, flows)
    track_view(out, tracer.take_view(tracer.read(base), view), base, view)
    if storage.stops_gradient(given.tracked, base, out.fake_type):
        part, stop = out.tracked, View(aten.detach.default, (), {}, None)
        track_view(out, tracer.take_view(part.value, stop), part, stop)
    return out


def record_data_read(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator that asks for data: `item`, `equal`."""
    func = record.overload
    if Trait.READS_NUMBER in record.traits and isinstance(args[0], FakeTensor):
        number = _derive_number(tracer, tracer.value_of(args[0]))
        if number is not None:
            return wrap(number)
    out = tracer.compute(func, args, kwargs)
    if isinstance(out, FakeTensor):  # its value is known here, and still the program computes it
        return tracer.set_results(tracer.add_step(func, args, kwargs), out)
    if isinstance(out, SYMBOLIC) and Trait.READS_NUMBER in record.traits:
        value = tracer.value_of(tracer.adopt(args[0]))
        for source in number_sources(unwrap(out)):
            if source not in tracer.origins:
                tracer.origins[source] = SymbolOrigin(value, None)
                if tracer.scope is not None:
                    tracer.scope.numbers.add(source)
    return out


def _derive_number(tracer: Tracer, value: Value) -> Expr | None:
    """The number in a tensor that was computed from one whose number is known: after `n.item()`,
    `(8 - n).item()` is 8 - n. So a size that is padded by it is known to be 8."""
    step = value.step
    if step is None or step.kwargs or len(step.args) != 2:
        return None
    is_reversed = has_trait(step.target, Trait.SUBTRACTS_FROM)
    if not (is_reversed or has_trait(step.target, Trait.SUBTRACTS)):
        return None
    parts = [_find_number(tracer, each) for each in step.args]
    if any(part is None for part in parts) or _find_dtype(value) is not torch.int64:
        return None
    if is_reversed:
        parts.reverse()
    (least, most), (lower, higher) = (_find_limits(tracer, part) for part in parts)
    limits = torch.iinfo(torch.int64)
    fits = limits.min <= least - higher and most - lower <= limits.max
    found = parts[0] - parts[1] if fits else None
    return found if isinstance(found, Expr) else None


def _find_number(tracer: Tracer, part: Any) -> Any:
    """An integer, or the one that the program has read off this tensor."""
    if part.__class__ is int or isinstance(part, Expr):
        return part
    if part.__class__ is not Value or _find_dtype(part) is not torch.int64:
        return None
    for source, origin in reversed(tracer.origins.items()):
        if origin.value is part and origin.dim is None and source not in tracer.regions.ended:
            return source.expr if isinstance(source, Symbol) else None
    return None


def _find_dtype(value: Value) -> torch.dtype | None:
    return None if value.type is None else value.type.dtype


def _find_limits(tracer: Tracer, number: Any) -> tuple[int, int]:
    lo, hi = tracer.shape_env.bounds(number)
    limits = torch.iinfo(torch.int64)
    return limits.min if lo is None else lo, limits.max if hi is None else hi


def record_literal(tracer: Tracer, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor literal, `torch.tensor([1, 2])`."""
    tensor = args[0]
    if isinstance(tensor, FakeTensor):
        return tensor
    if tracer.addresses:
        with torch._C._DisableTorchDispatch():
            if not tracer.addresses.isdisjoint(tensor.flatten().tolist()):
                refuse_address_in_program(user_location())
    fake = tracer.compute(record.overload, args, kwargs)
    # A literal is the program's own: it may be written to.
    value = make_root(fake, None, None).value
    value.is_literal = True
    if tracer.scope is not None:
        tracer.scope.literals.add(fake.tracked)
    tracer.gradients.made.append(fake)
    tracer.outside.constants.append((tensor, value))
    return fake
