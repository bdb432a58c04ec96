"""Symbolic numbers of ours as torch's: one ShapeEnv for a program, each symbol and each distinct
expression made once.

What an expression is called, and which are too long for torch, is decided where files are written
(`SymbolWriter`), so that a program handed over and a program read from a file are the same.
"""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import Limits, limits_by_name
from lostwax.pt2.graph.spelling import SymbolWriter, bounds, settle, settle_number
from lostwax.pt2.guards import example_sizes
from lostwax.sym import BoolExpr, Expr, Size

DEFINITIONS = "lostwax_definitions"
"""An attribute of torch's environment, for `from_torch`: what the symbols stand for that were made
for numbers for which torch has no words. A name is one number for as long as there is the
environment."""


class PeerNumbers:
    """Numbers of one program, as torch has them."""

    def __init__(self, program: ExportedProgram, plain_names: bool) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env: Any = ShapeEnv(assume_static_by_default=True)
        self.ranges: dict[Any, Any] = {}
        """The limits of all symbols that were made, by symbol."""
        self.unbound: set[Any] = set()
        """Symbols of data that no node has given yet."""
        self._writer = SymbolWriter(example_sizes(program), plain_names)
        setattr(self.env, DEFINITIONS, self._writer.defined)
        self._limits = limits_by_name(program.range_constraints)
        self._made: dict[Any, Any] = {}
        self._symbols: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def size(self, value: Size) -> Any:
        if isinstance(value, int):
            return value
        if value not in self._made:
            self._made[value] = self._make(settle(value))
        return self._made[value]

    def number(self, value: Any) -> Any:
        """A number that a node gives: plain, or symbolic."""
        known = settle_number(value)
        if isinstance(known, (int, float)):
            return known
        if known not in self._made:
            self._made[known] = self._make(known)
        return self._made[known]

    def _make(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        made = self._read(self._writer.text(value))
        if isinstance(value, BoolExpr):
            return self.env.create_symboolnode(made)
        hint = self._writer.example(value)
        if isinstance(value, Expr):
            return self.env.create_symintnode(made, hint=hint)
        return self.env.create_symfloatnode(made, hint=hint)

    def add_ranges(self, program: ExportedProgram) -> None:
        """Tell the limits of sizes that are computed of symbols, too, as torch does."""
        for size, limits in getattr(program.range_constraints, "limits", {}).items():
            made = self._made.get(size, 0)
            if not isinstance(made, int):
                self.ranges.setdefault(made.node.expr, self._range(limits))

    def add_guards(self, texts: list[str]) -> None:
        """Keep the conditions on a call where torch looks for them when it makes a new program of
        this one: it prints them with the sources of symbols. Here a symbol is a whole condition."""
        from torch._guards import ShapeGuard, SLoc

        for text in texts:
            symbol = self._function("Symbol")(f"guard{len(self.env.guards)}")
            self.env.var_to_sources[symbol] = [SimpleNamespace(name=text)]
            self.env.guards.append(ShapeGuard(symbol, SLoc(None, ""), size_oblivious=False))

    # ---- sympy

    def _read(self, text: str) -> Any:
        return self._convert(ast.parse(text, mode="eval").body)

    def _convert(self, node: Any) -> Any:
        """What a text of ours says. (Nothing is evaluated: names are those of sympy's classes.)"""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -self._convert(node.operand)
        if isinstance(node, ast.Name):
            return self._function("S").true if node.id == "true" else self._function("S").false
        args = [self._convert(arg) for arg in node.args]
        options = {each.arg: self._convert(each.value) for each in node.keywords}
        if node.func.id == "Symbol":
            return self._symbol(args[0], options)
        return self._function(node.func.id)(*args, **options)

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            import sympy  # type: ignore[import-untyped]
            from sympy.functions.elementary import piecewise  # type: ignore[import-untyped]
            from torch.utils._sympy import functions

            homes = (functions, sympy, piecewise)
            found = next(getattr(home, name) for home in homes if hasattr(home, name))
            self._functions[name] = found
        return found

    def _symbol(self, name: str, options: dict[str, Any]) -> Any:
        found = self._symbols.get(name)
        if found is None:
            found = self._symbols[name] = self._function("Symbol")(name, **options)
            self._enter(found, name)
        return found

    def _enter(self, symbol: Any, name: str) -> None:
        """Tell torch's environment all that it knows of a symbol."""
        from torch._guards import SLoc
        from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc
        from torch.utils._sympy.symbol import SymT, symbol_is_type
        from torch.utils._traceback import CapturedTraceback

        hint, limits = self._describe(name)
        if hint is not None:
            self.env.add_backed_var_to_val(symbol, hint)
        if limits is not None:
            found = self.ranges[symbol] = self._range(limits)
            # Told where from, torch does not look at the stack, for which it loads its tracers.
            nowhere = SLoc(None, "")
            place = ValueRangesSLoc(nowhere, nowhere)
            self.env._update_var_to_range(symbol, found, place)
        self.env.var_to_stack[symbol] = CapturedTraceback.extract(skip=1)
        if symbol_is_type(symbol, SymT.UNBACKED_INT):
            count = max(self.env.unbacked_symint_counter, _index(name, "u") + 1)
            self.env.unbacked_symint_counter = count
            self.unbound.add(symbol)
        elif symbol_is_type(symbol, SymT.UNBACKED_FLOAT):
            count = max(self.env.unbacked_symfloat_counter, _index(name, "zuf") + 1)
            self.env.unbacked_symfloat_counter = count
            self.unbound.add(symbol)

    def _range(self, limits: Limits) -> Any:
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        number = self._function("Integer")
        lo, hi = (None if limit is None else number(limit) for limit in limits)
        return ValueRanges(-int_oo if lo is None else lo, int_oo if hi is None else hi)

    def _describe(self, name: str) -> tuple[Any, Limits | None]:
        """The example's value and the limits of a symbol, by its name there."""
        symbol = self._writer.symbols.get(name)
        if symbol is not None:
            limits = self._limits.get(symbol.name, (symbol.lo, symbol.hi))
            return self._writer.examples.get(symbol, symbol.hint), limits
        number = self._writer.floats.get(name)
        if number is not None:
            return number.hint, (None, None)
        stands_for = self._writer.named[name]
        return self._writer.example(stands_for), bounds(stands_for) if stands_for.unbacked else None


def _index(name: str, prefix: str) -> int:
    number = name.removeprefix(prefix)
    return int(number) if number.isdecimal() else -1
