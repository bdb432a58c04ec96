"""lostwax's FakeTensorMode behind the `Fakes` protocol, with symbols where they are asked for.

Expressions are evaluated here by their definition, not by the engine that simplified them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod
from typing import Any

from torch import Tensor

from lostwax.errors import LostwaxError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor
from lostwax.sym import BoolExpr, Expr, ShapeEnv
from lostwax.sym.numbers.real import complete_values, definition
from tests.ops.conformance import Seen

SEARCHED = 50  # values of an unbacked symbol that are tried, either side of 0


class OurFakes:
    refusals = (LostwaxError,)

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.symbols: dict[Any, int] = {}
        """The symbols that were given out, each with its hint."""

    def running(self) -> AbstractContextManager[Any]:
        return self.mode

    def fake(self, t: Tensor) -> Any:
        return self.mode.from_tensor(t, static_shapes=True)

    def symbolic(self, t: Tensor) -> Any:
        """The fake of a real tensor with a symbol for each size."""
        fake = self.mode.from_tensor(t, static_shapes=False)
        for size in fake.fake_type.size:
            if isinstance(size, Expr):
                (symbol,) = size.symbols()
                self.symbols[symbol] = symbol.hint
        return fake

    def seen(self, t: Any) -> Seen | str:
        if type(t) is not FakeTensor:
            return f"eager a tensor, fake {type(t).__name__}"
        y = t.fake_type
        if not y.is_symbolic:
            shown = (tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device)
            if shown != (y.size, y.stride, y.offset, y.dtype, y.device):
                return f"type {y} {y.stride} is not what torch sees: {shown}"
        storage = id(t.fake_storage)
        return Seen(y.size, y.stride, y.offset, y.dtype, y.device, y.layout, storage)

    def read(self, size: Any, binding: dict[Any, int], want: int) -> int | None:
        if isinstance(size, int):
            return size
        free = [s for s in size.symbols() if s not in binding and not definition(s)]
        if len(free) == 1:
            self._bind(free[0], size, binding, want)
        return value(size, binding)

    def _bind(self, symbol: Any, size: Expr, binding: dict[Any, int], want: int) -> None:
        """Give the symbol a value within its bounds at which the size is what eager found."""
        lo, hi = self.env.bounds(symbol.expr)
        likely = (want,) if size is symbol.expr else sorted(range(-SEARCHED, SEARCHED), key=abs)
        for n in likely:
            admitted = (lo is None or lo <= n) and (hi is None or n <= hi)
            if admitted and value(size, {**binding, symbol: n}) == want:
                binding[symbol] = n
                return

    def holds(self, binding: dict[Any, int]) -> bool:
        """Do these sizes satisfy every guard? Assertions on data are not asked."""
        return all(truth(g.cond, binding) is not False for g in self.env.guards)

    def guards(self) -> list[str]:
        return [str(g.cond) for g in self.env.guards]


def value(e: Any, at: dict[Any, int]) -> int | None:
    """An expression at these values of its symbols; None if one is missing or a divisor is 0."""
    if isinstance(e, int):
        return e
    total = 0
    for monomial, coefficient in e.terms.items():
        factors = [_atom(a, at) for a in monomial]
        if None in factors:
            return None
        total += coefficient * prod(factors)  # type: ignore[arg-type]
    return total


def _atom(atom: Any, at: dict[Any, int]) -> int | None:
    if atom.kind == "symbol":
        return _defined(atom, at) if definition(atom) else at.get(atom)
    args = [value(x, at) for x in atom.args]
    if None in args:
        return None
    if atom.kind in ("div", "mod"):
        n, d = args
        if d == 0:
            return None
        return n // d if atom.kind == "div" else n % d  # type: ignore[operator]
    return (max if atom.kind == "max" else min)(args)  # type: ignore[type-var]


def _defined(symbol: Any, at: dict[Any, int]) -> int | None:
    """An integer that came out of floats."""
    try:
        return complete_values(at, [symbol])[symbol]
    except (ZeroDivisionError, KeyError):
        return None


def truth(c: bool | BoolExpr, at: dict[Any, int]) -> bool | None:
    """A condition at these values; None if it cannot be told."""
    if isinstance(c, bool):
        return c
    if c.kind in ("and", "or"):
        parts = [truth(p, at) for p in c.args]
        decisive = c.kind == "or"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    n = value(c.poly, at)
    if n is None:
        return None
    return {"eq": n == 0, "ne": n != 0, "ge": n >= 0}[c.kind]
