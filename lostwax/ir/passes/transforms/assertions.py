"""Runtime assertions: nodes that check what a program demands of the sizes of its inputs.

A call through `program.module()` is checked before the graph runs; these nodes also check where the
graph runs without that module. Must not add conditions: only what the program demands already.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.ir.graph.numbers import SeenNumbers
from lostwax.ir.graph.retype import PROVENANCE
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import InputKind
from lostwax.ops.registry import aten
from lostwax.sym import BoolExpr, Expr, Symbol, show

InputNumber = tuple[Node, int | None, Expr, str]
"""A size or a number among the inputs: its node, dimension, value and text."""


@dataclass(frozen=True)
class RuntimeAssertions(Pass):
    """Puts `aten._assert_scalar` nodes before all others, one for each limit of a size, each size
    that must equal another, and each guard of the program."""

    def edit(self, draft: Draft) -> None:
        begin = next(n for n in draft.graph.nodes if n.op != "placeholder")
        with draft.graph.inserting_before(begin):
            _Assertions(draft).run()


class _Assertions:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.numbers = SeenNumbers(self._call)
        self.inputs = [n for n, s in draft.inputs.items() if s.kind is InputKind.USER_INPUT]
        self.sources: dict[Symbol, str] = {}
        """Each symbol that the inputs give, and the text of what it is read from."""
        self.computed: set[Symbol] = set()
        """The symbols that are no sizes themselves but computed from one: they may be negative."""
        self.stack = ""

    def run(self) -> None:
        for node in self.inputs:
            self.numbers.note(node, node.meta["val"])
        places = list(self._input_numbers())
        self._find_sources(places)
        for node, dim, expr, text in places:
            if expr.symbols() <= self.sources.keys():
                self._assert_equal(node, dim, expr, text)
        self._assert_ranges()
        for guard in self.draft.guards:
            if guard.cond.symbols() <= self.sources.keys():
                where = guard.where
                self.stack = f'  File "{where.file}", line {where.line}, in {where.function}\n'
                self._assert(guard.cond, guard.reason)

    def _find_sources(self, places: list[InputNumber]) -> None:
        for _, _, expr, text in places:
            for symbol in expr.symbols():
                if expr is symbol.expr:
                    self.sources.setdefault(symbol, text)
        for _, _, expr, text in places:  # `2*h + 1` gives h, where nothing else does
            for symbol in expr.symbols() - self.sources.keys():
                scale, offset = expr.terms.get((symbol,), 0), expr.terms.get((), 0)
                if scale > 0 and len(expr.terms) == 1 + (offset != 0):
                    self.sources[symbol] = _solution_text(text, scale, offset)
                    self.computed.add(symbol)

    def _input_numbers(self) -> Iterator[InputNumber]:
        """The sizes and numbers among the inputs that are not fixed."""
        for node in self.inputs:
            value = node.meta["val"]
            if isinstance(value, FakeTensor):
                for dim, size in enumerate(value.fake_type.size):
                    if isinstance(size, Expr):
                        yield node, dim, size, f"{node.name}.shape[{dim}]"
            elif isinstance(value, torch.SymInt) and isinstance(unwrap(value), Expr):
                yield node, None, unwrap(value), node.name

    def _assert_equal(self, node: Node, dim: int | None, expr: Expr, text: str) -> None:
        """Assert that a size is what the symbols say, unless the symbol is read from this size."""
        if any(self.sources[s] == text for s in expr.symbols()):
            return
        found = node
        if dim is not None:
            found = self._call(aten.sym_size.int, (node, dim))
            found.meta["val"] = wrap(expr)
        holds = self._call(operator.eq, (found, self.numbers.node(expr)))
        holds.meta["val"] = True
        wanted = show(expr, self.sources)
        self._add_assertion(holds, f"{text} must be {wanted}")

    def _assert_ranges(self) -> None:
        limits = limits_by_name(self.draft.program.range_constraints)
        for symbol in sorted(self.sources, key=lambda s: s.id):
            lo, hi = limits.get(symbol.name, (None, None))
            conditions: list[Any] = []
            if lo is not None and (lo > 0 or symbol in self.computed):  # no size is less than 0
                conditions.append(symbol.expr >= lo)
            if hi is not None:
                conditions.append(symbol.expr <= hi)
            for condition in conditions:
                self._assert(condition, "the program holds for such sizes only")

    def _assert(self, condition: Any, reason: str) -> None:
        if isinstance(condition, BoolExpr):
            text = f"{show(condition, self.sources)} is required: {reason}"
            self._add_assertion(self.numbers.node(condition), text)

    def _add_assertion(self, holds: Node, text: str) -> None:
        self._call(aten._assert_scalar.default, (holds, text)).meta["val"] = None

    def _call(self, target: Any, args: tuple[Any, ...]) -> Node:
        node = self.draft.graph.call_function(target, args)
        node.meta.update({**PROVENANCE, "stack_trace": self.stack})
        return node


def _solution_text(text: str, scale: int, offset: int) -> str:
    """The text of the number for which `scale * number + offset` is the size with this text."""
    less = f"{text} {'-' if offset > 0 else '+'} {abs(offset)}" if offset else text
    if scale == 1:
        return less
    return f"({less}) // {scale}" if offset else f"{less} // {scale}"
