"""What environments have in common: worlds, and expressions told by the places of their symbols.

All facts of an environment follow from its symbols, as they were declared, and from what it was
told, in that order. Environments that have both in common share one `World`: what was found out in
one of them without a guard holds in the others. So captures of one model need not find it out
again. A world must not say anything that depends on more than that; an environment in which
something else happened belongs to no world.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from lostwax.cache import Cache
from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import BoolExpr, Expr, Symbol, Terms


class World:
    """Environments with equal symbols and equal facts share it."""

    __slots__ = ()

    def add_symbol(self, symbol: Symbol) -> World | None:
        """The world with one more symbol; None for a symbol of data, which no other environment
        can have."""
        if symbol.unbacked:
            return None
        is_declared = symbol.declared is not None
        return self._follow(
            (symbol.name, symbol.hint, symbol.lo, symbol.hi, symbol.source, is_declared)
        )

    def add_fact(self, condition: BoolExpr) -> World | None:
        """The world in which one more condition holds."""
        key = _key_of(condition)
        return None if key is None else self._follow(key)

    def _follow(self, what: Hashable) -> World:
        key = (self, what)
        return _WORLDS.table.get(key) or _WORLDS.keep(key, World())

    def find(self, key: Hashable) -> Any:
        """What layers above have found out in this world; None if they have not."""
        return _FOUND.table.get((self, key))

    def keep(self, key: Hashable, found: Any) -> None:
        _FOUND.keep((self, key), found)


_FIRST = World()
_WORLDS = Cache[tuple[World, Hashable], World](__name__, "worlds", 50_000)
"""The world that follows another. Where this is emptied, environments to come are in other worlds
than those of today."""
_FOUND = Cache[tuple[World, Hashable], Any](__name__, "found", 50_000)


def first() -> World:
    """The world of an environment without symbols."""
    return _FIRST


def forget() -> None:
    """Forget the worlds, and what was found out in them."""
    _WORLDS.clear()
    _FOUND.clear()


# -------------------------------------------------------------------------------------- expressions


class PolynomialForm:
    """A polynomial over symbols, each given by its place among the symbols of its environment.
    Equal forms are the same object."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[tuple[tuple[int, ...], int], ...]) -> None:
        self.terms = terms


_FORMS = Cache[frozenset[Any], PolynomialForm](__name__, "forms", 50_000)


def form(e: Expr) -> PolynomialForm | None:
    """The form of `e`; None if it contains more than symbols."""
    if e.form is None and not e.composite and e.product is None:
        e.form = _make_form(e)
    return e.form  # type: ignore[no-any-return]


def _make_form(e: Expr) -> PolynomialForm | None:
    terms = []
    for monomial, coefficient in e.terms.items():
        places = tuple([symbol.place for symbol in monomial])  # type: ignore[attr-defined]
        if -1 in places:
            return None
        terms.append((places, coefficient))
    key = frozenset(terms)
    return _FORMS.table.get(key) or _FORMS.keep(key, PolynomialForm(tuple(terms)))


class ExprsByForm(dict[PolynomialForm, Expr]):
    """The expression of each form in one environment."""

    __slots__ = ("_algebra", "_symbols")

    def __init__(self, symbols: list[Symbol], algebra: Algebra) -> None:
        self._symbols = symbols
        self._algebra = algebra

    def __missing__(self, form: PolynomialForm) -> Expr:
        terms: Terms = {tuple([self._symbols[i] for i in p]): c for p, c in form.terms}
        found = self[form] = self._algebra.make(terms)
        found.form = form
        return found


def _key_of(b: BoolExpr) -> Hashable | None:
    """What a condition says, by the places of its symbols; None if that cannot be said."""
    if b.args:
        parts = tuple(map(_key_of, b.args))
        return None if None in parts else (b.kind, parts)
    poly = form(b.poly)
    return None if poly is None else (b.kind, poly)
