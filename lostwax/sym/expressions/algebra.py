"""Makes the expressions of one environment: each once, so that equal is identical.

Sums and products in canonical form; what needs facts is added by the layers above. Must not know
what is true of a symbol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from math import gcd
from typing import Any, TypeAlias

from lostwax.sym.expressions.expr import Atom, Condition, Expr, Size, apply, plain, rank_of
from lostwax.sym.expressions.terms import (
    Monomial,
    Terms,
    drop,
    leading,
    merged,
    multiplied,
    shared,
    without,
)

Results: TypeAlias = "dict[tuple[Size, Size], Size]"
Answers: TypeAlias = "dict[tuple[Size, Size], Condition]"

MAX_PRODUCT = 1024  # terms; a longer product is not multiplied out, see `Algebra.fold`


class Algebra(ABC):
    """Makes the expressions of one environment; sums and products. The layers above add what needs
    facts.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._ids = 0
        self._exprs: dict[frozenset[tuple[Monomial, int]], Expr] = {}
        self._consts: dict[int, Expr] = {}
        self._atoms: dict[tuple[str, tuple[Expr, ...]], Atom] = {}
        # what the operators returned under today's facts
        self.sums: Results = {}
        self.differences: Results = {}
        self.products: Results = {}
        self.quotients: Results = {}
        self.remainders: Results = {}
        self.strides: dict[tuple[Any, ...], Any] = {}
        """Row-major strides, by size."""
        self.comparisons: Answers = {}
        self.strict_comparisons: Answers = {}
        self.equalities: Answers = {}
        self.extrema: dict[tuple[Any, ...], Size] = {}
        self.exact: dict[tuple[Size, Size], Size | None] = {}
        # kept for others: the floats of `real.py`, and what a layer above shows for all this
        self.reals: Any = None
        self.face: Any = None
        self.zero = self.const(0)
        self.one = self.const(1)

    @abstractmethod
    def current_form(self, e: Expr) -> Expr:
        """`e` under today's facts."""

    @abstractmethod
    def mod(self, a: Expr, q: Expr) -> Expr:
        """`a % q` in canonical form, for a divisor that is not zero."""

    # ---- making

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def make(self, terms: Terms) -> Expr:
        """The one expression with these terms. Coefficients are not zero, monomials are sorted by
        id.
        """
        key = frozenset(terms.items())
        found = self._exprs.get(key)
        if found is None:
            self.steps += 1 + len(terms)
            found = self._exprs[key] = Expr(self, terms)  # type: ignore[arg-type]
        return found

    def const(self, n: int) -> Expr:
        found = self._consts.get(n)
        if found is None:
            found = self._consts[n] = self.make({(): n} if n else {})
        return found

    def atom(self, kind: str, operands: tuple[Expr, ...]) -> Expr:
        found = self._atoms.get((kind, operands))
        if found is None:
            hints = [x.hint for x in operands]
            # an assertion about data that the example fails may put its 0 into a divisor
            undefined = None in hints or (kind in ("div", "mod") and hints[1] == 0)
            hint = None if undefined else apply(kind, hints)  # type: ignore[arg-type]
            found = Atom(self, kind, operands, hint)  # type: ignore[arg-type]
            self._atoms[kind, operands] = found
        return found.expr

    def operand(self, x: object) -> Expr | None:
        if isinstance(x, Expr):
            if x.env is not self:
                raise ValueError(f"{x} belongs to another ShapeEnv")
            return x
        return self.const(int(x)) if isinstance(x, int) else None

    def operate(
        self, memo: Results, rule: Callable[[Expr, Expr], Expr], left: Size, right: Size
    ) -> Size:
        """`rule` on today's forms of both operands; remembered until facts are learned."""
        a, b = self.operand(left), self.operand(right)
        if a is None or b is None:
            return NotImplemented  # type: ignore[no-any-return]
        result = self.current_form(rule(self.current_form(a), self.current_form(b)))
        memo[left, right] = value = plain(result)
        return value

    def compare(
        self, memo: Answers, rule: Callable[[Expr, Expr], Condition], left: Size, right: Size
    ) -> Condition:
        if type(left) in _SIZES and type(right) in _SIZES:
            found = memo.get((left, right))
            if found is not None:
                return found
        a, b = self.operand(left), self.operand(right)
        if a is None or b is None:
            return NotImplemented  # type: ignore[no-any-return]
        memo[left, right] = value = rule(self.current_form(a), self.current_form(b))
        return value

    def forget_results(self) -> None:
        """Facts have changed: what the operators returned may have a better form now."""
        for results in (
            self.sums,
            self.differences,
            self.products,
            self.quotients,
            self.remainders,
        ):
            results.clear()
        for answers in (self.comparisons, self.strict_comparisons, self.equalities):
            answers.clear()
        self.extrema.clear()
        self.exact.clear()
        self.strides.clear()

    # ---- sums and products

    def add(self, a: Expr, b: Expr) -> Expr:
        terms = merged(a.terms, 1, b.terms, 1)
        return self.settle(terms) if a.composite and b.composite else self.make(terms)

    def sub(self, a: Expr, b: Expr) -> Expr:
        terms = merged(a.terms, 1, b.terms, -1)
        return self.settle(terms) if a.composite and b.composite else self.make(terms)

    def shift(self, a: Expr, n: int) -> Expr:
        return self.make(merged(a.terms, 1, {(): n}, 1)) if n else a

    def scale(self, a: Expr, n: int) -> Expr:
        if n == 1:
            return a
        terms = {m: c * n for m, c in a.terms.items()} if n else {}
        if not a.composite or n == -1:
            return self.make(terms)
        result = self.settle(terms)
        if len(terms) > 1 and result.product is None:
            result.product = self.const(n), a
        return result

    def mul(self, a: Expr, b: Expr) -> Expr:
        if a.const is not None:
            return self.scale(b, a.const)
        if b.const is not None:
            return self.scale(a, b.const)
        if len(a.terms) * len(b.terms) > MAX_PRODUCT:
            a, b = sorted((a, b), key=lambda e: (len(e.terms), e.id))
            return self.mul(self.fold(a) if len(a.terms) > MAX_PRODUCT else a, self.fold(b))
        terms = multiplied(a.terms, b.terms)
        result = self.settle(terms) if a.composite or b.composite else self.make(terms)
        if len(terms) > 1 and result.product is None:
            result.product = a, b
        return result

    def fold(self, a: Expr) -> Expr:
        """`a` as one atom, so that products of long sums do not grow without bound: `a // 1`."""
        return self.atom("div", (a, self.one))

    def settle(self, terms: Terms) -> Expr:
        """The expression of `terms` with `q*(r//q)` written as `r - r % q`: one of the two forms
        must win.
        """
        found = list(_whole_quotients(terms))
        if not found:
            return self.make(terms)
        if len(found) > 1:
            found.sort(key=lambda f: (rank_of(f[0]), f[1].rank()))
        monomial, atom, unit, times, rest = found[0]
        left = merged(terms, 1, {monomial: times * unit}, -1)
        exact = self.sub(atom.operands[0], self.mod(*atom.operands))
        return self.add(self.settle(left), self.mul(self.make({rest: times}), exact))

    # ---- structure

    def content(self, *polys: Expr) -> tuple[int, Monomial]:
        """The largest integer and monomial that divide every term of all of them."""
        factor, common = 0, None
        for poly in polys:
            for monomial, coefficient in poly.terms.items():
                factor = gcd(factor, coefficient)
                common = monomial if common is None else shared(common, monomial)
        return factor or 1, common or ()

    def divided(self, a: Expr, factor: int, monomial: Monomial) -> Expr:
        """`a` divided by a part of its own content."""
        return self.make({drop(m, monomial): c // factor for m, c in a.terms.items()})

    def exact_quotient(self, a: Expr, b: Expr) -> Expr | None:
        """The polynomial q with `a == b*q`, if there is one that is found in a few steps."""
        found = exact_terms(a.terms, b.terms)
        return None if found is None else self.make(found)


def _whole_quotients(terms: Terms) -> Iterator[tuple[Monomial, Atom, int, int, Monomial]]:
    """Where `q*(r//q)` stands: (monomial, r//q, q's coefficient, how often, what is left)."""
    for monomial, coefficient in terms.items():
        for atom in monomial:
            if atom.kind != "div" or len(atom.operands[1].terms) != 1 or atom.args[1] == 1:
                continue
            ((factor, unit),) = atom.operands[1].terms.items()
            times = abs(coefficient) // abs(unit)
            rest = without(monomial, (atom, *factor))
            if times == 0 or rest is None:
                continue
            yield monomial, atom, unit, times if (coefficient > 0) == (unit > 0) else -times, rest


def exact_terms(a: Terms, b: Terms) -> Terms | None:
    """The terms of q with `a == b*q`."""
    if not b:
        return None
    if b.keys() == {()}:  # a number: term by term, however many
        number = b[()]
        divided = {m: k // number for m, k in a.items()}
        return divided if all(k % number == 0 for k in a.values()) else None
    head = leading(b)
    quotient: Terms = {}
    for _ in range(16):
        if not a:
            return quotient
        first = leading(a)
        monomial = without(first, head)
        if monomial is None or a[first] % b[head]:
            return None
        term = {monomial: a[first] // b[head]}
        quotient = merged(quotient, 1, term, 1)
        a = merged(a, 1, multiplied(term, b), -1)
    return None


_SIZES = (int, Expr)
