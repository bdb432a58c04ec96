"""Functions of integers that data decide: `math.gcd`, `math.factorial`, `n.bit_length()`.

They return what Python's would. Where that is larger than an integer of a program, the program
checks that it does not come to it. Must not know of hooks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from operator import call
from typing import Any

import torch

from lostwax.capture.flow.truths import is_open_number, take_number
from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)
_BITS = 63


def find_common_divisor(*numbers: Any) -> Any:
    """`math.gcd`."""
    integers = _read(numbers)
    if integers is None:
        return call(math.gcd, *numbers)
    found = 0
    for each in integers:
        found = _find_divisor_of_two(found, each)
    return found


def find_common_multiple(*numbers: Any) -> Any:
    """`math.lcm`."""
    integers = _read(numbers)
    if integers is None:
        return call(math.lcm, *numbers)
    found = 1
    for each in integers:
        divisor = _find_divisor_of_two(found, each)
        found = abs(found * each) // torch.sym_max(divisor, 1)
    return found


def _find_divisor_of_two(one: Any, other: Any) -> Any:
    one, other = abs(one), abs(other)
    while other != 0:
        one, other = other, one % other
    return one


def find_root(number: Any, /) -> Any:
    """`math.isqrt`."""
    integers = _read((number,))
    if integers is None:
        return call(math.isqrt, number)
    (number,) = integers
    torch._check_with(ValueError, number >= 0, lambda: "isqrt() argument must be nonnegative")
    root = int(math.sqrt(number))  # which may be one off
    if root * root > number:
        root = root - 1
    elif root < _LARGEST_ROOT and (root + 1) * (root + 1) <= number:
        root = root + 1
    torch._check(root >= 0)
    return root


_LARGEST_ROOT = math.isqrt(2**_BITS - 1)


def multiply_up_to(number: Any, /) -> Any:
    """`math.factorial`."""
    integers = _read((number,))
    if integers is None:
        return call(math.factorial, number)
    (number,) = integers
    products = [math.prod(range(1, n + 1)) for n in range(_MOST_MULTIPLIED + 1)]
    torch._check_with(ValueError, number >= 0, lambda: "factorial() not defined for negatives")
    torch._check(number <= _MOST_MULTIPLIED, lambda: f"{_MOST_MULTIPLIED}! is the largest of int64")
    return torch.tensor(products)[number].item()


_MOST_MULTIPLIED = 20


def count_digits(number: Any, /) -> Any:
    """`number.bit_length()`."""
    if not is_open_number(number):
        return number.bit_length()
    powers = torch.ones(_BITS, dtype=torch.int64) << torch.arange(_BITS)
    return _count((powers <= torch.full((), abs(number))).sum())


def count_ones(number: Any, /) -> Any:
    """`number.bit_count()`."""
    if not is_open_number(number):
        return number.bit_count()
    return _count(((torch.full((), abs(number)) >> torch.arange(_BITS)) & 1).sum())


def _count(found: torch.Tensor) -> Any:
    number = found.item()
    torch._check(number >= 0)
    torch._check(number <= _BITS)
    return number


def _read(numbers: Sequence[Any]) -> list[Any] | None:
    """The numbers, if they are integers some of which data decide; else None."""
    if not any(is_open_number(each) for each in numbers):
        return None
    found = [take_number(each) for each in numbers]
    return found if all(isinstance(each, (int, torch.SymInt)) for each in found) else None


# --------------------------------------------------------------------------------------- operators


def operate(name: str, one: Any, other: Any) -> Any:
    """`one << other`, and other operators whose result hangs on digits; `name`: of its class in
    `ast`."""
    compute = _OPERATORS[name]
    kinds = (type(one), type(other))
    if torch.SymInt in kinds and all(kind in (int, torch.SymInt) for kind in kinds):
        is_bits = name.startswith("Bit")
        if is_open_number(other) and (not is_bits or is_open_number(one)):
            return _BY_TENSORS[name](torch.full((), one), torch.full((), other)).item()
    return compute(one, other)


def _shift_left(one: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    _check_shift(by)
    found = one << by.clamp(max=_BITS)
    torch._check(((found >> by.clamp(max=_BITS)) == one).item(), lambda: _TOO_LARGE)
    return found


def _shift_right(one: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    _check_shift(by)
    return one >> by.clamp(max=_BITS)


def _check_shift(by: torch.Tensor) -> None:
    is_count: Any = (by >= 0).item()
    torch._check_with(ValueError, is_count, lambda: "negative shift count")


def _raise_to(one: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    torch._check((by >= 0).item(), lambda: "a negative power of an integer is a float")
    is_small = one.double().abs() ** by < 2.0**_BITS
    torch._check(is_small.item(), lambda: _TOO_LARGE)
    return one**by


_TOO_LARGE = "the integer does not fit into int64"
_BY_TENSORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "LShift": _shift_left,
    "RShift": _shift_right,
    "Pow": _raise_to,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "Pow": operator.pow,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
}
