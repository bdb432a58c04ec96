"""Whether two numbers are one object to Python, `one is other`, where it is not known which
numbers they are.

There are one True and one False, and one object for each of the small integers. Of other numbers
it hangs on how they were computed, and that is refused. Must not ask.
"""

from __future__ import annotations

from typing import Any, NoReturn

from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.symbolic.operations import have_same_truth
from lostwax.location import Location, user_location
from lostwax.sym import BoolExpr, Expr, eq, known
from lostwax.sym.numbers.real import Real, compare

_KINDS: dict[type, type] = {
    bool: bool, BoolExpr: bool, int: int, Expr: int, float: float, Real: float
}  # fmt: skip
_SMALL = (-5, 256)
"""Python has one object for each integer from the one to the other."""


def is_same_symbolic_object(one: Any, other: Any) -> Any:
    """`one is other`, of which one is a symbolic number: True or False, or a symbolic truth. (One
    of a class of its own, as in an `IntEnum`, is none that was computed.)"""
    a, b = unwrap(one), unwrap(other)
    kind = _KINDS.get(type(a))
    if kind is None or kind is not _KINDS.get(type(b)):
        return False
    if kind is bool:
        return wrap(have_same_truth(a, b))
    equal = eq(a, b) if kind is int else compare("==", a, b)
    if known(equal) is False and a == a and b == b:
        return False
    if kind is int and (_is_small(a) or _is_small(b)):
        return wrap(equal)
    raise CaptureError.here(
        f"two {kind.__name__}s that depend on data or on a size are asked to be one object",
        why=f"Python has one object for each integer from {_SMALL[0]} to {_SMALL[1]}; of others, "
        "and of floats, it hangs on how they were computed",
        instead="compare the numbers, n == m",
    )


def refuse_address(kind: type) -> NoReturn:
    """`id(n)`: a program has numbers, and no objects of Python's that lie somewhere."""
    raise CaptureError.here(
        f"id() is asked of a value of type {kind.__name__}, which depends on data or on a size",
        why="which of Python's objects it is depends on the number, and a program has no objects",
        instead="compare the numbers, n == m, or ask `flag is True`",
    )


def refuse_address_in_program(where: Location | None) -> NoReturn:
    """`x * id(y)`: each call has objects of its own."""
    at = "" if where is None else f"\n  at {where}"
    raise CaptureError(
        f"the program would compute with id() or hash() of an object.{at}\n"
        "  why: it says where the object lies in memory, which differs in each call\n"
        "  instead: give each object a number of your own, and pass or keep that"
    )


class Address(int):
    """Where an object lies: it may be looked up, compared and shown. To compute with it is
    refused, and so is a program that has it in it (`steps/to_graph`)."""


def _refuse_arithmetic(address: Address, *_: Any) -> NoReturn:
    refuse_address_in_program(user_location())


_HARMLESS = {"__bool__", "__getnewargs__", "__index__", "__int__"}
for _name in vars(int).keys() - vars(object).keys() - _HARMLESS:
    if _name.startswith("__"):
        setattr(Address, _name, _refuse_arithmetic)


def _is_small(number: Any) -> bool:
    least, most = (number, number) if isinstance(number, int) else number.env.bounds(number)
    return least is not None and most is not None and _SMALL[0] <= least and most <= _SMALL[1]
