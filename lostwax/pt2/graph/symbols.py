"""Symbolic numbers of files, read: sympy's srepr text with an example value.

Integers and conditions are `lostwax.sym`'s own grammar; floats that sizes give (`ToFloat`,
`OpaqueUnaryFn_sqrt`) and choices (`Piecewise`) are added here. Nothing is evaluated. `spelling.py`
writes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from itertools import chain, count
from typing import Any

from lostwax.errors import LoadError, ParseError
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.symbolic.operations import BINARY, to_real
from lostwax.pt2.limits import MAX_CHAIN, MAX_SIZE
from lostwax.sym import (
    BoolExpr,
    Expr,
    ShapeEnv,
    Size,
)
from lostwax.sym.numbers.integers import choose, indicator
from lostwax.sym.numbers.real import MATH, Number, Real, apply, real_symbol
from lostwax.sym.text.parse import (
    MAX_BITS,
    MAX_DEGREE,
    MAX_TERMS,
    Function,
    Grammar,
    GrammarError,
    Parser,
    extent,
    parse,
    power,
)
from lostwax.sym.text.srepr import FUNCTIONS as _ON_INTEGERS
from lostwax.sym.text.srepr import parse_srepr

_PLAIN = re.compile(r"Symbol\('(\w+)'(?:, \w+=True)*\)", re.ASCII)
_UNBACKED = re.compile(r"u\d+", re.ASCII)
_UNBACKED_FLOAT = re.compile(r"zuf\d+", re.ASCII)
# what sympy writes of a function that it has read without knowing it
_UNKNOWN_FUNCTION = re.compile(r"Function\('(\w+)'\)\(", re.ASCII)
_LONGEST_NAME = 200
SIZE_OF = "s_"
"""How the name of a declared dim begins in files."""
Json = Mapping[str, Any]


# ------------------------------------------------------------------------------------------ reading


class SymbolReader:
    """The symbols of one program, made when their first value is read.

    `ranges` are the limits of symbols by name, `described` what our own files say of them beyond
    that: their source, the user's name for them, what they came from.
    """

    def __init__(
        self,
        env: ShapeEnv,
        ranges: Mapping[str, tuple[int | None, int | None]],
        hints: Callable[[], dict[str, int]],
        described: Mapping[str, Any],
        defined: Iterable[Any] = (),
        integers: Iterable[Any] = (),
    ) -> None:
        self.env = env
        self.ranges, self._find_hints, self.described = ranges, hints, described
        self.names: dict[str, Size] = {}
        self.own: dict[str, Size] = {}
        """By the name that the program has for them, where the file has another."""
        self.floats: dict[str, Number] = {}
        self._known: dict[str, Any] = {}
        for name, given in described.items():  # in their order, which texts show
            _check_record(name, given)
            if not _UNBACKED_FLOAT.fullmatch(name):
                self._symbol(name, {})
        for name, text in defined:  # each of those before it
            self._define(name, text)
        for text in integers:  # they are named in the order in which they are made
            self.expression(text)

    @cached_property
    def hints(self) -> dict[str, int]:
        """Looked for when there is a symbol."""
        return self._find_hints()

    def _define(self, name: Any, text: Any) -> None:
        """A name of our own files for an expression: of long ones, and of what torch has no words
        for."""
        if not isinstance(name, str) or not isinstance(text, str):
            raise LoadError("our own record of a number is damaged")
        if name in self.names or name in self.floats:
            raise LoadError(f"the number {name!r} is defined twice")
        value = self._parse(text)
        if isinstance(value, Expr) and (value.depth > MAX_CHAIN or extent(value)[2] > MAX_BITS):
            raise LoadError(f"the number {name!r} is made of too many others, or too large")
        if isinstance(value, (float, Real)):
            self.floats[name] = value
        elif isinstance(value, (int, Expr)) and not isinstance(value, bool):
            self.names[name] = value
        else:
            raise LoadError(f"{name!r} is no number")

    def size(self, given: Any) -> Size:
        """An int, a `SymInt` of the schema: `{"as_int": 4}`, `{"as_expr": {...}}`."""
        value = given.get("as_int")
        if value.__class__ is int:
            if not -MAX_SIZE <= value <= MAX_SIZE:
                raise LoadError(f"the size {value} is too large")
            return value
        found = self.expression(given["as_expr"]["expr_str"])
        if not isinstance(found, (int, Expr)) or isinstance(found, bool):
            raise LoadError(f"{found} is no integer")
        return found

    def number(self, given: Json) -> Any:
        """A `SymInt`, `SymFloat` or `SymBool` as graphs hold it."""
        for key in ("as_int", "as_float", "as_bool"):
            if key in given:
                return given[key]
        return wrap(self.expression(given["as_expr"]["expr_str"]))

    def expression(self, text: str) -> Any:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._parse(text)
        return found

    def _parse(self, text: str) -> Any:
        try:
            return parse_srepr(text, self.names, self._symbol)
        except ParseError as integers:
            try:
                return self._parse_mixed(text)
            except ParseError as error:
                raise LoadError(f"this is not an expression of sizes: {error}") from integers

    def find_named(self, text: str) -> Expr | None:
        """The symbol of this name, or the expression `s77 + 1`; None if the program has no such."""
        made = {s.name: s.expr for s in self.env.symbols}  # also of what floats define
        try:
            found = parse(text, made | self.names | self.own)
        except ParseError:
            return None
        return found if isinstance(found, Expr) else None

    def _symbol(self, name: str, assumptions: Mapping[str, bool]) -> Size:
        """A symbol that is read for the first time."""
        if not name or len(name) > _LONGEST_NAME:
            raise GrammarError("the name of a symbol is empty, or too long")
        if _UNBACKED_FLOAT.fullmatch(name) or name in self.floats:
            raise GrammarError(f"{name} is no integer")
        lo, hi = self.ranges.get(name, (None, None))
        described = self.described.get(name, {})
        own = described.get("name", name)
        lo, hi = described.get("lo", lo), described.get("hi", hi)
        if not all(b is None or b.__class__ is int for b in (lo, hi)):
            raise LoadError(f"the range of {name} is damaged")
        if _UNBACKED.fullmatch(name):
            made = self.env.unbacked(own, lo=lo, hi=hi, origin=described.get("origin"))
        else:
            if lo is None and (assumptions.get("positive") or assumptions.get("nonnegative")):
                lo = 0
            hint = _example_within(described.get("hint", self.hints.get(name)), lo, hi)
            source, declared = described.get("source"), described.get("declared")
            if not described and name.startswith(SIZE_OF):
                own, declared = self._find_free_name(), name.removeprefix(SIZE_OF)
            called = declared if declared and self.env.can_be_called(declared) else own
            made = self.env.symbol(
                called, hint=hint, lo=lo, hi=hi, source=source or called, declared=declared
            )
        self.names[name] = self.own[own] = made
        return made

    def _find_free_name(self) -> str:
        """A name as lostwax gives it to the size of an input."""
        taken = {s.name for s in self.env.symbols} | self.ranges.keys() | self.hints.keys()
        return next(name for name in map("s{}".format, count()) if name not in taken)

    # ---- floats, and choices between integers

    def _parse_mixed(self, text: str) -> Any:
        text = _UNKNOWN_FUNCTION.sub(r"\1(", text)
        functions = {**_MIXED, "Symbol": Function(self._any_symbol, 1, keywords=True)}
        parser = Parser(text, Grammar(functions, _CONSTANTS), self.names.get)
        value = parser.read_expression(0)
        if parser.next.kind != "end":
            parser.fail("unexpected text after a complete expression", parser.next.position)
        if not isinstance(value, (int, float, Expr, BoolExpr, Real)):
            parser.fail("not a number", 0)
        return value

    def _any_symbol(self, name: Any, **assumptions: Any) -> Any:
        if not isinstance(name, str):
            raise GrammarError("Symbol takes a quoted name")
        if name in self.names:
            return self.names[name]
        if name in self.floats:
            return self.floats[name]
        if not _UNBACKED_FLOAT.fullmatch(name):
            return self._symbol(name, assumptions)
        described = self.described.get(name, {})
        own = described.get("name", name.removeprefix("zu"))  # f0, as a capture calls it
        made = real_symbol(self.env, own, described.get("origin"))
        self.floats[name] = made
        return made


_TOLD = {
    **dict.fromkeys(("name", "source", "declared", "origin"), str),
    **dict.fromkeys(("hint", "lo", "hi"), int),
}


def _check_record(name: str, given: Any) -> None:
    for key, value in given.items():
        if value is not None and value.__class__ is not _TOLD.get(key, value.__class__):
            raise LoadError(f"our own record of the symbol {name} says {key} {str(value)[:100]!r}")
    if not given.get("name") or len(given["name"]) > _LONGEST_NAME:
        raise LoadError(f"our own record of the symbol {name} has no name for it, or a long one")


def hints_of(graph: Json) -> dict[str, int]:
    """The example's value of each symbol that stands alone as some size."""
    found: dict[str, int] = {}
    sizes = [meta["sizes"] for meta in graph["tensor_values"].values()]
    for size in chain(*sizes, graph["sym_int_values"].values()):
        expression = size.get("as_expr") if isinstance(size, dict) else None
        if isinstance(expression, dict) and isinstance(expression.get("hint"), dict):
            match = _PLAIN.fullmatch(str(expression.get("expr_str")))
            hint = expression["hint"].get("as_int")
            if match and isinstance(hint, int):
                found.setdefault(match[1], hint)
    return found


def _example_within(hint: int | None, lo: int | None, hi: int | None) -> int:
    """The example's value of a symbol; if the file has none, a value in the range."""
    if hint is None:
        hint = 2 if lo is None else max(lo, 2)
        if hi is not None:
            hint = min(hint, hi)
    return hint


def _fold_by(name: str) -> Callable[..., Any]:
    def build(*values: Any) -> Any:
        return reduce(lambda a, b: _apply(name, a, b), values)

    return build


def _apply(name: str, a: Any, b: Any) -> Any:
    _check_extent(a, b)
    try:
        result = power(a, b) if name == "pow" and _are_sizes(a, b) else BINARY[name](a, b)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise GrammarError(str(error)) from None
    if result is NotImplemented:
        raise GrammarError("these numbers cannot be combined")
    return result


def _check_extent(*values: Any) -> None:
    """Refuse a product that would be longer than any real program needs."""
    parts = [
        extent(part)
        for value in values
        for part in ((value.above, value.below) if isinstance(value, Real) else (value,))
        if isinstance(part, (int, Expr))
    ]
    terms = math.prod(n for n, _, _ in parts)
    degree, bits = sum(d for _, d, _ in parts), sum(b for _, _, b in parts)
    if terms > MAX_TERMS or degree > MAX_DEGREE or bits > MAX_BITS:
        raise GrammarError("this expression is too large")


def _are_sizes(*values: Any) -> bool:
    return all(isinstance(v, (int, Expr)) for v in values)


def _binary(name: str) -> Callable[..., Any]:
    return lambda a, b: _apply(name, a, b)


def _math(name: str) -> Callable[..., Any]:
    def build(value: Any) -> Any:
        return apply(name, to_real(value))

    return build


def _round_by(name: str) -> Callable[..., Any]:
    def build(value: Any) -> Any:
        value = to_real(value)
        return getattr(value, name)() if isinstance(value, Real) else int(value)

    return build


def _round_to(value: Any, digits: Any) -> Any:
    if not isinstance(digits, int):
        raise GrammarError("a float is rounded to a plain number of digits")
    return apply("round", to_real(value), float(digits))


def _is_whole(value: Any) -> Any:
    value = to_real(value)
    return indicator(value.is_integer())


def _choice(*pairs: Any) -> Any:
    if not all(isinstance(p, tuple) for p in pairs) or pairs[-1][1] is not True:
        raise GrammarError("a Piecewise takes pairs of a value and a condition, the last one true")
    value = pairs[-1][0]
    for other, condition in pairs[-2::-1]:
        if not isinstance(condition, (bool, BoolExpr)) or isinstance(other, (float, Real)):
            raise GrammarError("only a choice between integers by a condition is known")
        _check_extent(other, value)
        value = choose(condition, other, value)
    return value


def _float(digits: Any, **precision: Any) -> float:
    try:
        return float(digits)
    except (TypeError, ValueError):
        raise GrammarError(f"{digits!r} is no float") from None


_CONSTANTS = {"true": True, "false": False, "True": True, "False": False}
_MIXED: Mapping[str, Function] = {
    **_ON_INTEGERS,
    "Float": Function(_float, 1, keywords=True),
    "Add": Function(_fold_by("add"), None),
    "Mul": Function(_fold_by("mul"), None),
    "Max": Function(_fold_by("sym_max"), None),
    "Min": Function(_fold_by("sym_min"), None),
    **{n: Function(_binary("pow"), 2) for n in ("Pow", "FloatPow", "PowByNatural")},
    **{n: Function(_binary("truediv"), 2) for n in ("IntTrueDiv", "FloatTrueDiv")},
    "Abs": Function(lambda value: abs(to_real(value)), 1),
    "FloatFloorDiv": Function(_binary("floordiv"), 2),
    "FloatMod": Function(_binary("mod"), 2),
    "RoundDecimal": Function(_round_to, 2),
    "IsInteger": Function(_is_whole, 1),
    "ToFloat": Function(to_real, 1),
    "TruncToInt": Function(_round_by("trunc"), 1),
    "FloorToInt": Function(_round_by("floor"), 1),
    "CeilToInt": Function(_round_by("ceil"), 1),
    "RoundToInt": Function(_round_by("round"), 1),
    **{f"OpaqueUnaryFn_{name}": Function(_math(name), 1) for name in MATH},
    "BitwiseFn_bitwise_and": Function(_binary("and"), 2),
    "BitwiseFn_bitwise_or": Function(_binary("or"), 2),
    "ExprCondPair": Function(lambda value, condition: (value, condition), 2),
    "Piecewise": Function(_choice, None),
    **{
        name: Function(_binary(op), 2)
        for op, both in {
            "eq": ("Eq", "Equality"),
            "ne": ("Ne", "Unequality"),
            "ge": ("Ge", "GreaterThan"),
            "gt": ("Gt", "StrictGreaterThan"),
            "le": ("Le", "LessThan"),
            "lt": ("Lt", "StrictLessThan"),
        }.items()
        for name in both
    },
}
WORDS = frozenset({"Symbol", *_MIXED, *_CONSTANTS})
"""What texts of expressions are made of, beside the names of symbols."""
