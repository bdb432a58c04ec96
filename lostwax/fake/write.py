"""Operators that write to an argument: in-place, `out=`, and those that also return something new.

The rule of the functional twin says what is written. The written fake keeps its type (or gets a new
one, for `t_` and its like), and its storage counts the write. Must not compute types itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lostwax import torch_version
from lostwax.cache import cached_by_identity
from lostwax.fake import data, fallback
from lostwax.fake.tensor import FakeTensor, set_type
from lostwax.memory import expanded_sizes, spans_meet
from lostwax.ops.registry import Operator, operator
from lostwax.ops.shapes import are_same_sizes, broadcast_sizes, fail, is_met, is_zero, show
from lostwax.ops.spelling import scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import eq, known
from lostwax.types import TensorType, contiguous_strides

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode


def write(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Evaluate a call that writes to some of its arguments."""
    if record.rule is None and record.twin is None:
        out = fallback.evaluate(mode, record, args, kwargs)
        mark_written([_adopt(mode, v) for v in written_arguments(record, args, kwargs)])
        return out
    if record.kind == "out":
        return _write_out(mode, record, args, kwargs)
    written = [_adopt(mode, value) for value in written_arguments(record, args, kwargs)]
    if record.changes_metadata:
        types, named = mode.types(args, kwargs)
        set_type(written[0], record.rule(*types, **named))  # type: ignore[misc]
        mark_written(written)  # `set_` shows other data
        return written[0]
    constant = False
    if record.rule is None:
        result = _plain_types(mode.evaluate(record.twin, args, kwargs))  # type: ignore[arg-type]
    else:
        types, named = mode.types(args, kwargs)
        constant = mode.saw_constant
        result = record.rule(*types, **named)
    if record.kind == "mixed":
        mark_written(written)
        # A functional twin also returns the new values of what is written, after the real outputs.
        return mode.wrap(_first_results(result, len(record.results)))
    for fake, new in zip(flatten(written), flatten([result]), strict=False):
        check_fits(fake.fake_type, new)
    value = data.rewrite_constant(written[0], record, args, kwargs) if constant else None
    mark_written(written)
    if value is not None:
        data.remember_constant(written[0], value)
    return written[0] if len(record.results) == 1 else tuple(written) if record.results else None


def _write_out(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    outs = [_adopt(mode, kwargs[name]) for name in record.out_names]
    inputs = {k: v for k, v in kwargs.items() if k not in record.out_names}
    if record.twin is not None and (record.by_twin or record.rule is None):
        inputs.update(factory_options(record, flatten(outs)[0], args, inputs))
    if record.rule is None or record.data_dependent:
        result = _plain_types(mode.evaluate(record.twin, args, inputs))  # type: ignore[arg-type]
    else:
        types, named = mode.types(args, inputs)
        result = record.rule(*types, **named)
    traits = record.traits
    relaid = 2 if Trait.RELAYS_TWO_OUTS in traits else int(Trait.RELAYS_FIRST_OUT in traits)
    _check_memory(record, flatten(outs), flatten([*args, *inputs.values()]))
    for i, (fake, new) in enumerate(zip(flatten(outs), flatten([result]), strict=False)):
        if Trait.EXACT_OUT in traits and fake.fake_type.dtype is not new.dtype:
            wanted, given = scalar_type(new.dtype), scalar_type(fake.fake_type.dtype)
            fail(f"Expected out tensor to have dtype {wanted}, but got {given} instead")
        check_cast(fake.fake_type, new)
        if not are_same_sizes(fake.fake_type.size, new.size):
            is_row_major = Trait.ROW_MAJOR_OUT in traits or (
                Trait.ROW_MAJOR_OUT_ON_CPU in traits and new.device.type == "cpu"
            )
            stride = contiguous_strides(new.size) if is_row_major else new.stride
            set_type(
                fake,
                new.replace(
                    dtype=fake.fake_type.dtype, stride=stride, offset=fake.fake_type.offset
                ),
            )
        elif i < relaid and is_zero(new.numel()):
            set_type(fake, fake.fake_type.replace(size=new.size, stride=new.stride))
    mark_written(outs)
    if not record.results:
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)


def _check_memory(record: Operator, outs: list[Any], inputs: list[Any]) -> None:
    """Refuse an `out` with an element that is written twice, or also read."""
    advice = "Please clone() the tensor before performing the operation."
    for out in outs:
        t = out.fake_type
        if 0 not in t.size and any(known(size > 1) is True for size in expanded_sizes(t)):
            fail(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                f"single memory location. {advice}"
            )
        if Trait.OUT_APART in record.traits and any(_overlap(out, x) for x in inputs):
            fail(
                "unsupported operation: some elements of the input tensor and the written-to "
                f"tensor refer to a single memory location. {advice}"
            )
    checks = torch_version.AMINMAX_CHECKS_OUT and Trait.OUTS_APART in record.traits
    if checks and _are_one(*outs):
        raise ValueError("aminmax(): the `min` and `max` out= tensors must not overlap.")


def _are_one(a: FakeTensor, b: FakeTensor) -> bool:
    """Do two outputs overlap, as torch asks it? Tensors with gaps may lie in each other's gaps."""
    dense = a.fake_type.is_contiguous and b.fake_type.is_contiguous
    return _overlap(a, b) and (dense or a.fake_type.key() == b.fake_type.key())


def _overlap(a: FakeTensor, b: Any) -> bool:
    is_shared = isinstance(b, FakeTensor) and a.fake_storage is b.fake_storage
    return is_shared and spans_meet(a.fake_type, b.fake_type)


def factory_options(
    record: Operator, out: FakeTensor, args: Any, given: dict[str, Any]
) -> dict[str, Any]:
    """The options that an `out=` form takes from `out`, and its twin as arguments: dtype and device
    of a factory, the dtype in which a reduction (`sum`) computes."""
    named = {a.name for a in record.twin._schema.arguments}  # type: ignore[union-attr]
    by_position = record.argument_names[: len(args)]
    options: dict[str, Any] = {}
    if "dtype" in named and "dtype" not in by_position and given.get("dtype") is None:
        options["dtype"] = out.fake_type.dtype
    if "device" in named and "device" not in record.argument_names:
        options["device"] = out.fake_type.device
    return options


def written_arguments(record: Operator, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of this call that are written, in the schema's order; a missing optional one is
    left out."""
    found = []
    for name in record.mutates:
        at = record.argument_names.index(name)
        value = args[at] if at < len(args) else kwargs.get(name)
        if value is not None:
            found.append(value)
    return found


def mark_written(written: Any) -> None:
    """Count a write on each storage: constants and answers of all its views are now void."""
    for fake in flatten(written):
        fake.fake_storage.version += 1
        fake.memo = None


def check_fits(target: TensorType, new: TensorType) -> None:
    """Raise unless an in-place result has the target's size and can be cast to its dtype."""
    if not are_same_sizes(target.size, new.size):
        common = broadcast_sizes([target.size, new.size])
        # A size that may be 1 or 2 can be broadcast to 2, but must be 2 to be written to.
        if len(target.size) != len(common) or not all(
            a is b or is_met(eq(a, b)) for a, b in zip(target.size, common, strict=True)
        ):
            fail(
                f"output with shape {show(target.size)} doesn't match "
                f"the broadcast shape {show(common)}"
            )
    check_cast(target, new)


def check_cast(target: TensorType, new: TensorType) -> None:
    """Raise unless what is written can be cast to the target's dtype."""
    if new.dtype is not target.dtype and not torch.can_cast(new.dtype, target.dtype):
        source, wanted = scalar_type(new.dtype), scalar_type(target.dtype)
        fail(f"result type {source} can't be cast to the desired output type {wanted}")


def _adopt(mode: FakeTensorMode, value: Any) -> Any:
    return [mode.adopt(v) for v in value] if isinstance(value, (list, tuple)) else mode.adopt(value)


def flatten(values: Any) -> list[Any]:
    out: list[Any] = []
    for v in values:
        out.extend(flatten(v)) if isinstance(v, (list, tuple)) else out.append(v)
    return out


def _first_results(result: Any, count: int) -> Any:
    if not isinstance(result, tuple) or len(result) <= count:
        return result
    return result[0] if count == 1 else result[:count]


def _plain_types(out: Any) -> Any:
    if isinstance(out, FakeTensor):
        return out.fake_type
    if isinstance(out, (list, tuple)):
        return type(out)(_plain_types(o) for o in out)
    return out


def add_defaults(record: Operator, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the functional twin: also those that only the writing form may
    leave out (`bernoulli_()`)."""
    lent = _lent_defaults(record.overload)
    if not lent:
        return kwargs
    missing = {n: v for i, n, v in lent if i >= len(args) and kwargs.get(n) is None}
    if "dtype" in missing:  # `cumsum_` computes in the dtype of what it writes
        missing["dtype"] = args[0].dtype
    return {**kwargs, **missing}


@cached_by_identity(20_000)
def _lent_defaults(func: OpOverload) -> tuple[tuple[int, str, Any], ...]:
    """Position, name and value of the defaults that the functional twin does not have."""
    twin = operator(func).twin
    own = {a.name: a.default_value for a in twin._schema.arguments if a.has_default_value()}  # type: ignore[union-attr]
    return tuple(
        (i, a.name, a.default_value)
        for i, a in enumerate(func._schema.arguments)
        if a.has_default_value()
        and (a.name == "dtype" or a.name not in own or own[a.name] != a.default_value)
    )
