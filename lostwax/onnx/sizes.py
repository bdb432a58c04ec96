"""Sizes that vary, as nodes: one `Shape` for each dim that is asked for, and arithmetic on these,
each expression once.

Must not know what the sizes are used for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch

from lostwax.ir.graph.numbers import solve_size
from lostwax.onnx.table import NotWritten
from lostwax.onnx.values import OnnxTensor
from lostwax.sym import Atom, BoolExpr, Expr, Size, Symbol, known


class On(Protocol):
    """What is asked of the `OnnxWriter`, which has one of these for each graph."""

    def ints(self, *numbers: int) -> OnnxTensor: ...
    def constant(self, data: Any, dtype: torch.dtype | None = None) -> OnnxTensor: ...
    def scalar(self, n: Size) -> OnnxTensor: ...
    def __getattr__(self, op: str) -> Callable[..., OnnxTensor]: ...


class SizeWriter:
    """The sizes that one graph can compute; those of the graphs around it, too."""

    def __init__(self, parent: SizeWriter | None = None) -> None:
        self.parent = parent
        self.written: dict[Expr, OnnxTensor] = {}
        """Numbers that are there: tensors of one element."""
        self.dims: dict[Expr, tuple[OnnxTensor, int]] = {}
        """Where an expression is a size of a tensor."""
        self.shapes: dict[tuple[Size, ...], OnnxTensor] = {}
        """Tensors by all their sizes."""
        self.solved: dict[Symbol, tuple[OnnxTensor, int, int, int]] = {}
        """Sizes from which symbols follow: `scale * symbol + offset`."""
        self.bound: set[Symbol] = set()
        """What has a value of its own here."""

    def note(self, x: OnnxTensor) -> None:
        """From now on the sizes of this tensor can be read."""
        sizes = x.size
        if not any(isinstance(n, Expr) for n in sizes):
            return
        self.shapes.setdefault(sizes, x)
        for d, n in enumerate(sizes):
            if isinstance(n, Expr) and n not in self.dims:
                self.dims[n] = (x, d)
                found = solve_size(n, x, d)
                if found is not None and found[0] not in self.solved:
                    self.solved[found[0]] = (x, d, found[1].scale, found[1].offset)

    def knows(self, n: Any) -> bool:
        """Can this number be computed?"""
        if not isinstance(n, Expr) or self._find("written", n) or self._find("dims", n):
            return True
        return all(
            self._find("written", s.expr) or self._find("solved", s) or self._find("dims", s.expr)
            for s in n.symbols()
        )

    def bind(self, x: OnnxTensor) -> None:
        """Sizes of an input of this graph: in the next turn of a loop they are others, so what is
        known of them outside does not hold here."""
        for n in x.size:
            found = solve_size(n, x, 0) if isinstance(n, Expr) and n.unbacked else None
            if found is not None:
                self.bound.add(found[0])
        self.note(x)

    def bind_number(self, number: Expr, made: OnnxTensor) -> None:
        """The same for a number."""
        self.bound.update(number.symbols() if len(number.atoms()) == 1 else ())
        self.written[number] = made

    def _find(self, table: str, key: Any) -> Any:
        here: SizeWriter | None = self
        while here is not None:
            found = getattr(here, table).get(key)
            if found is not None or (here.bound and not here.bound.isdisjoint(_symbols_of(key))):
                return found
            here = here.parent
        return None

    # ---- lists

    def write_list(self, on: On, sizes: tuple[Size, ...]) -> OnnxTensor:
        fixed = [n for n in sizes if isinstance(n, int)]
        if len(fixed) == len(sizes):
            return on.ints(*fixed)
        whole = self._find("shapes", sizes)
        if whole is not None:
            made: OnnxTensor = on.Shape(whole)
            return made
        parts: list[OnnxTensor] = []
        plain: list[int] = []
        for n in sizes:
            if isinstance(n, int):
                plain.append(n)
                continue
            parts += [on.ints(*plain)] if plain else []
            parts.append(self.write(on, n))
            plain = []
        parts += [on.ints(*plain)] if plain else []
        joined: OnnxTensor = parts[0] if len(parts) == 1 else on.Concat(*parts, axis=0)
        return joined

    # ---- single sizes

    def write(self, on: On, n: Size) -> OnnxTensor:
        if isinstance(n, int):
            return on.ints(n)
        found: OnnxTensor | None = self._find("written", n)
        if found is None:
            found = self.written[n] = self._compute(on, n)
        return found

    def _compute(self, on: On, n: Expr) -> OnnxTensor:
        at = self._find("dims", n)
        if at is not None:
            x, d = at
            made: OnnxTensor = on.Shape(x, start=d, end=d + 1)
            return made
        total: OnnxTensor | None = None
        for monomial, times in sorted(n.terms.items(), key=_rank_term):
            term = self._write_term(on, monomial, abs(times))
            if total is None:
                total = term if times > 0 else on.Neg(term)
            else:
                total = on.Add(total, term) if times > 0 else on.Sub(total, term)
        assert total is not None
        return total

    def _write_term(self, on: On, monomial: tuple[Atom, ...], times: int) -> OnnxTensor:
        made: OnnxTensor | None = None
        for atom, power in sorted(Counter(monomial).items(), key=lambda item: item[0].rank()):
            for _ in range(power):
                factor = self._write_atom(on, atom)
                made = factor if made is None else on.Mul(made, factor)
        if made is None:
            return on.ints(times)
        return made if times == 1 else on.Mul(made, on.ints(times))

    def _write_atom(self, on: On, atom: Atom) -> OnnxTensor:
        found: OnnxTensor | None = self._find("written", atom.expr)
        if found is None:
            if isinstance(atom, Symbol):
                found = self._write_symbol(on, atom)
            else:
                parts = [self.write(on, each) for each in atom.args]
                found = self._apply(on, atom, parts)
            self.written[atom.expr] = found
        return found

    def _write_symbol(self, on: On, symbol: Symbol) -> OnnxTensor:
        if symbol.expr in self.dims or self._find("dims", symbol.expr):
            return self._compute(on, symbol.expr)
        origin = self._find("solved", symbol)
        if origin is None:
            raise NotWritten(
                f"the number {symbol.name} is needed, and no tensor has it as a size",
                "return what it comes from, or a tensor with that size",
            )
        x, d, scale, offset = origin
        made: OnnxTensor = on.Shape(x, start=d, end=d + 1)
        made = on.Sub(made, on.ints(offset)) if offset else made
        return on.Div(made, on.ints(scale)) if scale != 1 else made

    def _apply(self, on: On, atom: Atom, parts: list[OnnxTensor]) -> OnnxTensor:
        if atom.kind == "mod":  # of integers it has the sign of the divisor, as in Python
            made: OnnxTensor = on.Mod(*parts)
            return made
        if atom.kind in ("max", "min"):
            return on.Max(*parts) if atom.kind == "max" else on.Min(*parts)
        a, b = atom.args
        above, below = parts
        if known(a >= 0) is not True or known(b > 0) is not True:  # `Div` rounds to zero
            above = on.Sub(above, on.Mod(above, below))
        quotient: OnnxTensor = on.Div(above, below)
        return quotient

    def write_condition(self, on: On, b: BoolExpr) -> OnnxTensor:
        """A condition on sizes, as a truth value without dimensions."""
        if b.args:
            parts = [self.write_condition(on, each) for each in b.args]
            made = parts[0]
            for each in parts[1:]:
                made = on.And(made, each) if b.kind == "and" else on.Or(made, each)
            return made
        number = on.scalar(b.poly) if b.poly.const is None else on.constant(b.poly.const)
        zero = on.constant(0, torch.int64)
        if b.kind == "ge":
            made = on.GreaterOrEqual(number, zero)
        else:
            made = on.Equal(number, zero)
            made = made if b.kind == "eq" else on.Not(made)
        return made


def _symbols_of(key: Any) -> Any:
    if isinstance(key, tuple):
        return {symbol for n in key if isinstance(n, Expr) for symbol in n.symbols()}
    return (key,) if isinstance(key, Symbol) else key.symbols()


def _rank_term(item: tuple[tuple[Atom, ...], int]) -> tuple[Any, ...]:
    """First a term that is added; the constant last; else an order that no example changes."""
    monomial, times = item
    return not monomial, times < 0, sorted(atom.rank() for atom in monomial)
