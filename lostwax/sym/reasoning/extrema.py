"""Canonical forms of `max` and `min`: nested ones are one, and an argument that another certainly
reaches is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Expr, find_only_atom

MAX_ARGUMENTS = 16  # of a max or min whose arguments are compared with each other


@dataclass(eq=False)
class Extrema:
    """`prove` says whether an expression is certainly not negative."""

    algebra: Algebra
    prove: Callable[[Expr], bool]

    def extremum(self, kind: str, args: list[Expr]) -> Expr:
        flat: list[Expr] = []
        for x in args:
            inner = find_only_atom(x.terms, kind)
            flat.extend(inner.operands if inner is not None else (x,))
        kept = self._drop_dominated(kind, list(dict.fromkeys(flat)))
        if len(kept) == 1:
            return kept[0]
        kept.sort(key=_rank_without_constant)
        # max(a, b) + k: the first argument that is not constant has no constant part
        offset = next(x.terms.get((), 0) for x in kept if x.const is None)
        atom = self.algebra.make_atom(kind, tuple(x.shift(-offset) for x in kept))
        return atom.shift(offset)

    def _drop_dominated(self, kind: str, args: list[Expr]) -> list[Expr]:
        """Without the arguments that another one certainly reaches."""
        sign = 1 if kind == "max" else -1
        kept: list[Expr] = []
        for x in args:
            if len(kept) >= MAX_ARGUMENTS:
                kept.append(x)
                continue
            lead = [(y, x.subtract(y).scale(sign)) for y in kept]
            if any(self.prove(d.scale(-1)) for _, d in lead):
                continue
            beaten = [y for y, d in lead if self.prove(d)]
            kept = [y for y in kept if y not in beaten] + [x]
        return kept


def _rank_without_constant(x: Expr) -> tuple[object, int]:
    """An order that a common constant does not change: max(a, b + 1) is max(a - 1, b) + 1."""
    constant = x.terms.get((), 0)
    return x.shift(-constant).rank(), constant
