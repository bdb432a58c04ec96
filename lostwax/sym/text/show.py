"""Expressions as text: readable Python, and sympy's srepr form, which `.pt2` files hold.

Prints only; `parse.py` and `srepr.py` read the forms back. Must not ask an environment anything.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from lostwax.sym.expressions.expr import Atom, BoolExpr, Expr, Size, Symbol, Terms

Printable: TypeAlias = "Size | BoolExpr | bool"

# How tightly a text holds together. A quotient stands below a product, although Python gives them
# one rank: `2*(s0//8)` and `-(s0//8)` need their parentheses, `2*s0//8` does not.
_OR, _AND, _COMPARISON, _SUM, _QUOTIENT, _PRODUCT, _POWER, _ATOM = range(8)

CUT = "(...)"
"""In the place of an expression that is too long to be read."""
LONGEST = 1000
"""Characters that somebody reads."""
WHOLE = sys.maxsize

_PRIMARY = r"[A-Za-z_]\w*(\.\w+(\(\))?|\[[^\[\]]*\])*"


def show(
    e: Printable,
    names: Mapping[Any, str] | None = None,
    joined: tuple[str, str] = ("and", "or"),
    longest: int = LONGEST,
) -> str:
    """`e` as readable Python. `names` replaces symbols, or other atoms, by texts such as
    `x.shape[0]`. `joined` are `&` and `|` where conditions are not to be decided. What is
    longer than `longest` is `CUT`; `WHOLE` is for a machine."""
    return _Python(names or {}, joined, longest).write(e)[0]


def to_srepr(e: Printable, spelling: Mapping[Atom, str] | None = None) -> str:
    """`e` as sympy's `srepr` writes it, with torch's names for the functions sympy does not have.

    `spelling` gives the whole text of a symbol (`Symbol('s0', integer=True)`) where the default,
    which states the sign that `symbol.lo` promises, is not wanted; and of any other atom."""
    return _Srepr(spelling or {}).write(e)


class _Python:
    """Each method returns a text and how tightly it holds together."""

    def __init__(self, names: Mapping[Any, str], joined: tuple[str, str], longest: int) -> None:
        self.names = names
        self.joined = joined
        self.longest = longest
        self.atoms: dict[Atom, tuple[str, int]] = {}

    def write(self, e: Printable) -> tuple[str, int]:
        if isinstance(e, bool):
            return str(e), _ATOM
        if isinstance(e, int):
            return str(e), _ATOM if e >= 0 else _SUM
        if isinstance(e, Expr):
            return self.write_sum(e.terms)
        return self.write_condition(e)

    def enclose(self, need: int, text: str, rank: int) -> str:
        return text if rank >= need else f"({text})"

    def write_sum(self, terms: Terms) -> tuple[str, int]:
        ordered = sorted(terms.items(), key=_rank_for_reading)
        if not ordered:
            return "0", _ATOM
        # `8 - s0` reads better than `-s0 + 8`
        first = next((i for i, (_, c) in enumerate(ordered) if c > 0), 0)
        monomial, coefficient = ordered.pop(first)
        text, rank = self.write_term(monomial, abs(coefficient))
        if coefficient < 0:
            text, rank = "-" + self.enclose(_PRODUCT, text, rank), _SUM
        for monomial, coefficient in ordered:
            text += " - " if coefficient < 0 else " + "
            text += self.write_term(monomial, abs(coefficient))[0]
        return text, _SUM if ordered else rank

    def write_term(self, monomial: tuple[Atom, ...], coefficient: int) -> tuple[str, int]:
        factors = [self.write_power(atom, n) for atom, n in Counter(_sort_atoms(monomial)).items()]
        if coefficient != 1 or not factors:
            factors.insert(0, (str(coefficient), _ATOM))
        if len(factors) == 1:
            return factors[0]
        return "*".join(self.enclose(_POWER, *f) for f in factors), _PRODUCT

    def write_power(self, atom: Atom, exponent: int) -> tuple[str, int]:
        text, rank = self.write_atom(atom)
        if exponent == 1:
            return text, rank
        return f"{self.enclose(_ATOM, text, rank)}**{exponent}", _POWER

    def write_atom(self, atom: Atom) -> tuple[str, int]:
        """Written once, however often it stands in others; and cut where it is for nobody to read
        any more: written out, a chain of sizes doubles with each step."""
        found = self.atoms.get(atom)
        if found is None:
            found = self.write_out(atom)
            if len(found[0]) > self.longest:
                found = CUT, _ATOM
            self.atoms[atom] = found
        return found

    def write_out(self, atom: Atom) -> tuple[str, int]:
        text = self.names.get(atom)
        if text is None and isinstance(atom, Symbol):
            text = atom.name
        if text is not None:
            return text, _ATOM if re.fullmatch(_PRIMARY, text) else _OR
        if atom.kind in ("max", "min"):
            return f"{atom.kind}({', '.join(self.write(x)[0] for x in atom.args)})", _ATOM
        above = self.enclose(_PRODUCT, *self.write(atom.args[0]))
        below = self.enclose(_POWER, *self.write(atom.args[1]))
        return f"{above}//{below}" if atom.kind == "div" else f"{above} % {below}", _QUOTIENT

    def write_condition(self, b: BoolExpr) -> tuple[str, int]:
        if b.kind in ("and", "or"):
            rank = _AND if b.kind == "and" else _OR
            word = self.joined[b.kind == "or"]
            need = rank + 1 if word == b.kind else _SUM  # & and | hold tighter than comparisons
            parts = (self.enclose(need, *self.write(x)) for x in b.args)
            return f" {word} ".join(parts), rank
        return self.write_comparison(b.kind, b.poly.terms), _COMPARISON

    def write_comparison(self, kind: str, terms: Terms) -> str:
        """`p >= 0` with the positive terms on one side and the negative ones on the other."""
        left = {m: c for m, c in terms.items() if m and c > 0}
        right = {m: -c for m, c in terms.items() if m and c < 0}
        constant = terms.get((), 0)
        sign = {"eq": "==", "ne": "!=", "ge": ">="}[kind]
        if kind == "ge" and constant == -1 and left and right:
            sign, constant = ">", 0
        if not left or (right and _rank_of_first(right) < _rank_of_first(left)):
            left, right, constant = right, left, -constant
            sign = {">=": "<=", ">": "<"}.get(sign, sign)
        if constant and (constant < 0 or not right):
            right[()] = -constant
        elif constant:
            left[()] = constant
        return f"{self.write_sum(left)[0]} {sign} {self.write_sum(right)[0]}"


class _Srepr:
    def __init__(self, spelling: Mapping[Atom, str]) -> None:
        self.spelling = spelling

    def write(self, e: Printable) -> str:
        if isinstance(e, bool):
            return "true" if e else "false"
        if isinstance(e, int):
            return f"Integer({e})"
        if isinstance(e, Expr):
            return self.write_call("Add", self.write_terms(e.terms), alone="Integer(0)")
        return self.write_condition(e)

    def write_call(self, function: str, args: Iterable[str], alone: str) -> str:
        """A sum or product: of one argument it is that argument, of none it is `alone`."""
        args = list(args)
        if len(args) < 2:
            return args[0] if args else alone
        return f"{function}({', '.join(args)})"

    def write_terms(self, terms: Terms) -> list[str]:
        ordered = sorted(terms.items(), key=_rank_for_reading)
        return [
            self.write_call("Mul", self.write_factors(m, c), alone="Integer(1)") for m, c in ordered
        ]

    def write_factors(self, monomial: tuple[Atom, ...], coefficient: int) -> list[str]:
        out = [f"Integer({coefficient})"] if coefficient != 1 or not monomial else []
        for atom, n in Counter(_sort_atoms(monomial)).items():
            text = self.write_atom(atom)
            out.append(text if n == 1 else f"Pow({text}, Integer({n}))")
        return out

    def write_atom(self, atom: Atom) -> str:
        given = self.spelling.get(atom)
        if given is not None:
            return given
        if isinstance(atom, Symbol):
            return self.write_symbol(atom)
        # torch's `Mod` is only defined for nonnegative arguments, its `PythonMod` is Python's `%`
        function = {"div": "FloorDiv", "mod": "PythonMod", "max": "Max", "min": "Min"}[atom.kind]
        return f"{function}({', '.join(self.write(x) for x in atom.args)})"

    def write_symbol(self, symbol: Symbol) -> str:
        sign = ""
        if symbol.lo is not None and symbol.lo >= 0:
            sign = "positive=True, " if symbol.lo > 0 else "nonnegative=True, "
        return f"Symbol({symbol.name!r}, {sign}integer=True)"

    def write_condition(self, b: BoolExpr) -> str:
        if b.kind in ("and", "or"):
            return f"{b.kind.capitalize()}({', '.join(self.write(x) for x in b.args)})"
        relation = {"eq": "Equality", "ne": "Unequality", "ge": "GreaterThan"}[b.kind]
        return f"{relation}({self.write(b.poly)}, Integer(0))"


def _sort_atoms(monomial: tuple[Atom, ...]) -> list[Atom]:
    return sorted(monomial, key=lambda atom: atom.rank())


def _rank_for_reading(item: tuple[tuple[Atom, ...], int]) -> tuple[int, list[Any]]:
    """High degrees first, then the older symbols, then what is made of them; the constant comes
    last."""
    monomial = item[0]
    return -len(monomial), [atom.rank() for atom in _sort_atoms(monomial)]


def _rank_of_first(terms: Terms) -> tuple[int, list[Any]]:
    return min(_rank_for_reading(item) for item in terms.items())
