"""Read sympy's srepr form, the text of sizes and conditions in `.pt2` files, without sympy and
without eval.

Knows the functions that torch's shape environment can write for integers and conditions. Fractions
and the floats that torch puts between integers (`TruncToInt(IntTrueDiv(a, b))`) are followed
exactly and must be whole again in the end; what cannot be an integer expression is refused by
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import gcd
from typing import TypeAlias

from lostwax.sym.expressions.expr import Condition, Size, ceildiv, maximum, minimum
from lostwax.sym.text.parse import (
    PYTHON,
    Function,
    Grammar,
    GrammarError,
    Parser,
    Value,
    compare,
    conjunction,
    disjunction,
    for_integers,
    integer,
    largest,
    negation,
    power,
    product,
    quotient,
    remainder,
    smallest,
    total,
)

MakeSymbol: TypeAlias = Callable[[str, Mapping[str, bool]], Size]


def parse_srepr(
    text: str, names: Mapping[str, Size], symbol: MakeSymbol | None = None
) -> Size | Condition:
    """The expression of an `expr_str`: `Add(Symbol('s0', integer=True), Integer(1))`; `s0 + 1` is
    read as well.

    `names` gives the value of each symbol; `symbol(name, assumptions)` is asked for one that is
    not there."""

    def find(name: Value, **assumptions: Value) -> Size:
        if not isinstance(name, str):
            raise GrammarError("Symbol takes a quoted name")
        if name in names:
            return names[name]
        if symbol is None:
            raise GrammarError(f"unknown symbol {name!r}")
        return symbol(name, assumptions)

    functions = {**FUNCTIONS, "Symbol": Function(find, 1, keywords=True)}
    return Parser(text, Grammar(functions, _CONSTANTS, _REFUSED), names.get).read_all()


@dataclass(frozen=True)
class Ratio:
    """A number between two integer expressions, such as `s0/2`. `rounded`: a float division made
    it, so only rounding it to an integer at once is exact (below 2**53)."""

    above: Size
    below: Size
    rounded: bool = False


def _ratio(value: Value) -> Ratio:
    return value if isinstance(value, Ratio) else Ratio(integer(value), 1)


def _exact(value: Value) -> Ratio:
    r = _ratio(value)
    if r.rounded:
        raise GrammarError("arithmetic on the rounded result of a float division")
    return r


def _whole_if_possible(above: Size, below: Size) -> Size | Ratio:
    if not isinstance(below, int):
        return Ratio(above, below)
    if below == 0:
        raise GrammarError("division by zero")
    coefficients = [above] if isinstance(above, int) else list(above.terms.values())
    common = reduce(gcd, coefficients, below) * (-1 if below < 0 else 1)
    above, below = above // common, below // common
    return above if below == 1 else Ratio(above, below)


def _add(*values: Value) -> Size | Ratio:
    if not any(isinstance(v, Ratio) for v in values):
        return total([integer(v) for v in values])
    above: Size = 0
    below: Size = 1
    for r in map(_exact, values):
        above = product(above, r.below) + product(r.above, below)
        below = product(below, r.below)
    return _whole_if_possible(above, below)


def _multiply(*values: Value) -> Size | Ratio:
    if not any(isinstance(v, Ratio) for v in values):
        return _product(values)
    ratios = [_exact(v) for v in values]
    return _whole_if_possible(_product(r.above for r in ratios), _product(r.below for r in ratios))


def _product(factors: Iterable[Value]) -> Size:
    one: Size = 1
    return reduce(product, factors, one)


def _power(base: Value, exponent: Value) -> Size | Ratio:
    if isinstance(exponent, int) and exponent < 0:
        r = _exact(base)
        return _whole_if_possible(power(r.below, -exponent), power(r.above, -exponent))
    if isinstance(base, Ratio):
        r = _exact(base)
        return _whole_if_possible(power(r.above, exponent), power(r.below, exponent))
    return power(base, exponent)


def _divide(left: Value, right: Value) -> Ratio:
    """A division in floats."""
    a, b = _exact(left), _exact(right)
    below = product(a.below, b.above)
    dyadic = isinstance(below, int) and below > 0 and below & (below - 1) == 0
    return Ratio(product(a.above, b.below), below, rounded=not dyadic)


def _rational(above: Value, below: Value) -> Size | Ratio:
    if not isinstance(above, int) or not isinstance(below, int):
        raise GrammarError("the parts of a Rational must be plain integers")
    return _whole_if_possible(above, below)


def _float(digits: Value, **_precision: Value) -> Size | Ratio:
    """Only numbers that a float holds in few bits: their products with sizes are exact in floats
    too."""
    try:
        fraction = Fraction(float(digits))
    except (ValueError, OverflowError):
        raise GrammarError(f"{digits!r} is no finite float") from None
    if fraction.denominator >= 1 << 30 or abs(fraction.numerator) >= 1 << 30:
        raise GrammarError(f"the float {digits} has too many digits for exact integer arithmetic")
    return _whole_if_possible(fraction.numerator, fraction.denominator)


def _literal(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise GrammarError("Integer takes a plain number")
    return value


def _floor(value: Value) -> Size:
    r = _ratio(value)
    return r.above // r.below


def _ceil(value: Value) -> Size:
    r = _ratio(value)
    return ceildiv(r.above, r.below)


def _truncate(value: Value) -> Size:
    """Towards zero, whatever the sign: at most one of the two parts is not 0."""
    return maximum(_floor(value), 0) + minimum(_ceil(value), 0)


def _shift_left(value: Value, by: Value) -> Size:
    return product(value, power(2, by))


def _shift_right(value: Value, by: Value) -> Size:
    return quotient(value, power(2, by))


def _modular_index(value: Value, divisor: Value, modulus: Value) -> Size:
    return remainder(quotient(value, divisor), modulus)


def _all(*values: Value) -> Condition:
    start: Condition = True
    return reduce(conjunction, values, start)


def _any(*values: Value) -> Condition:
    start: Condition = False
    return reduce(disjunction, values, start)


_RELATIONS = {
    "==": ("Eq", "Equality"),
    "!=": ("Ne", "Unequality"),
    ">=": ("Ge", "GreaterThan"),
    ">": ("Gt", "StrictGreaterThan"),
    "<=": ("Le", "LessThan"),
    "<": ("Lt", "StrictLessThan"),
}

FUNCTIONS: Mapping[str, Function] = {
    **PYTHON.functions,
    "Integer": Function(_literal, 1),
    "Rational": Function(_rational, 2),
    "Float": Function(_float, 1, keywords=True),
    "Add": Function(_add, None),
    "Mul": Function(_multiply, None),
    "Pow": Function(_power, 2),
    "PowByNatural": Function(power, 2),
    "FloorDiv": Function(quotient, 2),
    "CleanDiv": Function(quotient, 2),
    "CeilDiv": Function(for_integers(ceildiv), 2),
    "Mod": Function(remainder, 2),
    "PythonMod": Function(remainder, 2),
    "ModularIndexing": Function(_modular_index, 3),
    "LShift": Function(_shift_left, 2),
    "RShift": Function(_shift_right, 2),
    "Max": Function(largest, None),
    "Min": Function(smallest, None),
    "Abs": Function(for_integers(lambda e: maximum(e, -e)), 1),
    "Identity": Function(lambda value: value, 1),
    "ToFloat": Function(_ratio, 1),
    "IntTrueDiv": Function(_divide, 2),
    "FloatTrueDiv": Function(_divide, 2),
    "floor": Function(_floor, 1),
    "ceiling": Function(_ceil, 1),
    "FloorToInt": Function(_floor, 1),
    "CeilToInt": Function(_ceil, 1),
    "TruncToInt": Function(_truncate, 1),
    "And": Function(_all, None),
    "Or": Function(_any, None),
    "Not": Function(negation, 1),
    **{
        name: Function(partial(compare, sign), 2)
        for sign, both in _RELATIONS.items()
        for name in both
    },
}

_CONSTANTS = {**PYTHON.constants, "true": True, "false": False}

_INFINITE = "an infinite bound is not an integer; leave the bound out instead"
_CHOICE = "a choice between two values by a condition is not an integer expression here"
_REFUSED = {
    **dict.fromkeys(("oo", "zoo", "nan", "int_oo", "Infinity", "NegativeInfinity"), _INFINITE),
    **dict.fromkeys(("Piecewise", "Where", "ITE", "ExprCondPair"), _CHOICE),
    "IsNonOverlappingAndDenseIndicator": "a question about memory layout",
}
