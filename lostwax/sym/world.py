"""What environments have in common: worlds, and expressions told by the places of their symbols.

All facts of an environment follow from its symbols, as they were declared, and from what it was
told, in that order. Where two had the same of both they are in one world, the same object: what
was found out in the one without a guard holds in the other. So captures of one model need not find
it out again. Must not say anything that depends on more than that: an environment in which
something else happened is in no world.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from lostwax.cache import Cache
from lostwax.sym.expressions.expr import BoolExpr, Expr, Symbol

if TYPE_CHECKING:
    from lostwax.sym.env import ShapeEnv


class World:
    """Environments with the same beginning are in the same one."""

    __slots__ = ()

    def born(self, symbol: Symbol) -> World | None:
        """The world with one more symbol; those of data are told by nothing that comes again."""
        if symbol.unbacked:
            return None
        is_declared = symbol.declared is not None
        return self._then(
            (symbol.name, symbol.hint, symbol.lo, symbol.hi, symbol.source, is_declared)
        )

    def told(self, condition: BoolExpr) -> World | None:
        """The world in which one more condition holds."""
        told = _timeless(condition)
        return None if told is None else self._then(told)

    def _then(self, what: Hashable) -> World:
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
    """That of an environment without symbols."""
    return _FIRST


def forget() -> None:
    """Nothing that was found out is told to anyone any more."""
    _WORLDS.clear()
    _FOUND.clear()


# -------------------------------------------------------------------------------------- expressions


class Form:
    """A polynomial over symbols, each told by its place among those of the environment. Equal ones
    are the same object."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[tuple[tuple[int, ...], int], ...]) -> None:
        self.terms = terms


_FORMS = Cache[frozenset[Any], Form](__name__, "forms", 50_000)


def form(e: Expr) -> Form | None:
    """None: it is made of more than symbols."""
    if e.form is None and not e.composite and e.product is None:
        e.form = _made(e)
    return e.form  # type: ignore[no-any-return]


def _made(e: Expr) -> Form | None:
    terms = []
    for monomial, coefficient in e.terms.items():
        places = tuple([symbol.place for symbol in monomial])  # type: ignore[attr-defined]
        if -1 in places:
            return None
        terms.append((places, coefficient))
    key = frozenset(terms)
    return _FORMS.table.get(key) or _FORMS.keep(key, Form(tuple(terms)))


class Formed(dict[Form, Expr]):
    """The expression of each form in an environment."""

    __slots__ = ("_env",)

    def __init__(self, env: ShapeEnv) -> None:
        self._env = env

    def __missing__(self, form: Form) -> Expr:
        symbols = self._env.symbols
        terms = {tuple([symbols[i] for i in places]): c for places, c in form.terms}
        found = self[form] = self._env.make(terms)  # type: ignore[arg-type]
        found.form = form
        return found


def _timeless(b: BoolExpr) -> Hashable | None:
    """A condition by the places of its symbols."""
    if b.args:
        parts = tuple(map(_timeless, b.args))
        return None if None in parts else (b.kind, parts)
    poly = form(b.poly)
    return None if poly is None else (b.kind, poly)
