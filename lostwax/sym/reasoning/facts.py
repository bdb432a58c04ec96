"""What is known of the symbols of an environment at one moment: plain data, no reasoning.

All that an answer may depend on is in one object, which every part of an environment shares. Facts
that hold only inside a region of a program are kept in a copy, and put into this object for that
while. Facts only grow; `version` is new with each of them, and no two states of an environment
share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Monomial, Symbol
from lostwax.sym.world import World


class Range(NamedTuple):
    """The integers from `lo` to `hi`, both included; None is no bound."""

    lo: int | None
    hi: int | None


class Facts:
    __slots__ = (
        "_by_atom", "_by_monomial", "_memos", "_versions", "copied_at", "decided", "fits_example",
        "nonnegative", "ranges", "rewrites", "substitutions", "told", "version", "world", "zero",
    )  # fmt: skip

    def __init__(self, versions: Iterator[int] | None = None) -> None:
        self._versions = count() if versions is None else versions
        self._memos: list[dict[Any, Any]] = []
        self.version = next(self._versions)
        self.told: list[BoolExpr] = []
        """The conditions that all of this was learned from, in their order."""
        self.copied_at: int | None = None
        """The version that a copy, which lasts for a while only, began with."""
        self.fits_example = True
        """Are they true of the example? Of a branch that it does not take they are not."""
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

    # ---- change

    def new_memo(self) -> dict[Any, Any]:
        """A table for results that hold until the facts change; then it is emptied."""
        memo: dict[Any, Any] = {}
        self._memos.append(memo)
        return memo

    def change(self) -> None:
        """Begin a new version: something was learned."""
        self.version = next(self._versions)
        self._forget_results()

    def _forget_results(self) -> None:
        for memo in self._memos:
            memo.clear()

    @contextmanager
    def replaced_by(self, other: Facts) -> Iterator[None]:
        """Inside, this object holds what `other` did; afterwards both hold their own again, `other`
        with what was learned meanwhile."""
        self._exchange(other)
        try:
            yield
        finally:
            self._exchange(other)

    def _exchange(self, other: Facts) -> None:
        for name in self.__slots__:
            if name != "_memos":
                mine = getattr(self, name)
                setattr(self, name, getattr(other, name))
                setattr(other, name, mine)
        self._forget_results()

    @property
    def are_tried(self) -> bool:
        """Is something among them that does not last?"""
        return self.copied_at is not None and self.copied_at != self.version

    def make_empty(self) -> Facts:
        """No facts, in the same order of versions."""
        return Facts(self._versions)

    def copy(self) -> Facts:
        twin = self.make_empty()
        twin.copied_at = -1 if self.are_tried else twin.version
        twin.told = list(self.told)
        twin.fits_example = self.fits_example
        twin.ranges = dict(self.ranges)
        twin.substitutions = dict(self.substitutions)
        twin.rewrites = {a: dict(rules) for a, rules in self.rewrites.items()}
        twin.decided = dict(self.decided)
        twin.nonnegative, twin.zero = dict(self.nonnegative), dict(self.zero)
        twin._by_atom = {a: dict(facts) for a, facts in self._by_atom.items()}
        twin._by_monomial = {m: dict(facts) for m, facts in self._by_monomial.items()}
        return twin

    # ---- facts that are neither a range nor a substitution

    def store(self, fact: BoolExpr) -> None:
        for atom in fact.atoms():
            self._by_atom.setdefault(atom, {})[fact] = None
        for monomial in fact.poly.terms if fact.kind == "ge" else ():
            if monomial:
                self._by_monomial.setdefault(monomial, {})[fact.poly] = None

    def discard(self, fact: BoolExpr) -> None:
        for atom in fact.atoms():
            self._by_atom[atom].pop(fact, None)
        for monomial in fact.poly.terms if fact.kind == "ge" else ():
            if monomial:
                self._by_monomial[monomial].pop(fact.poly, None)

    def find_mentioning(self, atom: Atom) -> list[BoolExpr]:
        return list(self._by_atom.get(atom, ()))

    def find_inequalities(self, monomials: Iterable[Monomial]) -> Iterator[Expr]:
        """Each p with the fact `p >= 0` that shares one of the monomials."""
        seen: set[Expr] = set()
        for monomial in monomials:
            for poly in self._by_monomial.get(monomial, ()):
                if poly not in seen:
                    seen.add(poly)
                    yield poly
