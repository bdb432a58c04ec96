"""Algebra: makes the expressions, atoms and conditions of one environment, each of them once.

So equal is identical, and a computed result can be remembered by its operands. What it is given
must be in canonical form already. Must not know what is true of a symbol.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from lostwax.sym.expressions.expr import Atom, BoolExpr, Expr, Monomial, Terms, apply

if TYPE_CHECKING:
    from lostwax.sym.env import ShapeEnv


class Algebra:
    def __init__(self, env: ShapeEnv) -> None:
        self.steps = 0
        """The work that has been done in the environment. Whoever searches stops at a number of
        steps, not at a time, so that the answers are the same on every machine."""
        self.next_id = count(1).__next__
        self._env = env
        self._exprs: dict[frozenset[tuple[Monomial, int]], Expr] = {}
        self._consts: dict[int, Expr] = {}
        self._atoms: dict[tuple[str, tuple[Expr, ...]], Atom] = {}
        self._conditions: dict[tuple[str, Expr, tuple[BoolExpr, ...]], BoolExpr] = {}
        self.zero = self.make_constant(0)
        self.one = self.make_constant(1)

    def make(self, terms: Terms) -> Expr:
        """The one expression with these terms. Coefficients are not zero, monomials are sorted by
        id."""
        key = frozenset(terms.items())
        found = self._exprs.get(key)
        if found is None:
            self.steps += 1 + len(terms)
            found = self._exprs[key] = Expr(self._env, self.next_id(), terms)
        return found

    def make_constant(self, n: int) -> Expr:
        found = self._consts.get(n)
        if found is None:
            found = self._consts[n] = self.make({(): n} if n else {})
        return found

    def make_atom(self, kind: str, operands: tuple[Expr, ...]) -> Expr:
        found = self._atoms.get((kind, operands))
        if found is None:
            hints = [x.hint for x in operands if x.hint is not None]
            # an assertion about data that the example fails may put its 0 into a divisor
            undefined = len(hints) < len(operands) or (kind in ("div", "mod") and hints[1] == 0)
            hint = None if undefined else apply(kind, hints)
            found = self._atoms[kind, operands] = Atom(self.next_id(), kind, operands, hint)
            self.add_atom(found)
        return found.expr

    def add_atom(self, atom: Atom) -> Expr:
        """The expression of a new atom."""
        atom.expr = self.make({(atom,): 1})
        return atom.expr

    def make_condition(self, kind: str, poly: Expr, args: tuple[BoolExpr, ...] = ()) -> BoolExpr:
        found = self._conditions.get((kind, poly, args))
        if found is None:
            found = BoolExpr(self._env, self.next_id(), kind, poly, args)
            self._conditions[kind, poly, args] = found
        return found

    def fold(self, a: Expr) -> Expr:
        """`a` as one atom, so that products of long sums do not grow without bound: `a // 1`."""
        return self.make_atom("div", (a, self.one))
