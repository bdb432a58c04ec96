"""Canonical forms of `a // q`, `a % q`, `max` and `min`: exact rules over the integers.

Each rule says which of several equal spellings wins, so that equality is mostly a matter of
identity. A divisor is not zero here: whoever divides has seen to it. Must not learn anything; of
the facts it asks ranges and `prove`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import gcd

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import (
    Atom,
    Expr,
    Monomial,
    Terms,
    find_atom,
    find_only_atom,
    rank_of,
)
from lostwax.sym.expressions.terms import (
    combine,
    common_factor,
    divide_exactly,
    divide_monomial,
    leading_monomial,
    replace_atom,
)
from lostwax.sym.reasoning.bounds import Bounds
from lostwax.sym.reasoning.facts import Facts

MAX_ARGUMENTS = 16  # of a max or min whose arguments are compared with each other
MAX_UNFOLDED = 256  # terms of a polynomial whose remainders are written out


@dataclass(eq=False, repr=False)
class Rules:
    """`prove` says whether an expression is certainly not negative."""

    facts: Facts
    algebra: Algebra
    bounds: Bounds
    prove: Callable[[Expr], bool]

    def __post_init__(self) -> None:
        # a nest of remainders would be worked out again and again without them
        self._floors: dict[tuple[Expr, int], Expr] = self.facts.new_memo()
        self._remainders: dict[tuple[Expr, int], Expr] = self.facts.new_memo()
        self._unfolded: dict[Expr, Terms] = self.facts.new_memo()

    def settle(self, terms: Terms) -> Expr:
        """The expression of `terms` with `q*(r//q)` written as `r - r % q`: one of the two forms
        must win."""
        found = list(_find_whole_quotients(terms))
        if not found:
            return self.algebra.make(terms)
        if len(found) > 1:
            found.sort(key=lambda f: (rank_of(f[0]), f[1].rank()))
        monomial, atom, unit, times, rest = found[0]
        left = combine(terms, 1, {monomial: times * unit}, -1)
        exact = atom.operands[0].subtract(self.mod(*atom.operands))
        return self.settle(left).add(self.algebra.make({rest: times}).multiply(exact))

    # ---- a // q

    def floordiv(self, a: Expr, q: Expr) -> Expr:
        if a.const == 0:
            return a
        if q.const is not None:
            return self.floordiv_const(a, q.const)
        if len(q.terms) == 1:
            return self._floordiv_term(a, q)
        exact = self.exact_quotient(a, q)
        if exact is not None:
            return exact
        if self._is_remainder(a, q):
            return self.algebra.zero
        return self.algebra.make_atom("div", (a, q))

    def floordiv_const(self, a: Expr, c: int) -> Expr:
        if c < 0:
            return self.floordiv_const(a.scale(-1), -c)
        if c == 1:
            return a
        found = self._floors.get((a, c))
        if found is None:
            self.algebra.steps += len(a.terms)
            found = self._floors[a, c] = self._floordiv_const(a, c)
        return found

    def _floordiv_const(self, a: Expr, c: int) -> Expr:
        if a.composite:
            for unfold in (self._divide_by_unfolding, self._unfold_remainder):
                shorter = unfold(a, c)
                if shorter is not None:
                    return shorter
            half = _find_rounded_half(a)
            if half is not None:  # x - x//2 is (x + 1)//2, which can be merged as such
                sign, x, k = half
                moved = x.scale(sign).shift((sign == 1) + 2 * k)
                return self.floordiv_const(moved, 2 * c)
            if _is_half_of_floor(a, c):  # its sign is lost below: -d + d//2 is -((d + 1)//2)
                return self.floordiv_const(a.scale(-1).shift(c - 1), c).scale(-1)
        # (c*q + r) // c = q + r // c
        whole = self.settle({m: k // c for m, k in a.terms.items() if k // c})
        rest = {m: k % c for m, k in a.terms.items() if k % c}
        constant = rest.pop((), 0)
        if not rest:
            return whole
        common = reduce(gcd, rest.values(), c)
        if common > 1:
            rest = {m: k // common for m, k in rest.items()}
            constant //= common
            c //= common
            if c == 1:
                return whole.add(self.settle(rest).shift(constant))
        return whole.add(self._proper_floordiv(rest, constant, c))

    def _proper_floordiv(self, rest: Terms, constant: int, c: int) -> Expr:
        """`(rest + constant) // c` where all coefficients are below c and prime to it together."""
        inner = find_only_atom(rest, "div")
        if inner is not None and _has_plain_divisor(inner):
            b = inner.operands[1].const or 1  # (x//b + k) // c = (x + k*b) // (b*c)
            return self.floordiv_const(inner.operands[0].shift(constant * b), b * c)
        if inner is None:
            inner = find_only_atom(rest, "max") or find_only_atom(rest, "min")
            if inner is not None:  # max(x, y) // c = max(x // c, y // c)
                parts = [self.floordiv_const(x.shift(constant), c) for x in inner.operands]
                return self.extremum(inner.kind, parts)
        if _prefers_mirror(rest[leading_monomial(rest)], constant, c):  # r // c = -((c-1-r) // c)
            mirrored = self.algebra.make({m: -k for m, k in rest.items()}).shift(c - 1 - constant)
            return self.floordiv_const(mirrored, c).scale(-1)
        r = self.algebra.make(rest).shift(constant)
        value = self.bounds.constant_quotient(r, c)
        if value is not None:
            return self.algebra.make_constant(value)
        return self.algebra.make_atom("div", (r, self.algebra.make_constant(c)))

    def unfold(self, a: Expr) -> Terms:
        """`a` with every `x % n` as `x - n*(x//n)`: padded to a multiple of n is then n times
        something."""
        found = self._unfolded.get(a)
        if found is not None:
            return found
        terms = a.terms
        for atom in dict.fromkeys(b for m in a.terms for b in m if b.kind == "mod"):
            x, n = atom.operands[0], atom.args[1]
            if isinstance(n, int) and len(terms) * len(x.terms) <= MAX_UNFOLDED:
                self.algebra.steps += len(terms)
                value = combine(x.terms, 1, self.floordiv_const(x, n).terms, -n)
                terms = replace_atom(terms, atom, value)
        self._unfolded[a] = terms
        return terms

    def unfold_upper_halves(self, terms: Terms) -> Terms:
        """With `(x + n)//(2*n)` as `x//n - x//(2*n)` (Hermite): floors that add up to something
        shorter cancel. Too long for a canonical form."""
        for _ in range(MAX_UNFOLDED):
            upper = next((a for m in terms for a in m if _rounds_half_up(a)), None)
            if upper is None or len(terms) > MAX_UNFOLDED:
                break
            x, half = upper.operands[0], (upper.operands[1].const or 0) // 2
            self.algebra.steps += len(terms)
            lower = x.shift(-half)
            value = combine(
                self.floordiv_const(lower, half).terms, 1,
                self.floordiv_const(lower, 2 * half).terms, -1,
            )  # fmt: skip
            terms = replace_atom(terms, upper, value)
        return terms

    def exact_quotient(self, a: Expr, b: Expr) -> Expr | None:
        """The polynomial q with `a == b*q`, if one is found. Often only the unfolded forms show it:
        the settled ones of x and of 8*x differ in more than the factor."""
        terms = divide_exactly(a.terms, b.terms)
        found = None if terms is None else self.algebra.make(terms)
        if found is None and (a.composite or b.composite) and (_has_mod(a) or _has_mod(b)):
            terms = divide_exactly(self.unfold(a), self.unfold(b))
            found = None if terms is None else self.settle(terms)
        return found

    def _divide_by_unfolding(self, a: Expr, c: int) -> Expr | None:
        if not _has_mod(a):
            return None
        terms = self.unfold(a)
        if any(k % c for k in terms.values()):
            return None
        return self.settle({m: k // c for m, k in terms.items()})

    def _unfold_remainder(self, a: Expr, c: int) -> Expr | None:
        """With `x % n = x - n*(x//n)` where n*k is a multiple of c and that shortens the rest."""
        open_terms = sum(1 for m, k in a.terms.items() if m and k % c)
        for monomial, k in a.terms.items():
            inner = find_atom(monomial, "mod")
            if inner is None or not isinstance(inner.args[1], int) or k * inner.args[1] % c:
                continue
            x, n = inner.operands[0], inner.args[1]
            opened = a.drop_term(monomial).add(x.scale(k))
            if sum(1 for m, v in opened.terms.items() if m and v % c) < open_terms:
                part = self.floordiv_const(x, n).scale(k * n // c)
                return self.floordiv_const(opened, c).subtract(part)
        return None

    def _floordiv_term(self, a: Expr, q: Expr) -> Expr:
        whole, rest = self._split(a, q)
        if rest.const == 0:
            return whole
        factor, common = common_factor(rest.terms, q.terms)
        if factor != 1 or common:
            smaller = self.floordiv(
                rest.divide_terms(factor, common), q.divide_terms(factor, common)
            )
            return whole.add(smaller)
        if self._is_remainder(rest, q):
            return whole
        return whole.add(self.algebra.make_atom("div", (rest, q)))

    def _split(self, a: Expr, q: Expr) -> tuple[Expr, Expr]:
        """(w, r) with `a = w*q + r` for a q of one term."""
        ((monomial, unit),) = q.terms.items()
        whole: Terms = {}
        rest: Terms = {}
        for m, k in a.terms.items():
            quotient = divide_monomial(m, monomial)
            if quotient is None or k % unit:
                rest[m] = k
            else:
                whole[quotient] = k // unit
        return self.settle(whole), self.algebra.make(rest)

    def _is_remainder(self, r: Expr, q: Expr) -> bool:
        """0 <= r < q"""
        return self.bounds.is_nonnegative(r) and self.prove(q.subtract(r).shift(-1))

    # ---- a % q

    def mod(self, a: Expr, q: Expr) -> Expr:
        if a.const == 0:
            return a
        if q.const is not None:
            return self.mod_const(a, q.const)
        if len(q.terms) == 1:
            return self._mod_term(a, q)
        if self.exact_quotient(a, q) is not None:
            return self.algebra.zero
        return a if self._is_remainder(a, q) else self.algebra.make_atom("mod", (a, q))

    def mod_const(self, a: Expr, c: int) -> Expr:
        if c < 0:
            return self.mod_const(a.scale(-1), -c).scale(-1)
        found = self._remainders.get((a, c))
        if found is None:
            self.algebra.steps += len(a.terms)
            found = self._remainders[a, c] = self._mod_const(a, c)
        return found

    def _mod_const(self, a: Expr, c: int) -> Expr:
        rest = {m: k % c for m, k in a.terms.items() if k % c}
        for monomial, k in rest.items() if a.composite else ():
            inner = find_atom(monomial, "mod")
            if inner is not None and isinstance(inner.args[1], int) and inner.args[1] % c == 0:
                del rest[monomial]  # (x % (c*n)) % c = x % c
                opened = self.algebra.make(rest).add(inner.operands[0].scale(k))
                return self.mod_const(opened, c)
        if a.composite and self._divide_by_unfolding(a, c) is not None:
            return self.algebra.zero
        constant = rest.pop((), 0)
        if not rest:
            return self.algebra.make_constant(constant)
        common = reduce(gcd, rest.values(), c)
        if common > 1:
            r = self.algebra.make({m: k // common for m, k in rest.items()})
            smaller = self.mod_const(r.shift(constant // common), c // common)
            return smaller.scale(common).shift(constant % common)
        return self._proper_mod(self.algebra.make(rest).shift(constant), leading_monomial(rest), c)

    def _proper_mod(self, r: Expr, head: Monomial, c: int) -> Expr:
        value = self.bounds.constant_quotient(r, c)
        if value is not None:
            return r.shift(-c * value)
        if _prefers_mirror(r.terms[head], r.terms.get((), 0), c):  # r % c = c-1 - (-1-r) % c
            mirrored = self.mod_const(r.scale(-1).shift(-1), c)
            return mirrored.scale(-1).shift(c - 1)
        return self.algebra.make_atom("mod", (r, self.algebra.make_constant(c)))

    def _mod_term(self, a: Expr, q: Expr) -> Expr:
        _, rest = self._split(a, q)
        if rest.const == 0:
            return rest
        factor, common = common_factor(rest.terms, q.terms)
        if factor != 1 or common:
            smaller = self.mod(rest.divide_terms(factor, common), q.divide_terms(factor, common))
            return self.algebra.make({common: factor}).multiply(smaller)
        return rest if self._is_remainder(rest, q) else self.algebra.make_atom("mod", (rest, q))

    # ---- max and min

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


def _find_whole_quotients(terms: Terms) -> Iterator[tuple[Monomial, Atom, int, int, Monomial]]:
    """Where `q*(r//q)` stands: (monomial, r//q, q's coefficient, how often, what is left)."""
    for monomial, coefficient in terms.items():
        for atom in monomial:
            if atom.kind != "div" or len(atom.operands[1].terms) != 1 or atom.args[1] == 1:
                continue
            ((factor, unit),) = atom.operands[1].terms.items()
            times = abs(coefficient) // abs(unit)
            rest = divide_monomial(monomial, (atom, *factor))
            if times == 0 or rest is None:
                continue
            yield monomial, atom, unit, times if (coefficient > 0) == (unit > 0) else -times, rest


def _prefers_mirror(coefficient: int, constant: int, c: int) -> bool:
    """Of r and c-1-r, which stand for the same quotient, the one with the smaller leading
    coefficient is canonical, then the smaller constant: `-(-s//8)` and `(s + 7)//8` are one."""
    return (2 * coefficient, 2 * constant) > (c, c - 1)


def _has_plain_divisor(atom: Atom) -> bool:
    divisor = atom.args[1]
    return isinstance(divisor, int) and divisor > 0


def _find_rounded_half(a: Expr) -> tuple[int, Expr, int] | None:
    """(sign, x, k) if `a` is `sign*(x - x//2) + k`: half of x, rounded up, as strided convolutions
    do."""
    for monomial, coefficient in a.terms.items():
        half = find_atom(monomial, "div")
        if half is not None and half.args[1] == 2 and coefficient in (1, -1):
            x, sign = half.operands[0], -coefficient
            others = {m: sign * k for m, k in a.terms.items() if m and m != monomial}
            if others == x.terms:
                return sign, x, a.terms.get((), 0)
    return None


def _rounds_half_up(atom: Atom) -> bool:
    """Is it `(x + k)//c` with c even and k at least c/2?"""
    if atom.kind != "div" or not _has_plain_divisor(atom):
        return False
    c = atom.operands[1].const or 0
    return c > 1 and c % 2 == 0 and 2 * atom.operands[0].terms.get((), 0) >= c


def _is_half_of_floor(a: Expr, c: int) -> bool:
    """Is `a` a floor by a constant, with a negative coefficient that is c/2 but for multiples of
    c?"""
    terms = [(m, k) for m, k in a.terms.items() if m]
    if len(terms) != 1:
        return False
    ((monomial, k),) = terms
    floor = find_atom(monomial, "div")
    return k < 0 and 2 * (k % c) == c and floor is not None and _has_plain_divisor(floor)


def _has_mod(a: Expr) -> bool:
    return any(b.kind == "mod" for m in a.terms for b in m)


def _rank_without_constant(x: Expr) -> tuple[object, int]:
    """An order that a common constant does not change: max(a, b + 1) is max(a - 1, b) + 1."""
    constant = x.terms.get((), 0)
    return x.shift(-constant).rank(), constant
