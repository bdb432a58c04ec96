"""The nodes of a graph that compute symbolic numbers: found, or made, in canonical form and shared.

A graph that grows in order tells `Numbers` of each node; asked for an expression, it gives a node
that computes it from the sizes and numbers seen so far. Must not ask questions that cost guards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from lostwax.errors import LostwaxError
from lostwax.fake.symnode import unwrap, wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.sym import Atom, BoolExpr, Expr, Symbol
from lostwax.sym.real import Real

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_ARITHMETIC = {
    "div": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}
_COMPARISONS = {"ge": operator.ge, "eq": operator.eq, "ne": operator.ne}
_ON_FLOATS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "neg": operator.neg,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "sqrt": torch._sym_sqrt,  # type: ignore[attr-defined]
}
Make = Callable[[Any, tuple[Any, ...]], Node]


class NotComputable(LostwaxError):
    """No node of the graph tells this number."""


class Numbers:
    """The symbolic numbers of one graph. `make(target, args)` appends a call to it."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._nodes: dict[Any, Node] = {}
        self._sizes: dict[Symbol, tuple[Node, int, Expr]] = {}

    def note(self, node: Node, value: Any) -> None:
        """The graph has this node, and its value is this."""
        if isinstance(value, FakeTensor):
            t = value.fake_type
            if t.is_symbolic:
                for d, size in enumerate(t.size):
                    if isinstance(size, Expr):
                        self._note_size(node, d, size)
        elif isinstance(value, _SYMBOLIC):
            self._nodes.setdefault(unwrap(value), node)

    def _note_size(self, node: Node, d: int, size: Expr) -> None:
        symbols = size.symbols()
        if len(symbols) != 1:
            return
        (symbol,) = symbols
        before = self._sizes.get(symbol)
        if before is None or (size is symbol.expr and before[2] is not size):
            self._sizes[symbol] = (node, d, size)

    def node(self, value: Any) -> Any:
        """The node that computes a symbolic number; a plain one is itself."""
        if not isinstance(value, (Expr, BoolExpr, Real)):
            return value
        found = self._nodes.get(value)
        if found is None:
            found = self._nodes[value] = self._computed(value)
            if isinstance(found, Node):
                found.meta["val"] = wrap(value)
        return found

    def _computed(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self._sum(value)
        if isinstance(value, BoolExpr):
            return self._condition(value)
        return self._real(value)

    def _sum(self, e: Expr) -> Any:
        total: Any = None
        for monomial, coefficient in e.terms.items():
            term: Any = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self._call(operator.mul, term, factor)
            if term is None:
                term = coefficient
            elif coefficient != 1:
                term = self._call(operator.mul, term, coefficient)
            total = term if total is None else self._call(operator.add, total, term)
        return total

    def _condition(self, b: BoolExpr) -> Any:
        if not b.args:
            return self._call(_COMPARISONS[b.kind], self.node(b.poly), 0)
        target = operator.and_ if b.kind == "and" else operator.or_
        node = self.node(b.args[0])
        for other in b.args[1:]:
            node = self._call(target, node, self.node(other))
        return node

    def _real(self, r: Real) -> Any:
        if r.op == "ratio":
            return self._call(operator.truediv, self.node(r.above), self.node(r.below))
        target = _ON_FLOATS.get(r.op)
        if target is None:
            raise NotComputable(f"`{r}` cannot be computed by nodes")
        return self._call(target, *[self.node(a) for a in r.args])

    def _atom(self, atom: Atom) -> Any:
        found = self._nodes.get(atom.expr)
        if found is not None:
            return found
        if isinstance(atom, Symbol):
            node = self._symbol(atom)
        else:
            target = _ARITHMETIC[atom.kind]
            operands = [self.node(a) for a in atom.args]
            node = operands[0]
            for other in operands[1:]:
                node = self._call(target, node, other)
        node.meta["val"] = wrap(atom.expr)
        self._nodes[atom.expr] = node
        return node

    def _symbol(self, symbol: Symbol) -> Node:
        origin = self._sizes.get(symbol)
        if origin is None:
            raise NotComputable(f"nothing before this node gives the number {symbol.name}")
        tensor, d, size = origin
        node = self._nodes.get(size)
        if node is None:
            node = self._make(torch.ops.aten.sym_size.int, (tensor, d))
            node.meta["val"] = wrap(size)
            self._nodes[size] = node
        return node if size is symbol.expr else self._solved(symbol, size, node)

    def _solved(self, symbol: Symbol, size: Expr, node: Node) -> Node:
        """The symbol from a size that is a multiple of it, and a constant more."""
        factor, constant = size.terms.get((symbol,), 0), size.terms.get((), 0)
        if not factor or len(size.terms) != 1 + (constant != 0):
            raise NotComputable(f"{symbol.name} cannot be computed from a size {size}")
        if constant:
            node = self._call(operator.sub, node, constant)
        return node if factor == 1 else self._call(operator.floordiv, node, factor)

    def _call(self, target: Any, *args: Any) -> Any:
        if not any(isinstance(a, Node) for a in args):
            return target(*args)
        node = self._make(target, args)
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        node.meta["val"] = target(*values)
        return node
