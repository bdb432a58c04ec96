"""Numbers that follow from one symbol."""

from __future__ import annotations

from typing import NamedTuple

from lostwax.sym.expressions.expr import Expr, Symbol


class AffineForm(NamedTuple):
    """A number that is `factor * symbol + offset`."""

    symbol: Symbol
    factor: int
    offset: int


def read_affine(e: Expr) -> AffineForm | None:
    """Return the form of a number that depends on one symbol; None if it has another form."""
    symbols, terms = e.symbols(), e.terms
    symbol = next(iter(symbols))
    factor = terms.get((symbol,), 0)
    if len(symbols) != 1 or not factor or len(terms) != 1 + (() in terms):
        return None
    return AffineForm(symbol, factor, terms.get((), 0))
