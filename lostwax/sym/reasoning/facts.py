"""What is known of the symbols of an environment at one moment: plain data, no reasoning.

All that an answer may depend on is in one object, so that facts which hold only inside a region of
a program can be kept in a copy. Facts only grow; `version` is new with each of them, and no two
states of an environment share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Symbol
from lostwax.sym.expressions.terms import Monomial
from lostwax.sym.world import World


class Range(NamedTuple):
    """The integers from `lo` to `hi`, both included; None is no bound."""

    lo: int | None
    hi: int | None


class Facts:
    def __init__(self, version: int) -> None:
        self.version = version
        self.told: list[BoolExpr] = []
        """The conditions that all of this was learned from, in their order."""
        self.copied_at: int | None = None
        """The version that a copy, which lasts for a while only, began with."""
        self.world: World | None = None
        """Where all of this holds; None: nowhere else."""
        self.ranges: dict[Symbol, Range] = {}
        self.substitutions: dict[Atom, Expr] = {}
        # products that equal something else, by the first atom of the product
        self.rewrites: dict[Atom, dict[Monomial, Expr]] = {}
        self.decided: dict[BoolExpr, bool] = {}
        # canonical conditions `p >= 0` and `p == 0`: equivalent under these facts and all to come
        self.nonnegative: dict[Expr, Condition] = {}
        self.zero: dict[Expr, Condition] = {}
        # facts that are neither a range nor a substitution: found by any atom in them,
        # inequalities also by their monomials
        self._by_atom: dict[Atom, dict[BoolExpr, None]] = {}
        self._by_monomial: dict[Monomial, dict[Expr, None]] = {}

    @property
    def are_tried(self) -> bool:
        """Is something among them that does not last?"""
        return self.copied_at is not None and self.copied_at != self.version

    def copy(self, version: int) -> Facts:
        twin = Facts(version)
        twin.copied_at = -1 if self.are_tried else version
        twin.told = list(self.told)
        twin.ranges = dict(self.ranges)
        twin.substitutions = dict(self.substitutions)
        twin.rewrites = {a: dict(rules) for a, rules in self.rewrites.items()}
        twin.decided = dict(self.decided)
        twin.nonnegative, twin.zero = dict(self.nonnegative), dict(self.zero)
        twin._by_atom = {a: dict(facts) for a, facts in self._by_atom.items()}
        twin._by_monomial = {m: dict(facts) for m, facts in self._by_monomial.items()}
        return twin

    def store(self, fact: BoolExpr) -> None:
        for atom in fact.atoms():
            self._by_atom.setdefault(atom, {})[fact] = None
        if fact.kind == "ge":
            for monomial in fact.poly.terms:
                if monomial:
                    self._by_monomial.setdefault(monomial, {})[fact.poly] = None

    def discard(self, fact: BoolExpr) -> None:
        for atom in fact.atoms():
            self._by_atom[atom].pop(fact, None)
        if fact.kind == "ge":
            for monomial in fact.poly.terms:
                if monomial:
                    self._by_monomial[monomial].pop(fact.poly, None)

    def mentioning(self, atom: Atom) -> list[BoolExpr]:
        return list(self._by_atom.get(atom, ()))

    def inequalities(self, monomials: Iterable[Monomial]) -> Iterator[Expr]:
        """Each p with the fact `p >= 0` that shares one of the monomials."""
        seen: set[Expr] = set()
        for monomial in monomials:
            for poly in self._by_monomial.get(monomial, ()):
                if poly not in seen:
                    seen.add(poly)
                    yield poly
