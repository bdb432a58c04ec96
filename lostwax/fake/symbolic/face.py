"""What torch's Python helpers see behind our nodes: `node.expr` as sympy, and `node.shape_env` with
the methods they ask.

`torch._refs`, decompositions and meta registrations ask through
`torch.fx.experimental.symbolic_shapes` (`guard_or_false`, `statically_known_true`,
`is_concrete_int`). They hand back the sympy expressions that they got from us, so each expression
is kept with its value, and nothing is parsed. Must not import sympy before torch asks; no other
file of this layer uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lostwax.errors import DataDependentError
from lostwax.sym import (
    Atom,
    BoolExpr,
    Expr,
    ShapeEnv,
    Symbol,
    current,
    decide,
    decide_or,
    known,
    specialize,
)
from lostwax.sym.numbers.real import Real, current_real, specialize_real

_RELATIONS = {"eq": "Eq", "ne": "Ne", "ge": "Ge"}
MISREAD = re.compile("u|zf|zuf", re.IGNORECASE)
"""How names begin that torch takes for a number of data, or for a float."""


def torch_shape_env(env: ShapeEnv) -> TorchShapeEnvAdapter:
    """The one face of an environment: torch compares them by identity."""
    return env.companion(TorchShapeEnvAdapter)


class TorchShapeEnvAdapter:
    """Answers in the place of torch's ShapeEnv."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.values: dict[Any, Any] = {}

    def sympy_of(self, node: Any) -> Any:
        """The node's value, under today's facts, as a sympy expression."""
        value = node.value
        if isinstance(value, Expr):
            value = current(value)
        elif isinstance(value, Real):
            value = current_real(value)
        if node.sympy is None or node.sympy[0] is not value:
            node.sympy = value, self.convert(value)
        return node.sympy[1]

    def convert(self, value: Any) -> Any:
        expr = to_sympy(value)
        if isinstance(value, (Expr, BoolExpr, Real)) and not expr.is_number:
            self.values.setdefault(expr, value)
        return expr

    # ---- what torch calls

    def evaluate_sym_node(
        self, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        if node.is_int():
            return specialize(node.value)
        if node.is_float():
            return specialize_real(node.value)
        if fallback_value is None:
            return decide(node.value)
        return decide_or(
            node.value, fallback_value, "guard_or_true" if fallback_value else "guard_or_false"
        )

    def _maybe_evaluate_static(self, expr: Any, **options: Any) -> Any:
        sympy = _sympy()
        value = self.values.get(expr)
        if isinstance(value, BoolExpr):
            certain = known(value)
            return None if certain is None else sympy.S.true if certain else sympy.S.false
        if isinstance(value, Expr):
            size = current(value)
            return sympy.Integer(size) if isinstance(size, int) else None
        return expr if expr in (sympy.S.true, sympy.S.false) or expr.is_number else None

    def bound_sympy(self, expr: Any, size_oblivious: bool = False) -> Any:
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        value = self.values.get(expr)
        if isinstance(value, Expr):
            lo, hi = self.env.bounds(value)
            return ValueRanges(-int_oo if lo is None else lo, int_oo if hi is None else hi)
        if value is None and expr.is_number:
            return ValueRanges(expr, expr)
        return ValueRanges.unknown_bool() if isinstance(value, BoolExpr) else ValueRanges.unknown()

    def guarding_hint_or_throw(self, expr: Any) -> Any:
        hint = self.optimization_hint(expr)
        if hint is None:
            raise DataDependentError(f"{expr} depends on data: there is no example value of it")
        return hint

    def optimization_hint(self, expr: Any, fallback: int | None = None) -> Any:
        value = self.values.get(expr)
        if value is None:
            return int(expr) if expr.is_number else fallback
        return fallback if value.hint is None else value.hint


# ----------------------------------------------------------------------------------------- to sympy


def _sympy() -> Any:
    import sympy  # type: ignore[import-untyped]

    return sympy


def to_sympy(value: Any) -> Any:
    """A value of `lostwax.sym` in sympy, with torch's names for the functions that sympy does not
    have."""
    sympy = _sympy()
    if isinstance(value, Expr):
        return sympy.Add(*(sympy.Mul(k, *map(_atom, m)) for m, k in value.terms.items()))
    if isinstance(value, BoolExpr):
        if value.args:
            joined = sympy.And if value.kind == "and" else sympy.Or
            return joined(*map(to_sympy, value.args))
        return getattr(sympy, _RELATIONS[value.kind])(to_sympy(value.poly), 0)
    if isinstance(value, Real):
        return _real(value)
    return sympy.sympify(value)


def _atom(atom: Atom) -> Any:
    from torch.utils._sympy import functions

    if isinstance(atom, Symbol):
        least = -1 if atom.lo is None else atom.lo
        signs = {"positive": True} if least > 0 else {"nonnegative": True} if least == 0 else {}
        misread = not atom.unbacked and MISREAD.match(atom.name)
        return _sympy().Symbol(f"s_{atom.name}" if misread else atom.name, integer=True, **signs)
    args = tuple(map(to_sympy, atom.args))
    if atom.kind in ("max", "min"):
        return (functions.Max if atom.kind == "max" else functions.Min)(*args)
    if atom.kind == "div":
        return functions.FloorDiv(*args)
    return (functions.Mod if _nonnegative(atom.operands) else functions.PythonMod)(*args)


def _nonnegative(operands: Sequence[Expr]) -> bool:
    return all(known(x >= 0) is True for x in operands)


def _real(value: Real) -> Any:
    from torch.utils._sympy import functions

    if value.is_ratio:
        return functions.IntTrueDiv(to_sympy(value.above), to_sympy(value.below))
    return _sympy().Symbol(str(value), real=True)
