"""Integer functions that Python has and polynomials do not, as exact expressions: division that
truncates, bit operations, powers, rounding, a choice between two values.

All take and give `int | Expr`. Nothing here guesses: what has no exact expression is specialised,
which is a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lostwax.sym.env import decide, known, specialize
from lostwax.sym.expressions.expr import BoolExpr, Condition, Size, maximum, minimum

MAX_POWER = 32  # factors; a higher power of a symbol is specialised


def absolute(a: Size) -> Size:
    if known(a >= 0) is True:
        return a
    return -a if known(a <= 0) is True else maximum(a, -a)


def truncdiv(a: Size, b: Size) -> Size:
    """`a / b` rounded towards zero, as C++ divides integers."""
    if not decide(b >= 0):
        a, b = -a, -b
    return _apply_to_magnitude(a, lambda n: n // b)


def remainder(a: Size, b: Size) -> Size:
    """What `truncdiv` leaves, with the sign of `a`, as C++'s `%`."""
    b = b if decide(b >= 0) else -b
    return _apply_to_magnitude(a, lambda n: n % b)


def _apply_to_magnitude(a: Size, function: Callable[[Size], Size]) -> Size:
    """`function` of the magnitude of `a`, with the sign of `a`; of 0 it must be 0."""
    if known(a >= 0) is True:
        return function(a)
    if known(a <= 0) is True:
        return -function(-a)
    return function(maximum(a, 0)) - function(maximum(-a, 0))


def round_half_even(a: Size, b: Size) -> Size:
    """`a / b` rounded to the nearest integer, halves to the even one, as Python's `round`; `b` is
    positive."""
    doubled = 2 * a + b
    nearest = doubled // (2 * b)
    half = 1 - minimum(1, doubled % (2 * b))
    return nearest - half * (nearest % 2)


def power(a: Size, n: int) -> Size:
    """`a ** n` for n >= 0."""
    if isinstance(a, int):
        return int(a**n)
    if n > MAX_POWER:
        return int(specialize(a) ** n)
    product: Size = 1
    for _ in range(n):
        product = product * a
    return product


# --------------------------------------------------------------------------------------------- bits


def shift_left(a: Size, n: Size) -> Size:
    return a * (1 << specialize(n))


def shift_right(a: Size, n: Size) -> Size:
    return a // (1 << specialize(n))


def bit_and(a: Size, b: Size) -> Size:
    """Exact where one side is constant: each run of ones in the mask is a remainder of a
    quotient."""
    if isinstance(a, int):
        a, b = b, a
    mask = specialize(b)
    if isinstance(a, int):
        return a & mask
    if mask < 0:
        return a - bit_and(a, ~mask)
    total: Size = 0
    for low, length in _find_runs(mask):
        total = total + a // (1 << low) % (1 << length) * (1 << low)
    return total


def bit_or(a: Size, b: Size) -> Size:
    return a + b - bit_and(a, b)


def bit_xor(a: Size, b: Size) -> Size:
    return a + b - 2 * bit_and(a, b)


def _find_runs(mask: int) -> Iterator[tuple[int, int]]:
    """(lowest bit, length) of each run of ones."""
    low = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        mask >>= ones
        yield low + zeros, ones
        low += zeros + ones


# --------------------------------------------------------------------------------------- conditions


def indicator(b: Condition) -> Size:
    """1 where `b` holds, 0 where it does not."""
    certain = known(b)
    if certain is not None or not isinstance(b, BoolExpr):
        return int(bool(certain))
    if b.kind == "ge":
        return minimum(maximum(b.poly + 1, 0), 1)
    if b.kind in ("eq", "ne"):
        differs = minimum(absolute(b.poly), 1)
        return differs if b.kind == "ne" else 1 - differs
    return (minimum if b.kind == "and" else maximum)(*map(indicator, b.args))


def choose(b: Condition, yes: Size, no: Size) -> Size:
    """`yes if b else no` without a branch."""
    certain = known(b)
    if certain is not None:
        return yes if certain else no
    return no + indicator(b) * (yes - no)
