"""Integer and boolean expressions in canonical form: polynomials over atoms, and conditions on
them.

An `Expr` is a polynomial with integer coefficients over *atoms* (symbols, floor quotients,
remainders, maxima, minima). Every expression of an environment is made by its `Algebra`, which
returns the equal one that exists: equal is identical.

Python's operators give an expression under today's facts, and are answered by `Operators`; `add`,
`shift` and the other methods only compute, and are for those who reason. Must not know what is true
of a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, floordiv, mod
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, cast

from lostwax.sym.expressions.terms import combine, common_factor, divide_monomial, multiply

if TYPE_CHECKING:  # an expression belongs to an environment, which makes expressions
    from lostwax.sym.env import ShapeEnv

Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "dict[tuple[Atom, ...], int]"
Size: TypeAlias = "int | Expr"
Condition: TypeAlias = "bool | BoolExpr"

MAX_PRODUCT = 1024  # terms; a longer product is not multiplied out, see `Algebra.fold`

_by_id = attrgetter("id")


class Interned:
    """What there are no two equal ones of: a copy is the thing itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Atom:
    """An integer that polynomials take as given.

    `kind` is "symbol", "div" (floor division), "mod" (Python's remainder), "max" or "min"; a
    divisor is never zero where the atom is used, because a guard says so. `hidden` atoms depend on
    symbols that only the engine knows."""

    __slots__ = (
        "_rank", "args", "atoms", "bounds", "bounds_at", "depth", "expr", "hidden", "hint", "id",
        "kind", "normal", "normal_at", "operands", "unbacked",
    )  # fmt: skip

    def __init__(self, number: int, kind: str, operands: tuple[Expr, ...], hint: int | None):
        self.id = number
        self.kind = kind
        self.operands = operands
        self.args: tuple[Size, ...] = tuple(plain(x) for x in operands)
        self.hint = hint
        self.unbacked: bool = any(x.unbacked for x in operands)
        self.hidden: bool = any(x.hidden for x in operands)
        self.depth = 1 + max((x.depth for x in operands), default=-1)
        # itself and all atoms within; their ids ascend from the inside out
        self.atoms: frozenset[Atom] = frozenset((self,)).union(*(x.atoms() for x in operands))
        self.normal_at = self.bounds_at = -1
        self.normal: Expr
        self.bounds: tuple[int | None, int | None]
        self._rank: tuple[Any, ...] | None = None
        self.expr: Expr  # see `Algebra.add_atom`

    def __repr__(self) -> str:
        return str(self.expr)

    def rank(self) -> tuple[Any, ...]:
        """An order that depends on what an atom is, not on when it was made: the work that
        questions cost, and with it the ids, differ from example to example."""
        if self._rank is None:
            parts = (x.rank() for x in self.operands)
            self._rank = (0, self.id) if self.kind == "symbol" else (1, self.kind, *parts)
        return self._rank


class Symbol(Atom):
    """A size or integer of the program. `lo` and `hi` are what is promised at birth; None is no
    bound."""

    __slots__ = ("declared", "hi", "lo", "name", "origin", "place", "root", "source")

    def __init__(
        self,
        number: int,
        name: str,
        *,
        hint: int | None,
        lo: int | None,
        hi: int | None,
        source: str | None = None,
        declared: str | None = None,
        origin: str | None = None,
        root: Symbol | None = None,
    ):
        self.name = name
        self.source = source or name
        self.lo, self.hi = lo, hi
        self.declared = declared
        self.origin = origin
        self.root = root
        self.place = -1
        """Among the symbols of the environment."""
        super().__init__(number, "symbol", (), hint)
        self.unbacked = hint is None
        self.hidden = root is not None


class Rule:
    """The rules of `Operators`, by number."""

    SUM, DIFFERENCE, PRODUCT, QUOTIENT, REMAINDER, AT_LEAST, MORE_THAN, EQUALITY = range(8)


def _make_operator(rule: int, swapped: bool = False) -> Callable[[Expr, Size], Size]:
    """What a rule gave once is looked up here, since that is the usual case."""

    def operate(self: Expr, other: Size) -> Size:
        operands = (other, self) if swapped else (self, other)
        if type(other) is int or type(other) is Expr:
            found: Size | None = self.env.operators.results[rule].get(operands)
            if found is not None:
                return found
        result: Size = self.env.operators.apply(rule, operands)
        return result

    return operate


_make_comparison = cast("Callable[..., Callable[[Expr, Size], Condition]]", _make_operator)


class Expr(Interned):
    """An integer expression. Operators give `int | Expr`: a plain int whenever the result is
    constant."""

    __slots__ = (
        "_atoms", "_symbols", "bounds", "bounds_at", "composite", "const", "current", "current_at",
        "depth", "env", "face", "form", "hidden", "hint", "id", "normal", "normal_at", "product",
        "terms", "unbacked",
    )  # fmt: skip

    def __init__(self, env: ShapeEnv, number: int, terms: Terms):
        self.env = env
        self.id = number
        self.terms = terms
        self.const: int | None = terms.get((), 0) if len(terms) <= (() in terms) else None
        composite = unbacked = hidden = False
        depth = 0
        for monomial in terms:  # in locals: a new expression is the engine's dearest step
            for atom in monomial:
                if atom.kind != "symbol":
                    composite = True
                    depth = max(depth, atom.depth)
                if atom.unbacked:
                    unbacked = True
                if atom.hidden:
                    hidden = True
        self.composite: bool = composite
        self.unbacked: bool = unbacked
        self.hidden: bool = hidden
        self.depth: int = depth
        self.hint = _value(terms)
        self.face: Any = None  # what a layer above shows for this expression
        self.form: Any = None  # what it has in common with others elsewhere, see `world.py`
        # two factors, where they were multiplied out: signs and ranges are hard to see afterwards
        self.product: tuple[Expr, Expr] | None = None
        self._atoms: frozenset[Atom] | None = None
        self._symbols: frozenset[Symbol] | None = None
        self.normal_at = self.current_at = self.bounds_at = -1
        self.normal: Expr
        self.current: Expr
        self.bounds: tuple[int | None, int | None]

    def rank(self) -> tuple[Any, ...]:
        return tuple(sorted((rank_of(m), k) for m, k in self.terms.items()))

    def atoms(self) -> frozenset[Atom]:
        """All atoms, also those within others."""
        if self._atoms is None:
            self._atoms = frozenset().union(*(a.atoms for m in self.terms for a in m))
        return self._atoms

    def symbols(self) -> frozenset[Symbol]:
        if self._symbols is None:
            self._symbols = frozenset(a for a in self.atoms() if isinstance(a, Symbol))
        return self._symbols

    # ---- polynomials

    def add(self, other: Expr, times: int = 1) -> Expr:
        """`self + other*times`, for 1 or -1 times."""
        terms = combine(self.terms, 1, other.terms, times)
        if self.composite and other.composite:
            return self.env.rules.settle(terms)
        return self.env.algebra.make(terms)

    def subtract(self, other: Expr) -> Expr:
        return self.add(other, -1)

    def shift(self, n: int) -> Expr:
        """`self + n`"""
        return self.env.algebra.make(combine(self.terms, 1, {(): n}, 1)) if n else self

    def scale(self, n: int) -> Expr:
        """`self * n`"""
        if n == 1:
            return self
        terms = {m: c * n for m, c in self.terms.items()} if n else {}
        if not self.composite or n == -1:
            return self.env.algebra.make(terms)
        result = self.env.rules.settle(terms)
        if len(terms) > 1 and result.product is None:
            result.product = self.env.algebra.make_constant(n), self
        return result

    def multiply(self, other: Expr) -> Expr:
        if self.const is not None:
            return other.scale(self.const)
        if other.const is not None:
            return self.scale(other.const)
        env = self.env
        if len(self.terms) * len(other.terms) > MAX_PRODUCT:
            a, b = sorted((self, other), key=lambda e: (len(e.terms), e.id))
            a = env.algebra.fold(a) if len(a.terms) > MAX_PRODUCT else a
            return a.multiply(env.algebra.fold(b))
        terms = multiply(self.terms, other.terms)
        composite = self.composite or other.composite
        result = env.rules.settle(terms) if composite else env.algebra.make(terms)
        if len(terms) > 1 and result.product is None:
            result.product = self, other
        return result

    def drop_term(self, monomial: Monomial, times: int = 1) -> Expr:
        """All but one term, each multiplied by `times`."""
        left = {m: c * times for m, c in self.terms.items() if m != monomial}
        return self.env.algebra.make(left)

    def divide_terms(self, factor: int, monomial: Monomial) -> Expr:
        """Each term divided by what is known to divide it."""
        terms: Terms = {}
        for m, c in self.terms.items():
            rest = divide_monomial(m, monomial)
            assert rest is not None
            terms[rest] = c // factor
        return self.env.algebra.make(terms)

    def unit_atoms(self, *kinds: str) -> Iterator[tuple[Atom, int]]:
        """Each atom of these kinds that stands alone in a term, with 1 or -1."""
        for monomial, sign in self.terms.items():
            if len(monomial) == 1 and abs(sign) == 1 and monomial[0].kind in kinds:
                yield monomial[0], sign

    def factors(self) -> list[Expr]:
        """The atoms that every term shares, and what remains; nothing if this is no product."""
        _, common = common_factor(self.terms)
        if not common or (len(common) == 1 and len(self.terms) == 1):
            return []
        rest = self.divide_terms(1, common)
        atoms = [a.expr for a in dict.fromkeys(common)]
        return atoms if rest.const is not None else [*atoms, rest]

    # ---- Python's operators

    __add__ = __radd__ = _make_operator(Rule.SUM)
    __sub__ = _make_operator(Rule.DIFFERENCE)
    __rsub__ = _make_operator(Rule.DIFFERENCE, swapped=True)
    __mul__ = __rmul__ = _make_operator(Rule.PRODUCT)
    __floordiv__ = _make_operator(Rule.QUOTIENT)
    __rfloordiv__ = _make_operator(Rule.QUOTIENT, swapped=True)
    __mod__ = _make_operator(Rule.REMAINDER)
    __rmod__ = _make_operator(Rule.REMAINDER, swapped=True)
    __ge__ = _make_comparison(Rule.AT_LEAST)
    __le__ = _make_comparison(Rule.AT_LEAST, swapped=True)
    __gt__ = _make_comparison(Rule.MORE_THAN)
    __lt__ = _make_comparison(Rule.MORE_THAN, swapped=True)

    def __neg__(self) -> Size:
        return self * -1

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the truth of {self} is a question: ask decide(ne(e, 0)) or known(ne(e, 0))"
        )

    def __int__(self) -> NoReturn:
        raise TypeError(
            f"{self} is symbolic: specialize(e) makes it an int, at the price of a guard"
        )

    __index__ = __int__

    def __str__(self) -> str:
        return self.env.show(self)


class BoolExpr(Interned):
    """A condition: `poly == 0` ("eq"), `poly != 0` ("ne"), `poly >= 0` ("ge"), or "and"/"or" of
    `args`."""

    __slots__ = (
        "_atoms", "_rank", "args", "asked_at", "depth", "env", "face", "hint", "id", "kind",
        "poly", "unbacked",
    )  # fmt: skip

    def __init__(
        self, env: ShapeEnv, number: int, kind: str, poly: Expr, args: tuple[BoolExpr, ...]
    ):
        self.env = env
        self.id = number
        self.kind = kind
        self.poly = poly  # of "and" and "or": zero
        self.args = args
        self.unbacked: bool = poly.unbacked or any(x.unbacked for x in args)
        self.depth: int = 1 + max((x.depth for x in args), default=-1)
        self.hint = self._hint()
        self.asked_at = -1
        self.face: Any = None  # what a layer above shows for this condition
        self._atoms: frozenset[Atom] | None = None
        self._rank: tuple[Any, ...] | None = None

    def _hint(self) -> bool | None:
        if not self.args:
            value = self.poly.hint
            return None if value is None else holds(self.kind, value)
        hints = [x.hint for x in self.args]
        ends = self.kind == "or"  # the value of one part that settles the whole
        return ends if ends in hints else None if None in hints else not ends

    def atoms(self) -> frozenset[Atom]:
        if self._atoms is None:
            self._atoms = self.poly.atoms().union(*(x.atoms() for x in self.args))
        return self._atoms

    def rank(self) -> tuple[Any, ...]:
        """An order that depends on what a condition says, not on when it was made."""
        if self._rank is None:
            terms = self.poly.terms
            of = sorted((rank_of(m), k) for m, k in terms.items() if m)
            of[:1] = [(m, -k) for m, k in of[:1]]  # `n >= 4 and n <= 5`
            parts = (x.rank() for x in self.args)
            self._rank = (bool(self.args), tuple(of), -terms.get((), 0), self.kind, *parts)
        return self._rank

    def symbols(self) -> frozenset[Symbol]:
        return frozenset(a for a in self.atoms() if isinstance(a, Symbol))

    def __and__(self, other: Condition) -> Condition:
        return self.env.conditions.all_of((self, other))

    def __or__(self, other: Condition) -> Condition:
        return self.env.conditions.any_of((self, other))

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Condition:
        return self.env.conditions.negate(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"`{self}` is a question: decide(b) answers it, known(b) only if it is certain"
        )

    def __str__(self) -> str:
        return self.env.show(self)


def rank_of(monomial: Monomial) -> tuple[Any, ...]:
    return tuple(sorted(atom.rank() for atom in monomial))


def find_atom(monomial: Monomial, kind: str) -> Atom | None:
    """The one atom of a monomial, if it has this kind."""
    return monomial[0] if len(monomial) == 1 and monomial[0].kind == kind else None


def find_only_atom(terms: Terms, kind: str) -> Atom | None:
    """The atom that these terms are, if it has this kind."""
    if len(terms) != 1:
        return None
    ((monomial, coefficient),) = terms.items()
    return find_atom(monomial, kind) if coefficient == 1 else None


# ------------------------------------------------------------------------------------------- values


def plain(e: Expr) -> Size:
    return e if e.const is None else e.const


_MEANINGS: dict[str, Callable[..., int]] = {"div": floordiv, "mod": mod, "max": max, "min": min}


def apply(kind: str, values: list[int]) -> int:
    """What an atom of this kind means."""
    return _MEANINGS[kind](*values)


def holds(kind: str, value: int) -> bool:
    """What a condition of this kind says of its polynomial's value."""
    return value == 0 if kind == "eq" else value != 0 if kind == "ne" else value >= 0


def _value(terms: Terms) -> int | None:
    total = 0
    for monomial, product in terms.items():
        for atom in monomial:
            if atom.hint is None:
                return None
            product *= atom.hint
        total += product
    return total


def evaluate(e: Size | Condition, values: Mapping[Symbol, int]) -> int:
    """The value of an expression or condition (0 or 1) where the symbols have `values`."""
    if isinstance(e, int):
        return e
    known: dict[Atom, int] = {}

    def poly(x: Expr) -> int:
        total = 0
        for monomial, product in x.terms.items():
            for atom in monomial:
                product *= known[atom]
            total += product
        return total

    def condition(b: BoolExpr) -> bool:
        if not b.args:
            return holds(b.kind, poly(b.poly))
        return (all if b.kind == "and" else any)(condition(x) for x in b.args)

    for atom in sorted(e.atoms(), key=_by_id):  # the inner ones are older: no recursion
        if isinstance(atom, Symbol):
            known[atom] = values[atom]
        else:
            known[atom] = apply(atom.kind, [poly(x) for x in atom.operands])
    return poly(e) if isinstance(e, Expr) else condition(e)


# ----------------------------------------------------------------- what Python has no operators for


def eq(a: Size, b: Size) -> Condition:
    """`a == b` as a condition; a bool when it is certain by structure."""
    if type(a) is Expr:
        return a.env.operators.equate(a, b)
    if type(b) is Expr:
        return b.env.operators.equate(b, a)
    return bool(a == b)


def ne(a: Size, b: Size) -> Condition:
    return negate(eq(a, b))


def negate(b: Condition) -> Condition:
    """`not b`. Unlike `~b`, also right for a plain bool."""
    return b.env.conditions.negate(b) if type(b) is BoolExpr else not b


def maximum(*sizes: Size) -> Size:
    return _extremum("max", sizes)


def minimum(*sizes: Size) -> Size:
    return _extremum("min", sizes)


def _extremum(kind: str, sizes: tuple[Size, ...]) -> Size:
    for size in sizes:
        if type(size) is Expr:
            return size.env.operators.find_extremum(kind, sizes)
    return max(sizes) if kind == "max" else min(sizes)


def ceildiv(a: Size, b: Size) -> Size:
    """`a / b` rounded up."""
    return -(-a // b)


def quotient(a: Size, b: Size) -> Size | None:
    """The exact quotient where `a` is `b` times something by structure alone; no guard, no fact."""
    env = a.env if isinstance(a, Expr) else b.env if isinstance(b, Expr) else None
    if env is None:
        return a // b if b and not a % b else None
    return env.operators.divide_exactly(a, b)
