"""Symbolic numbers into files: sympy's srepr text with an example value.

An expression that is long, or that torch has no words for, gets a name: torch reads a symbol of its
own there, and our own record says once what it stands for, so that files grow with the number of
expressions and not with their expansions. What `symbols.py` would not read back is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from lostwax.errors import SaveError
from lostwax.fake.symbolic.face import MISREAD
from lostwax.pt2.graph.symbols import SIZE_OF, WORDS
from lostwax.pt2.limits import MAX_CHAIN
from lostwax.sym import BoolExpr, Expr, Size, Symbol, current, evaluate, known
from lostwax.sym.expressions.expr import Atom
from lostwax.sym.numbers.real import (
    Real,
    complete_values,
    current_real,
    defined_integers,
    definition,
    evaluate_real,
    real_names,
)
from lostwax.sym.text.parse import MAX_BITS, MAX_DEGREE, MAX_DEPTH, MAX_LENGTH, extent
from lostwax.sym.text.show import to_srepr

_LONG, _DEEP = 1200, 24
"""Characters and levels of a text that is written out: far above what sizes of models need."""
_UNBACKED_FLOAT = re.compile(r"zuf\d+", re.ASCII)


class SymbolWriter:
    """Numbers of one program as the file has them. `symbols` collects those that were written,
    `defined` the names that were given to expressions, with their texts.

    `examples` has the values of all symbols in an example that is not the program's own.
    `plain_names` says how dims are called: `DimNames`.
    """

    def __init__(self, examples: Mapping[Symbol, int], plain_names: bool = False) -> None:
        self.examples = examples
        self.names = DimNames(plain_names)
        self.symbols: dict[str, Symbol] = {}
        self.floats: dict[str, Real] = {}
        self.defined: list[tuple[str, str]] = []
        self.named: dict[str, Expr | Real] = {}
        """By name, what was given one."""
        self._spelled: dict[Atom, str] = {}
        self._texts: dict[Any, str] = {}
        self._taken: set[str] = set()
        self._kept: set[str] = set()
        """The names of floats of data, which they have also where they are written later."""

    def size(self, value: Size) -> dict[str, Any]:
        value = settle(value)
        if isinstance(value, int):
            return {"as_int": value}
        return self._expression(value, "as_int")

    def number(self, value: Any) -> tuple[str, dict[str, Any]]:
        """The kind of a number ("int", "float", "bool"), and what the file says of its value."""
        value = settle_number(value)
        if isinstance(value, (bool, BoolExpr)):
            plain = isinstance(value, bool)
            return "bool", {"as_bool": value} if plain else self._expression(value, "as_bool")
        if isinstance(value, (int, Expr)):
            return "int", self.size(value)
        if isinstance(value, float):
            return "float", {"as_float": value}
        return "float", self._expression(value, "as_float")

    def _expression(self, value: Any, kind: str) -> dict[str, Any]:
        text = self.text(value)
        hint = None if kind == "as_bool" else self.example(value)
        return {"as_expr": {"expr_str": text, "hint": None if hint is None else {kind: hint}}}

    def example(self, value: Expr | Real) -> int | float | None:
        """The value in the example that torch's part of a file tells of."""
        if not self.examples or value.hint is None:
            return value.hint
        values = complete_values(self.examples, value.symbols())
        try:
            return (
                evaluate_real(value, values) if isinstance(value, Real) else evaluate(value, values)
            )
        except (ArithmeticError, ValueError):
            return None

    def text(self, value: Any) -> str:
        """The expression as sympy's `srepr` writes it, or the name that stands for it."""
        found = self._texts.get(value)
        if found is None:
            found = self._text(value)
            if isinstance(value, Expr):
                found = self._shorten(value, found)
            _check(found)
            self._texts[value] = found
        return found

    def _text(self, value: Any) -> str:
        if isinstance(value, Real):
            return self._real(value)
        if isinstance(value, (Expr, BoolExpr)):
            for atom in sorted(value.atoms(), key=attrgetter("id")):  # from the inside out
                if atom not in self._spelled:
                    self._spelled[atom] = self._atom(atom)
        return to_srepr(value, self._spelled)

    def _atom(self, atom: Atom) -> str:
        what = definition(atom) if isinstance(atom, Symbol) else None
        if what is not None:
            return self._write_definition(what.op, what.args, atom.expr)
        if not isinstance(atom, Symbol):
            _check_extent(atom)
            return self._shorten(atom.expr, to_srepr(atom.expr, self._spelled))
        name = self.names.find(atom)
        self.symbols[name] = atom
        positive = not atom.unbacked and atom.lo is not None and atom.lo >= 0
        # torch takes a size for positive, and allows 0 and 1 all the same
        sign = "positive=True, " if positive else ""
        return f"Symbol({name!r}, {sign}integer=True)"

    # ---- names for expressions

    def _shorten(self, value: Expr | Real, text: str) -> str:
        if len(text) > _LONG or _depth(text) > _DEEP:
            return self._give_name(value, text)
        return text

    def _give_name(self, value: Expr | Real, text: str) -> str:
        """Make a symbol that stands for an expression in torch's part of the file: an unbacked one
        if the expression depends on data."""
        _check(text)
        if isinstance(value, Expr) and value.depth > MAX_CHAIN:
            raise SaveError(
                f"a size is made of others in {value.depth} steps, more than the {MAX_CHAIN} that "
                "files have room for\n"
                "  instead: give the program this number as an input, or in a tensor"
            )
        name = self._free_name(value)
        self.named[name] = value
        self.defined.append((name, text))
        return f"Symbol({name!r})" if isinstance(value, Real) else f"Symbol({name!r}, integer=True)"

    def _free_name(self, value: Expr | Real) -> str:
        """torch takes `u` and `zuf` for the beginning of a number of data."""
        if not self._taken:
            self._taken = {self.names.find(s) for s in value.env.symbols}
            self._kept = {f"zu{name}" for name in real_names(value.env)}
        is_float = isinstance(value, Real)
        kind = ("zuf" if is_float else "u") if value.unbacked else ("ef" if is_float else "e")
        number = 0
        while f"{kind}{number}" in self._taken | self._kept | self.floats.keys():
            number += 1
        self._taken.add(f"{kind}{number}")
        return f"{kind}{number}"

    # ---- floats, and what they define

    def integers(self) -> list[str]:
        """The texts of all integers that only floats give, in the order in which they were made."""
        envs = dict.fromkeys(s.expr.env for s in self.symbols.values())
        envs |= dict.fromkeys(r.env for r in self.floats.values())
        return [self.text(symbol.expr) for env in envs for symbol in defined_integers(env)]

    def _write_definition(self, op: str, args: tuple[Any, ...], value: Expr) -> str:
        inner = ", ".join(map(self._real, args))
        if op == "is_integer":
            return self._give_name(value, f"IsInteger({inner})")
        rounding = {"trunc": "Trunc", "floor": "Floor", "ceil": "Ceil", "round": "Round"}
        if op in rounding:
            return self._shorten(value, f"{rounding[op]}ToInt({inner})")
        pair = f"ExprCondPair(Integer(1), {_RELATIONS[op]}({inner}))"
        return self._shorten(value, f"Piecewise({pair}, ExprCondPair(Integer(0), true))")

    def _real(self, value: Any) -> str:
        if not isinstance(value, Real):
            return f"Float({repr(float(value))!r}, precision=53)"
        found = self._texts.get(value)
        if found is None:
            found = self._texts[value] = self._float(value)
        return found

    def _float(self, value: Real) -> str:
        if value.op == "symbol":
            name = f"zu{value.args[0]}"
            taken = name in self._taken or name in self.floats
            if taken or not _UNBACKED_FLOAT.fullmatch(name):
                name = self._free_name(value)
            self.floats[name] = value
            return f"Symbol({name!r})"
        if value.is_ratio:
            if value.below == 1:
                return f"ToFloat({self.text(value.above)})"
            return f"IntTrueDiv({self.text(value.above)}, {self.text(value.below)})"
        args = [self._real(a) for a in value.args]
        if value.op == "-":
            args[1] = f"Mul(Integer(-1), {args[1]})"
        elif value.op == "neg":
            args.insert(0, "Integer(-1)")
        elif value.op == "round":
            args[1] = f"Integer({int(value.args[1])})"
        function = _FLOAT_FUNCTIONS.get(value.op) or f"OpaqueUnaryFn_{value.op}"
        text = f"{function}({', '.join(args)})"
        return self._give_name(value, text) if _is_opaque(value) else self._shorten(value, text)


def _is_opaque(value: Real) -> bool:
    """Can torch not express it? torch takes the example's value for a function that it does not
    know, so there must be such a value."""
    if value.op in ("//", "%"):
        return True
    return value.unbacked and value.op not in _FLOAT_FUNCTIONS


def _check(text: str) -> None:
    if len(text) > MAX_LENGTH or _depth(text) > MAX_DEPTH - 4:
        raise SaveError(
            f"an expression of sizes has {len(text)} characters in {_depth(text)} levels, more "
            "than files have room for\n"
            "  instead: give the program this number as an input, or in a tensor"
        )


def _check_extent(atom: Atom) -> None:
    for operand in atom.args:
        _, degree, bits = extent(operand)
        if degree > MAX_DEGREE or bits > MAX_BITS:
            raise SaveError(
                f"a size is a polynomial of degree {degree} with coefficients of {bits} bits, more "
                "than files have room for\n"
                "  instead: give the program this number as an input, or in a tensor"
            )


def _depth(text: str) -> int:
    """How deep parentheses are nested."""
    depth = deepest = 0
    for sign in _PARENTHESES.findall(text):
        depth += 1 if sign == "(" else -1
        deepest = max(deepest, depth)
    return deepest


_PARENTHESES = re.compile(r"[()]")


def _is_fixed(symbol: Symbol) -> bool:
    return isinstance(current(symbol.expr), int)


def as_recorded(value: Any) -> Any:
    """A number as the graph has it, whatever became known of it later."""
    inner = getattr(getattr(value, "node", None), "value", None)
    return value if inner is None else inner


def settle_number(value: Any) -> Any:
    """A number of the graph as torch's part of a file has it."""
    value = as_recorded(value)
    if isinstance(value, Expr):
        return settle(value)
    if isinstance(value, Real):
        return current_real(value)
    if isinstance(value, BoolExpr) and any(_is_fixed(s) for s in value.symbols()):
        certain = known(value)  # the file does not say any more where that symbol comes from
        return value if certain is None else certain
    return value


def settle(size: Size) -> Size:
    """Simplify a number by all that is known today.

    Numbers that depend on data stay as they are: facts about them hold only behind an assertion,
    and the nodes before it are what they were. If two forms simplify to each other (`min(s0, s1 +
    1)` and `min(s0 - 1, s1) + 1`), the given one stays; else a file would not read back as it was
    written.
    """
    now = current(size)
    if isinstance(size, Expr) and size.unbacked and isinstance(now, Expr):
        return size
    return size if now is not size and current(now) is size else now


_RELATIONS = {
    "==": "Equality",
    "<": "StrictLessThan",
    "<=": "LessThan",
    ">": "StrictGreaterThan",
    ">=": "GreaterThan",
}
_FLOAT_FUNCTIONS = {
    "+": "Add",
    "-": "Add",
    "neg": "Mul",
    "*": "Mul",
    "/": "FloatTrueDiv",
    "**": "FloatPow",
    "max": "Max",
    "min": "Min",
    "abs": "Abs",
    "//": "FloatFloorDiv",
    "%": "FloatMod",
    "round": "RoundDecimal",
}


class DimNames:
    """How the symbols of a program are called in torch's part of a file: a dim that was declared as
    `batch` is `s_batch` there.

    torch tells from the first letters of a symbol's name what it is (a size begins with `s`, an
    index with `i`, a number of data with `u`), and Inductor writes the name into C++. With
    `plain`, the dim is `batch`, which all that compile nothing can read.
    """

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        self._found: dict[Symbol, str] = {}

    def find(self, symbol: Symbol) -> str:
        if symbol not in self._found:
            self._add(symbol.expr.env.symbols)
        return self._found[symbol]

    def _add(self, symbols: Iterable[Symbol]) -> None:
        """Name all symbols of an environment. None of them gets the name of another."""
        taken = {s.name for s in symbols} | set(self._found.values())
        for symbol in symbols:
            name = self._propose(symbol)
            while name in taken and name != symbol.name:
                name += "_"
            self._found[symbol] = name
            taken.add(name)

    def _propose(self, symbol: Symbol) -> str:
        name, declared = symbol.name, symbol.declared
        if symbol.unbacked:
            return name
        if declared is not None and _IDENTIFIER.fullmatch(declared):
            is_plain = self.plain and not MISREAD.match(declared) and declared not in WORDS
            return declared if is_plain else SIZE_OF + declared
        return SIZE_OF + name if MISREAD.match(name) else name


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def bounds(value: Expr | Real) -> tuple[int | None, int | None]:
    """What limits torch is fields of a number that it knows by a name alone."""
    return value.env.bounds(value) if isinstance(value, Expr) else (None, None)
