"""Canonical forms of `a // q`, `a % q`, `max` and `min`: exact rules over the integers.

Each rule says which of several equal spellings wins, so that equality is mostly a matter of
identity. A divisor is not zero here: whoever divides has seen to it. Must not learn anything; of
the facts it asks ranges and `prove`.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import reduce
from math import gcd

from lostwax.sym.expressions.algebra import exact_terms
from lostwax.sym.expressions.expr import Atom, Expr, Size, plain
from lostwax.sym.expressions.terms import Monomial, Terms, leading, merged, replaced, without
from lostwax.sym.reasoning.bounds import Bounds

MAX_ARGUMENTS = 16  # of a max or min whose arguments are compared with each other
MAX_UNFOLDED = 256  # terms of a polynomial whose remainders are written out


class Rules(Bounds):
    def __init__(self) -> None:
        super().__init__()
        # under today's facts; a nest of remainders would be worked out again and again without them
        self._floors: dict[tuple[Expr, int], Expr] = {}
        self._remainders: dict[tuple[Expr, int], Expr] = {}
        self._unfolded: dict[Expr, Terms] = {}

    @abstractmethod
    def prove(self, e: Expr) -> bool:
        """Is `e >= 0` certain?"""

    @abstractmethod
    def require_nonzero(self, q: Expr) -> None:
        """A division by `q` is being traced."""

    def checked_floordiv(self, a: Expr, q: Expr) -> Expr:
        self.require_nonzero(q)
        return self.floordiv(self.current_form(a), self.current_form(q))

    def checked_mod(self, a: Expr, q: Expr) -> Expr:
        self.require_nonzero(q)
        return self.mod(self.current_form(a), self.current_form(q))

    def forget_results(self) -> None:
        super().forget_results()
        self._floors.clear()
        self._remainders.clear()
        self._unfolded.clear()

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
        return self.zero if self._is_remainder(a, q) else self.atom("div", (a, q))

    def floordiv_const(self, a: Expr, c: int) -> Expr:
        if c < 0:
            return self.floordiv_const(self.scale(a, -1), -c)
        if c == 1:
            return a
        found = self._floors.get((a, c))
        if found is None:
            self.steps += len(a.terms)
            found = self._floors[a, c] = self._floordiv_const(a, c)
        return found

    def _floordiv_const(self, a: Expr, c: int) -> Expr:
        if a.composite:
            for unfold in (self._exact_by_unfolding, self._unfold_remainder):
                shorter = unfold(a, c)
                if shorter is not None:
                    return shorter
            half = _rounded_half(a)
            if half is not None:  # x - x//2 is (x + 1)//2, which can be merged as such
                sign, x, k = half
                moved = self.shift(self.scale(x, sign), (sign == 1) + 2 * k)
                return self.floordiv_const(moved, 2 * c)
            if _is_half_of_floor(a, c):  # its sign is lost below: -d + d//2 is -((d + 1)//2)
                return self.scale(self.floordiv_const(self.shift(self.scale(a, -1), c - 1), c), -1)
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
                return self.add(whole, self.shift(self.settle(rest), constant))
        return self.add(whole, self._proper_floordiv(rest, constant, c))

    def _proper_floordiv(self, rest: Terms, constant: int, c: int) -> Expr:
        """`(rest + constant) // c` where all coefficients are below c and prime to it together."""
        inner = _only_atom(rest, "div")
        if inner is not None and _has_plain_divisor(inner):
            b = inner.operands[1].const or 1  # (x//b + k) // c = (x + k*b) // (b*c)
            return self.floordiv_const(self.shift(inner.operands[0], constant * b), b * c)
        if inner is None:
            inner = _only_atom(rest, "max") or _only_atom(rest, "min")
            if inner is not None:  # max(x, y) // c = max(x // c, y // c)
                moved = (self.shift(x, constant) for x in inner.operands)
                return self.extremum(inner.kind, [self.floordiv_const(x, c) for x in moved])
        if _prefers_mirror(rest[leading(rest)], constant, c):  # r // c = -((c-1-r) // c)
            mirrored = self.shift(self.make({m: -k for m, k in rest.items()}), c - 1 - constant)
            return self.scale(self.floordiv_const(mirrored, c), -1)
        r = self.shift(self.make(rest), constant)
        value = self.constant_quotient(r, c)
        return self.const(value) if value is not None else self.atom("div", (r, self.const(c)))

    def unfolded(self, a: Expr) -> Terms:
        """`a` with every `x % n` as `x - n*(x//n)`: padded to a multiple of n is then n times
        something.
        """
        found = self._unfolded.get(a)
        if found is not None:
            return found
        terms = a.terms
        for atom in dict.fromkeys(b for m in a.terms for b in m if b.kind == "mod"):
            x, n = atom.operands[0], atom.args[1]
            if isinstance(n, int) and len(terms) * len(x.terms) <= MAX_UNFOLDED:
                self.steps += len(terms)
                value = merged(x.terms, 1, self.floordiv_const(x, n).terms, -n)
                terms = replaced(terms, atom, value)
        self._unfolded[a] = terms
        return terms

    def without_upper_halves(self, terms: Terms) -> Terms:
        """With `(x + n)//(2*n)` as `x//n - x//(2*n)` (Hermite): floors that add up to something
        shorter cancel. Too long for a canonical form."""
        for _ in range(MAX_UNFOLDED):
            upper = next((a for m in terms for a in m if _rounds_half_up(a)), None)
            if upper is None or len(terms) > MAX_UNFOLDED:
                break
            x, half = upper.operands[0], (upper.operands[1].const or 0) // 2
            self.steps += len(terms)
            lower = self.shift(x, -half)
            value = merged(
                self.floordiv_const(lower, half).terms, 1,
                self.floordiv_const(lower, 2 * half).terms, -1,
            )  # fmt: skip
            terms = replaced(terms, upper, value)
        return terms

    def exact_quotient(self, a: Expr, b: Expr) -> Expr | None:
        """Also where only the unfolded forms show it: the settled ones of x and of 8*x differ in
        more than the factor.
        """
        found = super().exact_quotient(a, b)
        if found is None and (a.composite or b.composite) and (_has_mod(a) or _has_mod(b)):
            terms = exact_terms(self.unfolded(a), self.unfolded(b))
            found = None if terms is None else self.settle(terms)
        return found

    def _exact_by_unfolding(self, a: Expr, c: int) -> Expr | None:
        if not _has_mod(a):
            return None
        terms = self.unfolded(a)
        if any(k % c for k in terms.values()):
            return None
        return self.settle({m: k // c for m, k in terms.items()})

    def _unfold_remainder(self, a: Expr, c: int) -> Expr | None:
        """With `x % n = x - n*(x//n)` where n*k is a multiple of c and that shortens the rest."""
        open_terms = sum(1 for m, k in a.terms.items() if m and k % c)
        for monomial, k in a.terms.items():
            inner = _atom(monomial, "mod")
            if inner is None or not isinstance(inner.args[1], int) or k * inner.args[1] % c:
                continue
            x, n = inner.operands[0], inner.args[1]
            rest = self.make({m: v for m, v in a.terms.items() if m != monomial})
            opened = self.add(rest, self.scale(x, k))
            if sum(1 for m, v in opened.terms.items() if m and v % c) < open_terms:
                part = self.scale(self.floordiv_const(x, n), k * n // c)
                return self.sub(self.floordiv_const(opened, c), part)
        return None

    def _floordiv_term(self, a: Expr, q: Expr) -> Expr:
        whole, rest = self._split(a, q)
        if rest.const == 0:
            return whole
        factor, common = self.content(rest, q)
        if factor != 1 or common:
            smaller = self.floordiv(
                self.divided(rest, factor, common), self.divided(q, factor, common)
            )
            return self.add(whole, smaller)
        if self._is_remainder(rest, q):
            return whole
        return self.add(whole, self.atom("div", (rest, q)))

    def _split(self, a: Expr, q: Expr) -> tuple[Expr, Expr]:
        """(w, r) with `a = w*q + r` for a q of one term."""
        ((monomial, unit),) = q.terms.items()
        whole: Terms = {}
        rest: Terms = {}
        for m, k in a.terms.items():
            quotient = without(m, monomial)
            if quotient is None or k % unit:
                rest[m] = k
            else:
                whole[quotient] = k // unit
        return self.settle(whole), self.make(rest)

    def _is_remainder(self, r: Expr, q: Expr) -> bool:
        """0 <= r < q"""
        return self.is_nonnegative(r) and self.prove(self.shift(self.sub(q, r), -1))

    # ---- a % q

    def mod(self, a: Expr, q: Expr) -> Expr:
        if a.const == 0:
            return a
        if q.const is not None:
            return self.mod_const(a, q.const)
        if len(q.terms) == 1:
            return self._mod_term(a, q)
        if self.exact_quotient(a, q) is not None:
            return self.zero
        return a if self._is_remainder(a, q) else self.atom("mod", (a, q))

    def mod_const(self, a: Expr, c: int) -> Expr:
        if c < 0:
            return self.scale(self.mod_const(self.scale(a, -1), -c), -1)
        found = self._remainders.get((a, c))
        if found is None:
            self.steps += len(a.terms)
            found = self._remainders[a, c] = self._mod_const(a, c)
        return found

    def _mod_const(self, a: Expr, c: int) -> Expr:
        rest = {m: k % c for m, k in a.terms.items() if k % c}
        for monomial, k in rest.items() if a.composite else ():
            inner = _atom(monomial, "mod")
            if inner is not None and isinstance(inner.args[1], int) and inner.args[1] % c == 0:
                del rest[monomial]  # (x % (c*n)) % c = x % c
                opened = self.add(self.make(rest), self.scale(inner.operands[0], k))
                return self.mod_const(opened, c)
        if a.composite and self._exact_by_unfolding(a, c) is not None:
            return self.zero
        constant = rest.pop((), 0)
        if not rest:
            return self.const(constant)
        common = reduce(gcd, rest.values(), c)
        if common > 1:
            r = self.make({m: k // common for m, k in rest.items()})
            smaller = self.mod_const(self.shift(r, constant // common), c // common)
            return self.shift(self.scale(smaller, common), constant % common)
        return self._proper_mod(self.shift(self.make(rest), constant), leading(rest), c)

    def _proper_mod(self, r: Expr, head: Monomial, c: int) -> Expr:
        value = self.constant_quotient(r, c)
        if value is not None:
            return self.shift(r, -c * value)
        if _prefers_mirror(r.terms[head], r.terms.get((), 0), c):  # r % c = c-1 - (-1-r) % c
            mirrored = self.mod_const(self.shift(self.scale(r, -1), -1), c)
            return self.shift(self.scale(mirrored, -1), c - 1)
        return self.atom("mod", (r, self.const(c)))

    def _mod_term(self, a: Expr, q: Expr) -> Expr:
        _, rest = self._split(a, q)
        if rest.const == 0:
            return rest
        factor, common = self.content(rest, q)
        if factor != 1 or common:
            smaller = self.mod(self.divided(rest, factor, common), self.divided(q, factor, common))
            return self.mul(self.make({common: factor}), smaller)
        return rest if self._is_remainder(rest, q) else self.atom("mod", (rest, q))

    # ---- max and min

    def extremum_of(self, kind: str, sizes: tuple[Size, ...]) -> Size:
        found = self.extrema.get((kind, *sizes))
        if found is None:
            operands = [self.operand(x) for x in sizes]
            if None in operands:
                raise TypeError(f"{kind} of {sizes}: integers only")
            args = [self.current_form(x) for x in operands if x is not None]
            result = self.current_form(self.extremum(kind, args))
            found = self.extrema[(kind, *sizes)] = plain(result)
        return found

    def extremum(self, kind: str, args: list[Expr]) -> Expr:
        flat: list[Expr] = []
        for x in args:
            inner = _only_atom(x.terms, kind)
            flat.extend(inner.operands if inner is not None else (x,))
        kept = self._undominated(kind, list(dict.fromkeys(flat)))
        if len(kept) == 1:
            return kept[0]
        kept.sort(key=self._rank_without_constant)
        # max(a, b) + k: the first argument that is not constant has no constant part
        offset = next(x.terms.get((), 0) for x in kept if x.const is None)
        atom = self.atom(kind, tuple(self.shift(x, -offset) for x in kept))
        return self.shift(atom, offset)

    def _rank_without_constant(self, x: Expr) -> tuple[object, int]:
        """An order that a common constant does not change: max(a, b + 1) is max(a - 1, b) + 1."""
        constant = x.terms.get((), 0)
        return self.shift(x, -constant).rank(), constant

    def _undominated(self, kind: str, args: list[Expr]) -> list[Expr]:
        """Without the arguments that another one certainly reaches."""
        sign = 1 if kind == "max" else -1
        kept: list[Expr] = []
        for x in args:
            if len(kept) >= MAX_ARGUMENTS:
                kept.append(x)
                continue
            lead = [(y, self.scale(self.sub(x, y), sign)) for y in kept]
            if any(self.prove(self.scale(d, -1)) for _, d in lead):
                continue
            beaten = [y for y, d in lead if self.prove(d)]
            kept = [y for y in kept if y not in beaten] + [x]
        return kept


def _prefers_mirror(coefficient: int, constant: int, c: int) -> bool:
    """Of r and c-1-r, which stand for the same quotient, the one with the smaller leading
    coefficient is canonical, then the smaller constant: `-(-s//8)` and `(s + 7)//8` are one.
    """
    return (2 * coefficient, 2 * constant) > (c, c - 1)


def _has_plain_divisor(atom: Atom) -> bool:
    divisor = atom.args[1]
    return isinstance(divisor, int) and divisor > 0


def _rounded_half(a: Expr) -> tuple[int, Expr, int] | None:
    """(sign, x, k) if `a` is `sign*(x - x//2) + k`: half of x, rounded up, as strided convolutions
    do."""
    for monomial, coefficient in a.terms.items():
        half = _atom(monomial, "div")
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
    floor = _atom(monomial, "div")
    return k < 0 and 2 * (k % c) == c and floor is not None and _has_plain_divisor(floor)


def _has_mod(a: Expr) -> bool:
    return any(b.kind == "mod" for m in a.terms for b in m)


def _atom(monomial: Monomial, kind: str) -> Atom | None:
    """The one atom of a monomial, if it has this kind."""
    return monomial[0] if len(monomial) == 1 and monomial[0].kind == kind else None


def _only_atom(terms: Terms, kind: str) -> Atom | None:
    """The atom that these terms are, if it has this kind."""
    if len(terms) != 1:
        return None
    ((monomial, coefficient),) = terms.items()
    return _atom(monomial, kind) if coefficient == 1 else None
