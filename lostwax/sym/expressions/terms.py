"""Polynomials as plain data: monomials, and terms that map them to coefficients.

A monomial is a tuple of atoms sorted by id, repeated for powers; () is that of the constant.
Nothing here is interned or canonical: proofs work on terms, because most of what a proof looks at
is never seen again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from math import gcd
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lostwax.sym.expressions.expr import Atom

Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "dict[Monomial, int]"

_by_id = attrgetter("id")


def merged(a: Mapping[Monomial, int], i: int, b: Mapping[Monomial, int], j: int) -> Terms:
    """`i*a + j*b`"""
    terms = dict(a) if i == 1 else {m: i * c for m, c in a.items()}
    for monomial, coefficient in b.items():
        total = terms.get(monomial, 0) + j * coefficient
        if total:
            terms[monomial] = total
        else:
            terms.pop(monomial, None)
    return terms


def multiplied(a: Mapping[Monomial, int], b: Mapping[Monomial, int]) -> Terms:
    terms: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            product = tuple(sorted(m + n, key=_by_id)) if m and n else m or n
            total = terms.get(product, 0) + c * d
            if total:
                terms[product] = total
            else:
                del terms[product]
    return terms


def replaced(terms: Terms, atom: Atom, value: Terms) -> Terms:
    """With an atom replaced by a polynomial."""
    result: Terms = {}
    for monomial, coefficient in terms.items():
        term = {tuple(a for a in monomial if a is not atom): coefficient}
        for _ in range(monomial.count(atom)):
            term = multiplied(term, value)
        result = merged(result, 1, term, 1)
    return result


def leading(terms: Mapping[Monomial, int]) -> Monomial:
    """The first monomial in an order that multiplication keeps."""
    return max(terms, key=lambda m: (len(m), [a.id for a in m]))


def without(monomial: Monomial, factor: Iterable[Atom]) -> Monomial | None:
    """`monomial / factor`, None if it does not divide."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def drop(monomial: Monomial, factor: Monomial) -> Monomial:
    """`monomial / factor`, which is known to divide."""
    rest = without(monomial, factor)
    assert rest is not None
    return rest


def shared(a: Monomial, b: Monomial) -> Monomial:
    """The greatest common factor of two monomials."""
    rest, common = list(b), []
    for atom in a:
        if atom in rest:
            rest.remove(atom)
            common.append(atom)
    return tuple(common)


def factor_of(terms: Mapping[Monomial, int]) -> int:
    """The greatest common divisor of all coefficients but the constant's."""
    return reduce(gcd, (c for m, c in terms.items() if m), 0)
