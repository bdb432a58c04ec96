"""Polynomials as plain data: monomials, and terms that map them to coefficients.

A monomial is a tuple of atoms sorted by id, repeated for powers; () is that of the constant.
Nothing here is interned or canonical: proofs work on terms, because most of what a proof looks at
is never seen again. An atom can be anything that has an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from math import gcd
from operator import attrgetter
from typing import Protocol, TypeAlias, TypeVar


class HasId(Protocol):
    id: int


A = TypeVar("A", bound=HasId)
M = TypeVar("M")
Polynomial: TypeAlias = Mapping[tuple[A, ...], int]
Terms: TypeAlias = dict[tuple[A, ...], int]

_by_id = attrgetter("id")


def combine(a: Mapping[M, int], i: int, b: Mapping[M, int], j: int) -> dict[M, int]:
    """`i*a + j*b`"""
    terms = dict(a) if i == 1 else {m: i * c for m, c in a.items()}
    for monomial, coefficient in b.items():
        total = terms.get(monomial, 0) + j * coefficient
        if total:
            terms[monomial] = total
        else:
            terms.pop(monomial, None)
    return terms


def multiply(a: Polynomial[A], b: Polynomial[A]) -> Terms[A]:
    terms: Terms[A] = {}
    for m, c in a.items():
        for n, d in b.items():
            product = tuple(sorted(m + n, key=_by_id)) if m and n else m or n
            total = terms.get(product, 0) + c * d
            if total:
                terms[product] = total
            else:
                del terms[product]
    return terms


def replace_atom(terms: Polynomial[A], atom: A, value: Polynomial[A]) -> Terms[A]:
    """`terms` with an atom replaced by a polynomial."""
    result: Terms[A] = {}
    for monomial, coefficient in terms.items():
        term = {tuple(a for a in monomial if a is not atom): coefficient}
        for _ in range(monomial.count(atom)):
            term = multiply(term, value)
        result = combine(result, 1, term, 1)
    return result


def divide_monomial(monomial: tuple[A, ...], factor: Iterable[A]) -> tuple[A, ...] | None:
    """`monomial / factor`, None if it does not divide."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide_exactly(a: Polynomial[A], b: Polynomial[A]) -> Terms[A] | None:
    """The terms of q with `a == b*q`, if there is such a q and a few steps find it."""
    if not b:
        return None
    if b.keys() == {()}:  # a number: term by term, however many
        number = b[()]
        divided = {m: k // number for m, k in a.items()}
        return divided if all(k % number == 0 for k in a.values()) else None
    head = leading_monomial(b)
    quotient: Terms[A] = {}
    for _ in range(16):
        if not a:
            return quotient
        first = leading_monomial(a)
        monomial = divide_monomial(first, head)
        if monomial is None or a[first] % b[head]:
            return None
        term = {monomial: a[first] // b[head]}
        quotient = combine(quotient, 1, term, 1)
        a = combine(a, 1, multiply(term, b), -1)
    return None


def leading_monomial(terms: Polynomial[A]) -> tuple[A, ...]:
    """The first monomial in an order that multiplication keeps."""
    return max(terms, key=lambda m: (len(m), [a.id for a in m]))


def common_factor(*polynomials: Polynomial[A]) -> tuple[int, tuple[A, ...]]:
    """The largest integer and the largest monomial that divide every term of all of them."""
    factor, common = 0, None
    for terms in polynomials:
        for monomial, coefficient in terms.items():
            factor = gcd(factor, coefficient)
            common = monomial if common is None else _common_atoms(common, monomial)
    return factor or 1, common or ()


def _common_atoms(a: tuple[A, ...], b: tuple[A, ...]) -> tuple[A, ...]:
    rest, common = list(b), []
    for atom in a:
        if atom in rest:
            rest.remove(atom)
            common.append(atom)
    return tuple(common)


def common_divisor(terms: Polynomial[A]) -> int:
    """The greatest common divisor of all coefficients but the constant's."""
    return reduce(gcd, (c for m, c in terms.items() if m), 0)


def tighten(terms: Terms[A]) -> Terms[A]:
    """`terms >= 0` divided by the common divisor, the constant rounded down: over the integers it
    says the same."""
    divisor = common_divisor(terms)
    if divisor < 2:
        return terms
    return {m: c // divisor for m, c in terms.items() if c // divisor}
