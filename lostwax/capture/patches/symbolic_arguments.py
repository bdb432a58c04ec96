"""Functions that read their arguments as plain numbers, and would fix a size: `torch.tensor(n)`,
`torch.linspace(0, 1, n)`, `math.sqrt(n)`; or would ask which one is larger: `max(n, m)`. While a
capture runs they take symbolic numbers, too.

Only calls with a symbolic number are answered here, and tensors made of two numbers; all others go
to the function itself. Must not change what a function computes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from lostwax import torch_version
from lostwax.capture.patches.swap import CodeSwap, NameSwap, stand_for
from lostwax.capture.threads import is_capturing, running
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, has_symbol
from lostwax.ops.registry import aten
from lostwax.ops.shapes import broadcast_sizes
from lostwax.sym import maximum, minimum
from lostwax.sym.numbers.integers import truncdiv
from lostwax.sym.numbers.real import MATH

_LISTS = (list, tuple)  # and torch.Size


def _make_choosing(function: Any, answer: Callable[..., Any]) -> Any:
    """The function, except where `answer` has a result for a call with symbols."""

    def call(*args: Any, **kwargs: Any) -> Any:
        is_asked = is_capturing() and (kwargs or any(map(has_symbol, args)))
        result = answer(*args, **kwargs) if is_asked else None
        return function(*args, **kwargs) if result is None else result

    return stand_for(function, call)


def _take_symbol(function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return function(+args[0]) if len(args) == 1 and not kwargs else None

    return answer


def _power(base: Any, exponent: Any) -> Any:
    """`math.pow` computes with floats, and raises where the result would be complex."""
    return torch.sym_float(base) ** torch.sym_float(exponent)


def _power_modulo(base: Any, exp: Any, mod: Any = None) -> Any:
    """`pow`: of three numbers Python asks none but the first, and takes no other than it is."""
    if mod is None:
        return None
    if type(exp) is int and exp >= 0:
        return base**exp % mod
    return pow(*(int(each) if type(each) in SYMBOLIC else each for each in (base, exp, mod)))


# -------------------------------------------------------------------------------- Python's max, min


def _make_extreme(function: Any, choose: Callable[..., Any]) -> Any:
    """`max` or `min`: of integers it is an expression, where Python would compare them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_capturing() or not kwargs.keys() <= {"default"}:
            return function(*args, **kwargs)
        if len(args) == 1:
            args = ([*args[0]],)
        numbers = args[0] if len(args) == 1 else args
        classes = {*map(type, numbers)}
        if torch.SymInt not in classes or not classes <= _INTEGERS:
            return function(*args, **kwargs)
        return wrap(choose(*map(unwrap, numbers)))

    return stand_for(function, call)


_INTEGERS = frozenset((int, torch.SymInt))
_OF_PYTHON: dict[Any, Any] = {
    max: _make_extreme(max, maximum),
    min: _make_extreme(min, minimum),
    pow: _make_choosing(pow, _power_modulo),
}


# ------------------------------------------------------------------------------- tensors of numbers


def _make_of_numbers(name: str) -> Any:
    """`torch.div(7, 2)` and its like, which also take two numbers: the result is a tensor."""
    function = getattr(torch, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if (args and type(args[0]) not in _NUMBERS) or len(args) > 2 or not is_capturing():
            return function(*args, **kwargs)
        named = {**dict(zip(("input", "other"), args, strict=False)), **kwargs}
        operands = named.get("input"), named.get("other")
        if not _NUMBERS.issuperset(map(type, operands)):
            return function(*args, **kwargs)
        options = {key: value for key, value in kwargs.items() if key not in ("input", "other")}
        return _compute_tensor(function, *operands, **options)

    return stand_for(function, call)


def _compute_tensor(function: Any, a: Any, b: Any, **options: Any) -> Any:
    """Of integers the number is computed, and reading it off the tensor (`view`) gives it back."""
    compute = _OF_INTEGERS.get((function, *options.items()))
    if compute is not None and {type(a), type(b)} in _SIZES:
        return torch.scalar_tensor(compute(a, b), dtype=torch.int64, device="cpu")
    return function(torch.scalar_tensor(a, dtype=_dtype([a]), device="cpu"), b, **options)


_NUMBERS = frozenset((bool, int, float, *SYMBOLIC))
_SIZES = ({int, torch.SymInt}, {torch.SymInt})
_OF_INTEGERS: dict[Any, Callable[[Any, Any], Any]] = {
    (torch.div, ("rounding_mode", "floor")): operator.floordiv,
    (torch.div, ("rounding_mode", "trunc")): lambda a, b: wrap(truncdiv(unwrap(a), unwrap(b))),
    (torch.floor_divide,): operator.floordiv,
    (torch.add,): operator.add,
    (torch.sub,): operator.sub,
    (torch.mul,): operator.mul,
}


def _tensor(data: Any = None, **options: Any) -> Any:
    """`torch.tensor` of numbers in lists, as a tensor of each."""
    if not has_symbol(data):
        return None
    options = {name: value for name, value in options.items() if value not in (None, False)}
    shape = _shape(data)
    numbers = _flat(data)
    is_plain = all(isinstance(n, (int, float, *SYMBOLIC)) for n in numbers)
    if shape is None or not is_plain or options.keys() - {"dtype", "device"}:
        _check_readable(numbers, options)
        return None
    options.setdefault("dtype", _dtype(numbers))
    parts = [torch.scalar_tensor(n, **options) for n in numbers]
    return torch.stack(parts).reshape(shape) if shape else parts[0]


def _make_from_data(function: Any) -> Any:
    """`torch.tensor` and `as_tensor`, also of lists that have tensors of one number in them."""
    choose = _make_choosing(function, _tensor)

    def call(*args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else None
        if data.__class__ in _LISTS and is_capturing():
            made = _join_tensors(data, *args[1:], **kwargs)
            if made is not None:
                return made
        return choose(*args, **kwargs)

    return stand_for(function, call)


def _join_tensors(data: Any, *args: Any, **options: Any) -> Any:
    """A tensor of such a list, without gradient, as torch would read it: number by number. None if
    there is none in it."""
    members = _flat(data)
    if not any(each.__class__ is FakeTensor and each.ndim == 0 for each in members):
        return None
    shape = _shape(data)
    options = {name: value for name, value in options.items() if value not in (None, False)}
    is_plain = all(
        each.ndim == 0
        if isinstance(each, torch.Tensor)
        else isinstance(each, (int, float, *SYMBOLIC))
        for each in members
    )
    if shape is None or not is_plain or args or options.keys() - {"dtype", "device"}:
        return None
    kinds = [e.dtype if isinstance(e, torch.Tensor) else _dtype([e]) for e in members]
    dtype = options.get("dtype") or functools.reduce(torch.promote_types, kinds)
    if any(kind.is_floating_point for kind in kinds) and not dtype.is_floating_point:
        return None  # torch takes no float for an integer
    device = options.get("device") or torch.get_default_device()
    parts = [
        each.detach().to(device, dtype)
        if isinstance(each, torch.Tensor)
        else torch.scalar_tensor(each, dtype=dtype, device=device)
        for each in members
    ]
    return torch.stack(parts).reshape(shape)


def _check_readable(numbers: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Of other numbers torch takes the example's; of a truth it would only say that it does not
    know its class."""
    if any(isinstance(n, torch.SymBool) for n in numbers):
        among = f"with {', '.join(options)}" if options else "among others than numbers"
        raise CaptureError.here(
            f"torch.tensor of a comparison of numbers that vary, {among}",
            instead="compare tensors, a > b, without item(); or torch.tensor of numbers alone, in "
            "lists of one length, with no options but dtype and device",
        )


def _shape(data: Any) -> list[int] | None:
    """The sizes of nested lists; None if they are not alike."""
    if not isinstance(data, _LISTS):
        return []
    shapes = [_shape(each) for each in data]
    if any(s is None or s != shapes[0] for s in shapes):
        return None
    return [len(data), *(shapes[0] or [])]


def _flat(data: Any) -> list[Any]:
    return [n for each in data for n in _flat(each)] if isinstance(data, _LISTS) else [data]


def _dtype(numbers: Sequence[Any]) -> torch.dtype:
    if any(isinstance(n, (float, torch.SymFloat)) for n in numbers):
        return torch.get_default_dtype()
    is_bool = all(isinstance(n, (bool, torch.SymBool)) for n in numbers)
    return torch.bool if is_bool else torch.int64


def _one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    if num_classes.__class__ is not torch.SymInt:
        return None
    torch._check((tensor.numel() > 0) | (num_classes > 0))
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


def _affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """The function itself asks for the least of the sizes."""
    if not has_symbol(size) or (len(size), *theta.shape[1:]) not in ((4, 2, 3), (5, 3, 4)):
        return None
    for n in size:
        torch._check(n >= 1, lambda: f"Expected non-zero, positive output size. Got {size}")
    return torch.affine_grid_generator(theta, list(size), bool(align_corners))


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> Any:
    numbers = (int, float, *SYMBOLIC)
    if steps.__class__ is not torch.SymInt or options.keys() - {"dtype", "device"}:
        return None
    if not isinstance(start, numbers) or not isinstance(end, numbers):
        return None
    tracer = running[-1]
    if options.get("device") is None:
        with tracer.pause_recording():
            options["device"] = torch.empty(0).device  # torch knows which is the default
    return tracer.call(aten.linspace.default, start, end, steps, **options)


def _istft(*args: Any, **kwargs: Any) -> Any:
    """Of a length that varies: C++ reads it as a plain number."""
    length = args[8] if len(args) > 8 else kwargs.get("length")
    if length.__class__ is not torch.SymInt or "input" in kwargs:
        return None
    return running[-1].call(aten.istft.default, *args, **kwargs)


def _sym_ite(b: Any, t: Any, f: Any) -> Any:
    """torch's asks for two numbers of one class: to the user `n` and 7 are both integers."""
    kinds = [_KINDS.get(each.__class__, each.__class__) for each in (t, f)]
    if kinds[0] is not kinds[1] or b.__class__ not in (bool, torch.SymBool):
        return None  # eager does not take them, either
    return b.__sym_ite__(t, f) if b.__class__ is torch.SymBool else t if b else f


_KINDS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


_OTHERS: list[tuple[Any, str, Callable[..., Any]]] = [
    *((math, name, _take_symbol(getattr(torch, f"_sym_{name}"))) for name in MATH),
    (math, "pow", _power),
    (torch, "linspace", _linspace),
    (torch, "istft", _istft),
    (torch, "sym_ite", _sym_ite),
    (torch.nn.functional, "one_hot", _one_hot),
    (torch.nn.functional, "affine_grid", _affine_grid),
]
_FROM_DATA = ("tensor", "as_tensor")
_OF_NUMBERS = (
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide"
)  # fmt: skip


def _make_count(function: Any) -> Any:
    """`torch.numel(x)`: C++ would show the number that it has first computed, in a branch."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        is_fake = len(given) == 1 and type(given[0]) is FakeTensor and is_capturing()
        return given[0].numel() if is_fake else function(*args, **kwargs)

    return stand_for(function, call)


NAME_SWAPS = [
    NameSwap(torch, "numel", _make_count(torch.numel)),
    *[
        NameSwap(where, name, _make_choosing(getattr(where, name), answer))
        for where, name, answer in _OTHERS
    ],
    *[NameSwap(torch, name, _make_from_data(getattr(torch, name))) for name in _FROM_DATA],
    *[NameSwap(torch, name, _make_of_numbers(name)) for name in _OF_NUMBERS],
]
STAND_INS: dict[Any, Any] = {
    each.function.stands_for: each.function  # type: ignore[attr-defined]
    for each in NAME_SWAPS
    if isinstance(getattr(each.where, each.name), BuiltinFunctionType)
} | _OF_PYTHON


# ------------------------------------------------------------------------- inside torch's functions


def _cross_entropy(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """The function as it is, but that the size of its weights may vary."""
    names = {**plain.__globals__, "_infer_size": _broadcast}
    function = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)
    return function(*args, **kwargs)


def _broadcast(*sizes: Sequence[Any]) -> list[Any]:
    return list(map(wrap, broadcast_sizes([tuple(map(unwrap, size)) for size in sizes])))


CODE_SWAPS = (
    []
    if torch_version.INFER_SIZE_TAKES_SYMBOLS
    else [CodeSwap(torch.nn.functional.binary_cross_entropy, _cross_entropy)]
)
_device_constructors()  # a table that torch makes once, of the functions it finds: not of these
