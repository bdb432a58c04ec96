"""Nodes for symbolic numbers: sizes, conditions and floats that the program must compute.

A capture records no arithmetic on symbols. When an operator takes an expression as its argument,
the nodes that compute it from sizes and items are made here, in canonical form, each once. Must not
insert nodes itself: the writer of the graph does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx

from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.sym import Atom, BoolExpr, Expr, Symbol, current, maximum, minimum, negate
from lostwax.sym.expressions.expr import rank_of
from lostwax.sym.numbers.real import MATH, Definition, Real, current_real, definition

_ATOMS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "div": (operator.floordiv, operator.floordiv),
    "mod": (operator.mod, operator.mod),
    "max": (torch.sym_max, maximum),
    "min": (torch.sym_min, minimum),
}
_COMPARISONS = {"ge": operator.ge, "eq": operator.eq, "ne": operator.ne}
_REALS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "neg": operator.neg,
    "abs": operator.abs,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    **{name: getattr(torch, f"_sym_{name}") for name in MATH},
}


def simplify_number(value: Any) -> Any:
    """Simplify a number with all that the trace has learned so far."""
    if isinstance(value, Expr):
        return current(value)
    return current_real(value) if isinstance(value, Real) else value


_TRUTHS = ("<", "<=", ">", ">=", "==", "is_integer")


class SymbolOrigin(NamedTuple):
    """Where the program reads a symbol's value. The number there is `scale * symbol + offset`."""

    value: Any
    """A tensor or a number, as the writer of the graph represents it."""
    dim: int | None
    """The dimension of the tensor; None if the number is its only element, or the input itself."""
    scale: int = 1
    offset: int = 0

    @property
    def is_plain(self) -> bool:
        """Is the number the symbol itself?"""
        return (self.scale, self.offset) == (1, 0)


def solve_size(size: Expr, value: Any, dim: int) -> tuple[Symbol, SymbolOrigin] | None:
    """Return the symbol whose value follows from this size of a tensor, and its origin; None if no
    symbol's value does."""
    symbols = size.symbols()
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    scale, offset = size.terms.get((symbol,), 0), size.terms.get((), 0)
    if not scale or len(size.terms) != 1 + (offset != 0):
        return None
    return symbol, SymbolOrigin(value, dim, scale, offset)


SymbolOrigins = Mapping[Any, SymbolOrigin]
"""The origins of symbols, and of floats that are inputs."""


def number_sources(value: Any) -> Iterator[Any]:
    """The symbols and floats from which a number is computed in the end."""
    if isinstance(value, Real):
        if value.op == "symbol":
            yield value
            return
        for part in value.args:
            yield from number_sources(part)
    elif isinstance(value, (Expr, BoolExpr)):
        for symbol in sorted(value.symbols(), key=lambda s: s.id):
            made_of = definition(symbol)
            if made_of is None:
                yield symbol
            else:
                for part in made_of.args:
                    yield from number_sources(part)


def _float_comparison(b: BoolExpr) -> tuple[Definition, bool] | None:
    """If a condition is a comparison of floats, or its negation, return the comparison and whether
    it is not negated."""
    terms = b.poly.terms if not b.args and b.kind in ("eq", "ne") else {}
    monomials = [m for m in terms if m]
    if len(monomials) != 1 or len(monomials[0]) != 1 or not isinstance(monomials[0][0], Symbol):
        return None
    what = definition(monomials[0][0])
    if what is None or what.op not in _TRUTHS:
        return None
    factor, constant = terms[monomials[0]], terms.get((), 0)
    if constant == 0:
        return what, b.kind == "ne"
    return (what, b.kind == "eq") if factor == -constant else None


class Numbers:
    """The nodes of one graph that compute numbers.

    `call` inserts a call; `read` inserts the node that reads a size or an item.
    """

    def __init__(
        self,
        call: Callable[[Any, tuple[Any, ...]], fx.Node],
        read: Callable[[SymbolOrigin], Any],
        origins: SymbolOrigins,
    ) -> None:
        self._call = call
        self._read = read
        self._origins = origins
        self._made: dict[Any, Any] = {}

    def node(self, value: Any) -> Any:
        """Return the node that computes a symbolic number; a plain number is returned as it is.

        The number is not simplified with guards that were learned since: an assertion would then
        assert what follows from itself. Operands go through `simplify_number` first.
        """
        if not isinstance(value, (Expr, BoolExpr, Real)):
            return value
        found = self._made.get(value)
        if found is None:
            found = self._made[value] = self._compute(value)
        return found

    def _compute(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self._sum(value)
        return self._condition(value) if isinstance(value, BoolExpr) else self._real(value)

    def _apply(self, target: Any, operands: tuple[Any, ...], value: Any) -> fx.Node:
        """Call a target that computes `value`."""
        node = self._call(target, operands)
        node.meta["val"] = wrap(value)
        return node

    def _sum(self, e: Expr) -> Any:
        """Add the terms one by one, the constant last, in the same order for every example."""
        total: Any = None
        so_far: dict[tuple[Atom, ...], int] = {}
        for monomial in sorted(e.terms, key=lambda m: (not m, rank_of(m))):
            coefficient = so_far[monomial] = e.terms[monomial]
            term = self._product(e.env, monomial, coefficient)
            if total is None:
                total = term
            else:
                total = self._apply(operator.add, (total, term), e.env.make(dict(so_far)))
        return total

    def _product(self, env: Any, monomial: tuple[Atom, ...], coefficient: int) -> Any:
        if not monomial:
            return coefficient
        first, *others = sorted(monomial, key=Atom.rank)
        node, so_far = self._atom(first), [first]
        for atom in others:
            so_far.append(atom)
            value = env.make({tuple(sorted(so_far, key=attrgetter("id"))): 1})
            node = self._apply(operator.mul, (node, self._atom(atom)), value)
        if coefficient == 1:
            return node
        return self._apply(operator.mul, (node, coefficient), env.make({monomial: coefficient}))

    def _condition(self, b: BoolExpr) -> Any:
        compared = _float_comparison(b)
        if compared is not None:
            what, is_so = compared
            node = self._compute_defined(what, b if is_so else negate(b))
            return node if is_so else self._apply(torch.sym_not, (node,), b)
        if b.args:
            target = operator.and_ if b.kind == "and" else operator.or_
            node, so_far = self.node(b.args[0]), b.args[0]
            for other in b.args[1:]:
                so_far = target(so_far, other)
                node = self._apply(target, (node, self.node(other)), so_far)
            return node
        constant = b.poly.terms.get((), 0)
        left = {m: c for m, c in b.poly.terms.items() if m}
        compare: Any = _COMPARISONS[b.kind]
        if all(c < 0 for c in left.values()):  # 5 - s >= 0 reads s <= 5
            left, constant = {m: -c for m, c in left.items()}, -constant
            compare = operator.le if b.kind == "ge" else compare
        return self._apply(compare, (self.node(b.env.make(left)), -constant), b)

    def _atom(self, atom: Atom) -> Any:
        found = self._made.get(atom.expr)
        if found is None:
            found = self._symbol(atom) if isinstance(atom, Symbol) else self._composite(atom)
            self._made[atom.expr] = found
        return found

    def _composite(self, atom: Atom) -> Any:
        target, compute = _ATOMS[atom.kind]
        node, so_far = self.node(atom.args[0]), atom.args[0]
        for i, other in enumerate(atom.args[1:], 2):
            so_far = atom.expr if i == len(atom.args) else compute(so_far, other)
            node = self._apply(target, (node, self.node(other)), so_far)
        return node

    def _symbol(self, symbol: Symbol) -> Any:
        origin = self._origins.get(symbol)
        if origin is not None:
            return self._solve_symbol(symbol.expr, origin)
        made_of = definition(symbol)
        if made_of is None:
            raise _missing_number(symbol)
        return self._compute_defined(made_of, symbol.expr)

    def _compute_defined(self, what: Definition, value: Any) -> fx.Node:
        """Compute an integer, or a condition, that is defined by floats."""
        operands = tuple(self.node(a) for a in what.args)
        if what.op != "is_integer":
            return self._apply(_REALS[what.op], operands, value)
        whole = self._apply(operator.floordiv, (*operands, 1.0), what.args[0] // 1.0)
        return self._apply(operator.eq, (whole, *operands), value)

    def _solve_symbol(self, e: Expr, origin: SymbolOrigin) -> Any:
        """Compute a symbol from the number at its origin."""
        node = self._read(origin)
        # A number from data keeps its symbol here, whatever is known of it by now: else the graph
        # would use the symbol and nothing would define it.
        stands: Any = e if e.unbacked and origin.is_plain else e * origin.scale + origin.offset
        node.meta["val"] = wrap(stands)
        if origin.offset:
            stands = e * origin.scale
            node = self._apply(operator.sub, (node, origin.offset), stands)
        return (
            node if origin.scale == 1 else self._apply(operator.floordiv, (node, origin.scale), e)
        )

    def _real(self, r: Real) -> Any:
        if r.op == "symbol":
            origin = self._origins.get(r)
            if origin is None:
                raise CaptureError(f"the program needs the number {r}, and nothing in it gives it")
            node = self._read(origin)
            node.meta["val"] = wrap(r)
            return node
        if r.op == "round" and len(r.args) == 2:  # Python takes an int here
            return self._apply(round, (self.node(r.args[0]), int(r.args[1])), r)
        if not r.is_ratio:
            return self._apply(_REALS[r.op], tuple(self.node(a) for a in r.args), r)
        above = self.node(r.above)
        if r.below == 1:
            return self._apply(torch.sym_float, (above,), r)
        return self._apply(operator.truediv, (above, self.node(r.below)), r)


def _missing_number(symbol: Symbol) -> CaptureError:
    name, of, _ = symbol.source.partition(".stride(")
    if of:
        return CaptureError(
            f"the program needs {symbol.source}, and programs are not told strides that vary.\n"
            f"  why: the input {name} has gaps in memory, is written to or read by strides, and "
            "its sizes vary\n"
            f"  instead: give an example without gaps, {name}.contiguous(), or work on a copy, "
            f"{name}.clone(memory_format=torch.contiguous_format)"
        )
    origin = f"\n  {symbol.name} comes from {symbol.origin}" if symbol.origin else ""
    return CaptureError(
        f"the program needs the number {symbol.name}, and nothing in it gives its value.{origin}\n"
        "  why: no result has it as a size, or a multiple of it, and it is no result itself\n"
        "  instead: let the operator that it comes from return it, or a tensor with that size"
    )


class SeenNumbers(Numbers):
    """The numbers of a graph that is written node by node. A number that an earlier node gives is
    used, not computed again."""

    def __init__(self, call: Callable[[Any, tuple[Any, ...]], fx.Node]) -> None:
        self._sizes: dict[Any, SymbolOrigin] = {}
        super().__init__(call, self._read_size, self._sizes)

    def note(self, node: fx.Node, value: Any) -> None:
        """Note that the graph now has this node, with this value."""
        if isinstance(value, FakeTensor):
            if value.fake_type.is_symbolic:
                for d, size in enumerate(value.fake_type.size):
                    if isinstance(size, Expr):
                        self._note_size(node, d, size)
        elif isinstance(value, SYMBOLIC):
            number = unwrap(value)
            if isinstance(number, (Expr, BoolExpr, Real)):
                self._made.setdefault(number, node)

    def _note_size(self, node: fx.Node, d: int, size: Expr) -> None:
        found = solve_size(size, node, d)
        if found is not None:
            symbol, origin = found
            before = self._sizes.get(symbol)
            if before is None or (origin.is_plain and not before.is_plain):
                self._sizes[symbol] = origin

    def _read_size(self, origin: SymbolOrigin) -> fx.Node:
        return self._call(torch.ops.aten.sym_size.int, (origin.value, origin.dim))

    def is_known(self, number: Any) -> bool:
        """Can the graph compute this number?"""
        return number in self._made or all(s in self._sizes for s in number_sources(number))
