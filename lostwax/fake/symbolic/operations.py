"""What Python's operators mean on symbolic values: `int | Expr`, `float | Real` and `bool |
BoolExpr`, mixed as Python mixes ints, floats and bools.

The tables use torch's names for the operators. Must not know of torch's classes: `classes.py` puts
these operators on `torch.SymInt` and its kin.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from lostwax.sym import BoolExpr, Expr, Size, decide, eq, maximum, minimum, ne, negate, specialize
from lostwax.sym.numbers.integers import (
    absolute,
    bit_and,
    bit_or,
    bit_xor,
    choose,
    indicator,
    power,
    round_half_even,
    shift_left,
    shift_right,
)
from lostwax.sym.numbers.real import MATH, Number, Real, apply, compare, divide, extremum, real

Value: TypeAlias = "Size | Number | BoolExpr"


@dataclass(eq=False, repr=False)
class BinaryOperator:
    """A binary operator on two sizes, and on two floats (None: a TypeError)."""

    on_sizes: Callable[[Any, Any], Any]
    on_reals: Callable[[Any, Any], Any] | None
    commutes: bool = False

    def __call__(self, a: Any, b: Any) -> Any:
        a, b = to_number(a), to_number(b)
        if not isinstance(a, (float, Real)) and not isinstance(b, (float, Real)):
            return self.on_sizes(a, b)
        if self.on_reals is None:
            return NotImplemented
        return self.on_reals(to_real(a), to_real(b))


def reflect(function: BinaryOperator) -> BinaryOperator:
    """The operator with its operands exchanged, for `n` in `2 - n`."""
    if function.commutes:
        return function
    on_sizes, on_reals = function.on_sizes, function.on_reals
    return BinaryOperator(
        lambda a, b: on_sizes(b, a), None if on_reals is None else lambda a, b: on_reals(b, a)
    )


def to_number(value: Value) -> Size | Number:
    """A condition counts as 0 or 1, as in Python."""
    return indicator(value) if isinstance(value, (bool, BoolExpr)) else value


def to_real(value: Value) -> Number:
    value = to_number(value)
    return real(value) if isinstance(value, (int, Expr)) else value


def _power_of_sizes(a: Size, n: Size) -> Size | Number:
    """As in Python, an int for exponents from 0 and a float below: which one is a branch."""
    if decide(n >= 0):
        return power(a, specialize(n))
    return _real_power(real(a), real(n))


def _real_power(a: Number, n: Number) -> Number:
    return a**n


def _divmod(a: Any, b: Any) -> tuple[Any, Any]:
    return a // b, a % b


BINARY = {
    "add": BinaryOperator(operator.add, operator.add, commutes=True),
    "sub": BinaryOperator(operator.sub, operator.sub),
    "mul": BinaryOperator(operator.mul, operator.mul, commutes=True),
    "mod": BinaryOperator(operator.mod, operator.mod),
    "floordiv": BinaryOperator(operator.floordiv, operator.floordiv),
    "truediv": BinaryOperator(divide, operator.truediv),
    "divmod": BinaryOperator(_divmod, _divmod),
    "pow": BinaryOperator(_power_of_sizes, _real_power),
    "lshift": BinaryOperator(shift_left, None),
    "rshift": BinaryOperator(shift_right, None),
    "and": BinaryOperator(bit_and, None),
    "or": BinaryOperator(bit_or, None),
    "xor": BinaryOperator(bit_xor, None),
    "sym_max": BinaryOperator(maximum, partial(extremum, "max")),
    "sym_min": BinaryOperator(minimum, partial(extremum, "min")),
    "eq": BinaryOperator(eq, partial(compare, "==")),
    "ne": BinaryOperator(ne, partial(compare, "!=")),
    "lt": BinaryOperator(operator.lt, operator.lt),
    "le": BinaryOperator(operator.le, operator.le),
    "gt": BinaryOperator(operator.gt, operator.gt),
    "ge": BinaryOperator(operator.ge, operator.ge),
}
COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


# ------------------------------------------------------------------------------------- one operand


def _round_size(a: Size, digits: int | None = None) -> Size:
    if digits is None or digits >= 0:
        return a
    unit: int = 10**-digits
    return round_half_even(a, unit) * unit


def _round_real(a: Real, digits: int | None = None) -> Size | Number:
    return a.round() if digits is None else apply("round", a, float(digits))


def _invert(a: Size) -> Size:
    return -a - 1


def _itself(a: Any) -> Any:
    return a


UNARY_SIZES: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "pos": _itself,
    "abs": absolute,
    "floor": _itself,
    "ceil": _itself,
    "trunc": _itself,
    "round": _round_size,
    "invert": _invert,
    "sym_float": real,
}
UNARY_REALS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "pos": _itself,
    "abs": abs,
    "floor": Real.floor,
    "ceil": Real.ceil,
    "trunc": Real.trunc,
    "sym_int": Real.trunc,
    "round": _round_real,
    "is_integer": Real.is_integer,
    "sym_float": _itself,
    **{f"sym_{name}": partial(apply, name) for name in MATH},
}


# ------------------------------------------------------------------------------------- conditions


def have_same_truth(a: Any, b: Any) -> Any:
    """`a == b`; beside a number, a condition counts as 0 or 1."""
    if not _are_conditions(a, b):
        return BINARY["eq"](a, b)
    return (a & b) | (negate(a) & negate(b))


def _differ_in_truth(a: Any, b: Any) -> Any:
    return negate(have_same_truth(a, b))


def _of_truths(on_conditions: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """`a & b` is a condition of two, else bits."""
    on_numbers = BINARY[name]
    return lambda a, b: (on_conditions if _are_conditions(a, b) else on_numbers)(a, b)


OF_CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "and": _of_truths(operator.and_, "and"),
    "or": _of_truths(operator.or_, "or"),
    "xor": _of_truths(_differ_in_truth, "xor"),
    "eq": have_same_truth,
    "ne": _differ_in_truth,
}
"""What is otherwise between conditions than between numbers."""


def _are_conditions(*values: Any) -> bool:
    return all(isinstance(v, (bool, BoolExpr)) for v in values)


def if_then_else(b: bool | BoolExpr, yes: Value, no: Value) -> Value:
    """It costs no branch between sizes or between conditions; between floats it is a branch."""
    if _are_conditions(yes, no):
        return (b & yes) | (negate(b) & no)  # type: ignore[operator]
    if isinstance(yes, (int, Expr)) and isinstance(no, (int, Expr)):
        return choose(b, yes, no)
    return yes if decide(b) else no
