"""Questions about data that a fake does not have. They are answered with fresh symbols, or from
tiny constants that are known after all.

Asking twice gives the same symbol until one of the tensors is written to. Must not guess: without a
ShapeEnv and without a known constant the question is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lostwax.classes import SYMBOLIC, list_nested
from lostwax.errors import DataDependentError, UnsupportedFakeError
from lostwax.fake.devices import concrete_device
from lostwax.fake.storage import NumberStorage
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.location import user_location
from lostwax.ops.registry import Operator, aten, evaluation, operator
from lostwax.ops.traits import Trait
from lostwax.sym import Expr, ShapeEnv, Size, current, eq
from lostwax.sym.numbers.real import unbacked_real
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_CPU = torch.device("cpu")
CONSTANT_LIMIT = 64
"""The real value of a constant is kept if it has at most so many elements."""
KNOWN_LIMIT = 1 << 16
"""So many, where inputs are declared to be constants."""


class UnbackedSizes:
    """Unbacked symbols for one call of a data-dependent operator."""

    def __init__(self, env: ShapeEnv | None, operation: str) -> None:
        self.env = env
        self.operation = operation

    def size(self, upper: Size | None = None, lower: int = 0) -> Size:
        if self.env is None:
            refuse_data(self.operation, "the size of its result depends on the data of its input")
        high = upper if isinstance(upper, int) else None
        if high == lower:
            return lower
        u = self.env.unbacked(lo=lower, hi=high, origin=f"{self.operation} at {user_location()}")
        if upper is not None and high is None:
            bound = u <= upper
            if not isinstance(bound, bool):
                self.env.learn(bound)
        return u


class CountedMasks(UnbackedSizes):
    """The same where masks decide: those that are known are counted, and the others once."""

    def __init__(self, mode: FakeTensorMode, operation: str, masks: Iterator[FakeTensor]) -> None:
        super().__init__(mode.shape_env, operation)
        self._mode, self._masks = mode, masks

    def size(self, upper: Size | None = None, lower: int = 0) -> Size:
        mask = next(self._masks)
        known = mask.known_constant()
        if known is None:
            key = ("count", _make_key(self._mode, mask, []))
            answer = partial(super().size, upper, lower)
            return _recall(self._mode, mask, key, answer)  # type: ignore[no-any-return]
        with torch._C._DisableTorchDispatch():
            return int(known.count_nonzero())


class KnownSize(UnbackedSizes):
    """A size that is known."""

    def __init__(self, known: int) -> None:
        super().__init__(None, "")
        self._known = known

    def size(self, upper: Size | None = None, lower: int = 0) -> Size:
        return self._known


def _make_fresh(mode: FakeTensorMode, record: Operator, args: Any) -> UnbackedSizes:
    name = record.overload._schema.name.removeprefix("aten::")
    if Trait.COUNTS_NONZERO in record.traits:
        return CountedMasks(mode, name, iter([mode.adopt(args[0])]))
    if Trait.SIZED_BY_MASKS in record.traits:
        given = [mode.adopt(t) for t in list_nested(args[1:], torch.Tensor)]
        masks = iter([t for t in given if t.fake_type.dtype in (torch.bool, torch.uint8)])
        return CountedMasks(mode, name, masks)
    return UnbackedSizes(mode.shape_env, name)


def evaluate(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Evaluate a data-dependent operator: from constants if all are known, else with fresh symbols,
    which are remembered."""
    known = _compute_constants(record, args, kwargs) if record.twin is None else None
    if known is not None and _are_on_cpu(args):
        return _make_constants(mode, known)
    types, named = mode.types(args, kwargs)
    if known is not None:
        made = _make_constants_elsewhere(mode, record, types, named, known)
        if made is not None:
            return made

    def answer() -> Any:
        fresh = _make_fresh(mode, record, args)
        return record.rule(fresh, *types, **named)  # type: ignore[misc]

    return mode.wrap(_ask_once(mode, record, args, kwargs, answer))


# -------------------------------------------------------------------------- the same question again


class DataDependentAnswers:
    """The answers about a tensor's data, and the object that stands for the tensor in questions. It
    lives as long as they do; an `id` could mean another tensor later."""

    __slots__ = ("answers", "name")

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}
        self.name = object()


_MOST = 256
"""So many answers are kept for one tensor; a question that was forgotten gets a new symbol."""


def _ask_once(
    mode: FakeTensorMode,
    record: Operator,
    args: Any,
    kwargs: dict[str, Any],
    answer: Callable[[], Any],
) -> Any:
    """The answer to a question about data. It is the earlier one if the same tensors were asked
    before, and none of them was written to since."""
    tensors: list[FakeTensor] = []
    key = (record.overload, _make_key(mode, args, tensors), _make_key(mode, kwargs, tensors))
    if not tensors:
        return answer()
    return _recall(mode, tensors[-1], key, answer)  # the last: a mask, not what it masks


def _recall(mode: FakeTensorMode, asked: FakeTensor, key: Any, answer: Callable[[], Any]) -> Any:
    answers = _find_answers(asked).answers
    if key not in answers:
        if len(answers) >= _MOST:
            answers.clear()
        answers[key] = answer()
        if mode.answered is not None:
            mode.answered.append((answers, key))
    return answers[key]


def _make_key(mode: FakeTensorMode, value: Any, tensors: list[FakeTensor]) -> Any:
    """What stands for an argument in a question; its tensors are added to the list. The key of a
    tensor names all that its data depend on: the tensor (a conjugate has the memory and the type of
    what it conjugates), its memory, the number of writes to that, and its type."""
    if isinstance(value, torch.Tensor):
        fake = mode.adopt(value)
        tensors.append(fake)
        storage = fake.fake_storage
        return _find_answers(fake).name, storage, storage.version, fake.fake_type
    if isinstance(value, (list, tuple)):
        return tuple([_make_key(mode, v, tensors) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _make_key(mode, v, tensors)) for k, v in value.items()])
    if isinstance(value, (float, complex)):
        return value.__class__, repr(value)  # 0.0 and -0.0 are equal
    if isinstance(value, SYMBOLIC):
        return unwrap(value)
    return value.__class__, value  # 1 and True are equal


def _find_answers(fake: FakeTensor) -> DataDependentAnswers:
    if fake.memo is None:
        fake.memo = DataDependentAnswers()
    return fake.memo  # type: ignore[no-any-return]


def refuse_data(operation: str, why: str) -> NoReturn:
    raise DataDependentError.here(
        f"{operation} cannot be evaluated on fake tensors here: {why}",
        instead="give the mode a place for unknown sizes, FakeTensorMode(shape_env=ShapeEnv()), "
        "or avoid the operator",
    )


# ----------------------------------------------------------------------------- scalars from tensors


@evaluation("_local_scalar_dense")
def item(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.item()`: the constant's value, the size that the tensor was made of, or an unbacked
    number."""
    tensor = mode.adopt(args[0])
    constant = tensor.known_constant()
    if constant is not None:
        return constant.item()
    storage = tensor.fake_storage
    if isinstance(storage, NumberStorage) and storage.holds_number(tensor.fake_type.dtype):
        return wrap(current(storage.number))
    return _ask_once(mode, record, (tensor,), {}, lambda: _make_unbacked(mode, tensor))


def _make_unbacked(mode: FakeTensorMode, tensor: FakeTensor) -> Any:
    dtype, env = tensor.fake_type.dtype, mode.shape_env
    if env is None:
        refuse_data("item()", "the value of a fake tensor is not known")
    origin = f"item() at {user_location()}"
    if dtype.is_floating_point:
        return wrap(unbacked_real(env, origin))
    if dtype.is_complex:
        refuse_data("item()", "complex values have no symbolic form")
    if dtype is torch.bool:
        return wrap(eq(env.unbacked(lo=0, hi=1, origin=origin), 1))
    limits = torch.iinfo(dtype)
    wide = dtype is torch.int64
    return wrap(
        env.unbacked(
            lo=None if wide else limits.min, hi=None if wide else limits.max, origin=origin
        )
    )


@evaluation("equal")
def equal(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.equal(a, b)`: known for constants and for different ranks; else only the data know."""
    known = _compute_constants(record, args, kwargs)
    if known is not None:
        return known
    a, b = (mode.adopt(t) for t in args)
    if a.fake_type.ndim != b.fake_type.ndim:
        return False
    if a is b and not a.fake_type.dtype.is_floating_point and not a.fake_type.dtype.is_complex:
        return True
    return _unknown_truth(mode, "equal")


def assert_data(condition: torch.Tensor, message: str) -> None:
    """A step that checks a condition on data. A GPU's kernel takes texts of up to 254 bytes."""
    text = message.encode()
    if len(text) > _LONGEST_TEXT:
        cut = text[: _LONGEST_TEXT - 4].decode(errors="ignore")
        message = f"{cut} ..."
    aten._assert_async.msg(condition, message)


_LONGEST_TEXT = 254


@evaluation("allclose")
def allclose(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.allclose(a, b)`: known for constants."""
    known = _compute_constants(record, args, kwargs)
    if known is not None:
        return known
    mode.call(aten.isclose.default, *args[:2])  # raises what eager raises
    return _unknown_truth(mode, "allclose")


def _unknown_truth(mode: FakeTensorMode, name: str) -> Any:
    """A truth value that only the data know."""
    if mode.shape_env is None:
        refuse_data(f"torch.{name}", "its answer depends on the data")
    origin = f"{name} at {user_location()}"
    return wrap(eq(mode.shape_env.unbacked(lo=0, hi=1, origin=origin), 1))


# ---------------------------------------------------------------------------------------- constants


@evaluation("lift_fresh", "lift")
def lift(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Bring a tensor literal (`torch.tensor(3)`) into the mode; its fake remembers a tiny value."""
    tensor = args[0]
    if isinstance(tensor, FakeTensor):
        return tensor
    fake = mode.fake_tensor_converter.from_real_tensor(
        mode, tensor, static_shapes=True, memoize=False
    )
    if tensor.numel() <= mode.known_limit and not tensor.is_meta:
        remember_constant(fake, tensor)
    return fake


@evaluation("scalar_tensor")
def scalar(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a number a tensor, which is a constant; `item()` of a size is that size. Mostly torch's
    own code calls this."""
    types, named = mode.types(args, kwargs)
    answer = record.rule(*types, **named)  # type: ignore[misc]
    number = types[0] if types else named["s"]
    if isinstance(number, Expr) and answer.dtype is torch.int64:
        return new_fake(mode, answer, NumberStorage(answer, number))
    fake = mode.wrap(answer)
    if isinstance(number, (bool, int, float, complex)) and fake.fake_type.device.type != "meta":
        remember_constant(fake, torch.tensor(number, dtype=fake.fake_type.dtype))
    return fake


def propagate_constants(record: Operator, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Remember the result as a constant if it is small and all inputs are constants."""
    outputs = out if isinstance(out, (list, tuple)) else [out]
    for fake in outputs:
        if not isinstance(fake, FakeTensor) or fake.fake_type.is_symbolic:
            return
        if fake.fake_type.numel() > fake.fake_mode.known_limit:  # type: ignore[attr-defined]
            return
    real = _compute_constants(record, args, kwargs)
    if real is None:
        return
    for fake, value in zip(
        outputs, real if isinstance(real, (list, tuple)) else [real], strict=True
    ):
        remember_constant(fake, value)


def rewrite_constant(fake: Any, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The new value of a constant to which constants are written; None if it is not known."""
    if record.twin is None or type(fake) is not FakeTensor or fake.known_constant() is None:
        return None
    real = _compute_constants(operator(record.twin), args, kwargs)
    if not isinstance(real, torch.Tensor) or real.shape != fake.shape:
        return None
    return real.to(fake.fake_type.dtype)


def remember_constant(fake: FakeTensor, value: torch.Tensor) -> None:
    """The value is kept on the CPU, wherever the tensor is said to be."""
    fake.constant = value if value.is_cpu else value.cpu()
    fake.constant_version = fake.fake_storage.version


def _make_constants(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        fake = mode.fake_tensor_converter.from_real_tensor(
            mode, value, static_shapes=True, memoize=False
        )
        remember_constant(fake, value)
        return fake
    if isinstance(value, (list, tuple)):
        return type(value)(_make_constants(mode, v) for v in value)
    return value


def _make_constants_elsewhere(
    mode: FakeTensorMode, record: Operator, types: Any, named: Any, known: Any
) -> Any:
    """The same on a device where the result may lie otherwise in memory, as the rule says; None if
    that does not agree, or the order of the elements is that of the device."""
    given = dict(zip((a.name for a in record.overload._schema.arguments), types, strict=False))
    if (given | named).get("sorted") is False:
        return None
    values = list(list_nested([known], torch.Tensor))
    for count in sorted({size for value in values for size in value.shape}):
        answer = record.rule(KnownSize(count), *types, **named)  # type: ignore[misc]
        made = list(list_nested([answer], TensorType))
        if [t.size for t in made] == [tuple(value.shape) for value in values]:
            out = mode.wrap(answer)
            for fake, value in zip(list_nested([out], FakeTensor), values, strict=True):
                remember_constant(fake, value)
            return out
    return None


class _Unknown(Exception):
    """An argument's value is not known."""


def _compute_constants(record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """The real result if every tensor argument is a known constant; None otherwise."""
    if torch.Tag.nondeterministic_seeded in record.overload.tags:
        return None
    try:
        real_args, real_kwargs = _to_real(args), {k: _to_real(v) for k, v in kwargs.items()}
    except _Unknown:
        return None
    with torch.no_grad():
        return record.overload(*real_args, **real_kwargs)


def _are_on_cpu(values: Any) -> bool:
    return all(v.device == _CPU for v in values if isinstance(v, torch.Tensor))


def _to_real(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        constant = value.known_constant()
        if constant is None:
            raise _Unknown
        return constant
    if isinstance(value, SYMBOLIC):
        raise _Unknown
    if isinstance(value, torch.device):
        if concrete_device(value).type == "meta":
            raise _Unknown
        return _CPU
    if isinstance(value, (list, tuple)):
        return type(value)([_to_real(v) for v in value])
    return value


@evaluation("_has_compatible_shallow_copy_type")
def is_alike(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> bool:
    """`x.data = y` asks whether their implementations are alike, which holds for all fakes.

    A real tensor would get the memory of the fake, which has none: reading it would crash."""
    x, y = args
    if isinstance(x, FakeTensor) or not isinstance(y, FakeTensor):
        return True
    raise UnsupportedFakeError.here(
        f"a tensor of size {tuple(x.shape)} is given other data (x.data = ...)",
        why="it is neither an input nor state of the module, and what is given is computed",
        instead='register a buffer, self.register_buffer("x", ...), and write to it; or compute '
        "with a copy, x = x.clone()",
    )


@evaluation("size")
def plain_sizes(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """torch's scripted derivatives (`torch.func.jvp` of a normalisation) call this, and take only
    plain integers."""
    return list(map(int, args[0].shape))
