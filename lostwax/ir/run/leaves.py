"""What each input of a program must be, and the errors for values that are not.

Must not know of structures: `calling.py` takes calls apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from lostwax.errors import InputValueError
from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.pytree import LEAVES, leaf_text
from lostwax.ir.signature import CustomObjArgument, same_constant
from lostwax.ir.text import dtype_text, type_text
from lostwax.sym import Expr, Size
from lostwax.sym.numbers.real import Real


class Changes(NamedTuple):
    """What has become of dtypes and devices since the capture, old → new: a module was cast or
    moved."""

    casts: Mapping[torch.dtype, torch.dtype]
    moves: Mapping[torch.device, torch.device]


UNCHANGED = Changes({}, {})


@dataclass(frozen=True)
class TensorLeaf:
    """An input that is a tensor. A size is an int, which is required, or an expression of
    symbols."""

    path: str
    size: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def text(self) -> str:
        return f"{dtype_text(self.dtype)}[{', '.join(map(str, self.size))}]"


@dataclass(frozen=True)
class NumberLeaf:
    """An input that is an int whose value the program does not know."""

    path: str
    value: Expr

    @property
    def text(self) -> str:
        return f"Sym({self.value})"


@dataclass(frozen=True)
class FloatLeaf:
    """An input that is a float whose value the program does not know."""

    path: str
    text: str = "float"


@dataclass(frozen=True)
class ConstantLeaf:
    """An input whose value is baked into the program."""

    path: str
    value: Any

    @property
    def text(self) -> str:
        return leaf_text(self.value)


@dataclass(frozen=True)
class AnyLeaf:
    """An input that is not checked: an object that only operators understand."""

    path: str
    text: str


Leaf = TensorLeaf | NumberLeaf | FloatLeaf | ConstantLeaf | AnyLeaf


def make_leaf(path: str, captured: Any, changes: Changes) -> Leaf:
    """Return what an input must be, from its value at capture and what has changed since."""
    if isinstance(captured, torch.Tensor):
        # Sizes as they were declared: what the trace learned since is among the guards.
        fake = captured if isinstance(captured, FakeTensor) else None
        size = tuple(captured.shape if fake is None else fake.fake_type.size)
        dtype = changes.casts.get(captured.dtype, captured.dtype)
        return TensorLeaf(path, size, dtype, changes.moves.get(captured.device, captured.device))
    if isinstance(captured, CustomObjArgument):
        return AnyLeaf(path, captured.class_fqn)
    if isinstance(captured, torch.SymBool):
        return AnyLeaf(path, type(captured).__name__)
    if isinstance(captured, torch.SymInt):
        captured = getattr(captured.node, "value", captured)
    captured = unwrap(captured)
    if isinstance(captured, Real):
        return FloatLeaf(path)
    return (
        NumberLeaf(path, captured) if isinstance(captured, Expr) else ConstantLeaf(path, captured)
    )


_NUMBERS = (int, float, complex)


def is_another_number(value: Any, captured: Any) -> bool:
    """Is it another int in the place of an int, or another float in that of a float? Such inputs
    may vary, if they are declared so."""
    return type(value) is type(captured) and type(value) in (int, float) and value != captured


def check_value(value: Any, expected: Leaf, declare: Callable[[], str]) -> None:
    """Refuse a value that an input must not be. `declare` gives the declaration under which it may
    be."""
    if isinstance(expected, TensorLeaf):
        _check_tensor(value, expected, declare)
    elif isinstance(expected, NumberLeaf):
        if type(value) not in (int, torch.SymInt):
            raise _wrong_value(expected, value, "an int", f"pass int({expected.path})")
    elif isinstance(expected, FloatLeaf):
        if type(value) not in (float, torch.SymFloat):
            raise _wrong_value(expected, value, "a float", f"pass float({expected.path})")
    elif isinstance(expected, ConstantLeaf) and not same_constant(value, expected.value):
        example = (
            "None" if expected.value is None else f"{_type_name(expected.value)} {expected.text}"
        )
        numbers = isinstance(value, _NUMBERS) and isinstance(expected.value, _NUMBERS)
        again = "capture it again with the other one"
        ways = f"{again}, or pass a tensor" if numbers else f"or {again}"
        if is_another_number(value, expected.value):
            ways = f"or capture it again, for all values, with {declare()}"
        raise InputValueError(
            f"{expected.path} is {_describe(value)}, but the program was captured with {example}, "
            "which is baked into it\n"
            f"  fix: call it with that value, {ways}",
            expected.path,
        )


def _check_tensor(value: Any, expected: TensorLeaf, declare: Callable[[], str]) -> None:
    path, wanted = expected.path, expected.dtype
    if not isinstance(value, torch.Tensor):
        fix = "pass a tensor, or capture it again with this"
        if type(value).__module__ == "numpy":
            fix = f"pass torch.as_tensor({path})"
        raise _wrong_value(expected, value, f"a tensor {expected.text}", fix)
    if value.dtype is not wanted:
        fix = f"pass {path}.to({wanted}), or capture it again with such an input"
        raise _wrong_tensor(f"{path} is of {value.dtype}", str(wanted), value, expected, fix)
    if value.layout is not torch.strided:
        raise InputValueError(
            f"{path} is of {value.layout}, but the program was captured for a dense tensor\n"
            f"  fix: pass {path}.to_dense()",
            path,
        )
    if not _is_on(value, expected.device):
        fix = f"pass {path}.to('{expected.device}'), or move the module, .to('{value.device}')"
        on = str(expected.device)
        raise _wrong_tensor(f"{path} is on {value.device}", on, value, expected, fix)
    if value.ndim != len(expected.size):
        dims = f"{len(expected.size)} dimensions"
        fix = f"pass a tensor of {dims}, or capture it again with such an input"
        raise _wrong_tensor(f"{path} has {value.ndim} dimensions", dims, value, expected, fix)
    for d, (size, given) in enumerate(zip(expected.size, value.shape, strict=True)):
        if isinstance(size, int) and given != size:
            fix = f"capture it again, for all sizes, with {declare()}, or for this one"
            raise _wrong_tensor(f"{path}.shape[{d}] is {given}", str(size), value, expected, fix)


def _is_on(value: torch.Tensor, device: torch.device) -> bool:
    """Is it on this device, or if that has no number, on one of its kind?"""
    return value.device == device or (device.index is None and value.device.type == device.type)


def _wrong_value(
    expected: TensorLeaf | NumberLeaf | FloatLeaf, value: Any, what: str, fix: str
) -> InputValueError:
    text = f"{expected.path} is {_describe(value)}, but the program was captured with {what}"
    return InputValueError(f"{text}\n  fix: {fix}", expected.path)


def _wrong_tensor(
    given: str, wanted: str, value: torch.Tensor, expected: TensorLeaf, fix: str
) -> InputValueError:
    return InputValueError(
        f"{given}, but the program was captured for {wanted}\n"
        f"  {expected.path}: expected {expected.text}, given {type_text(value)}\n  fix: {fix}",
        expected.path,
    )


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {type_text(value)}"
    return "None" if value is None else f"{_type_name(value)} {leaf_text(value)}"


def _type_name(value: Any) -> str:
    return f"the {type(value).__name__}"


def is_default(value: Any, default: Any) -> bool:
    """Is a value the default of an argument that was left out at capture?"""
    if value is default:
        return True
    compared = isinstance(value, (*LEAVES, tuple, list, dict)) and not isinstance(value, Tensor)
    return compared and same_constant(value, default)


def refuse_default(name: str, value: Any, default: Any) -> NoReturn:
    raise InputValueError(
        f"{name} is {_describe(value)}, but it was left out at capture, and its default, "
        f"{_describe(default)}, is baked into the program\n"
        "  fix: leave it out, or capture it again with this argument",
        name,
    )
