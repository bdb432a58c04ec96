"""Numbers for the steps of several calls: steps with the same number compute the same.

Must not know what the calls are compared for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from lostwax.ir.graph.effects import has_effect
from lostwax.ir.graph.numbers import SymbolOrigins, simplify_number
from lostwax.ir.trace.log import InnerGraph, Step, Value
from lostwax.sym import Atom, BoolExpr, Expr, Guard, Symbol
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType


class Numbering:
    """Numbers the steps of several calls: steps with the same number compute the same."""

    def __init__(
        self, constants: Sequence[tuple[torch.Tensor, Value]], origins: SymbolOrigins
    ) -> None:
        self._origins = origins
        self._literals = {value: tensor for tensor, value in constants if value.is_literal}
        self._numbers: dict[Any, int] = {}
        self._steps: dict[Step, int] = {}
        self._given: dict[Value, Any] = {}
        """Of the inner graphs that are being looked at: their inputs, by depth and place."""
        self._depth = 0

    def number_steps(self, steps: Sequence[Step]) -> list[int]:
        """Number the steps of a call. Returns the numbers of steps that have effects, in order. A
        step with an effect depends on how many went before, as random numbers do."""
        found: list[int] = []
        for step in steps:
            acts = _acts(step)
            operands = self._operands_key(step)
            key = (id(step.target), step.grad, (*step.kwargs,), operands, acts and len(found))
            self._steps[step] = self._number(key)
            if acts:
                found.append(self._steps[step])
        return found

    def _operands_key(self, step: Step) -> Any:
        """Equal for equal arguments. In which order a branch is given numbers of data, says
        nothing: it reads them by their names."""
        if step.target is not torch.ops.higher_order.cond:
            return self.value_key([step.args, *step.kwargs.values()])
        condition, *graphs, operands = step.args
        return (
            self.value_key([condition, *[each for each in operands if not _is_of_data(each)]]),
            frozenset(map(self._expression_key, filter(_is_of_data, operands))),
            *[self._graph_key(each, operands) for each in graphs],
        )

    def value_key(self, value: Any) -> Any:
        """Equal for equal values. A value of an unknown class is equal to nothing."""
        cls = value.__class__
        if cls is Value:
            return self._log_value_key(value)
        if cls is InnerGraph:
            return self._graph_key(value)
        if isinstance(value, (list, tuple)):
            return (list, *map(self.value_key, value))
        if cls is float or cls is complex:
            return (cls, repr(value))  # 0.0 is not -0.0
        if cls is Expr:
            simple = simplify_number(value)  # by what one call has learned of its own numbers
            return self._expression_key(value if _is_of_data(simple) else simple)
        if cls is BoolExpr and value.unbacked:
            return self._condition_key(value)
        if cls is Real:
            return (cls, simplify_number(value))
        return (cls, value) if cls in _PLAIN else object()

    def assertion_key(self, guard: Guard) -> Any:
        """Equal for what a line asserts about the same numbers, in one call as in the next; for
        other guards equal to nothing."""
        return (guard.where, self.value_key(guard.cond)) if guard.kind == "assert" else object()

    def _condition_key(self, cond: BoolExpr) -> Any:
        parts = [self._condition_key(each) for each in cond.args]
        return cond.kind, self._expression_key(cond.poly), frozenset(parts)

    def _expression_key(self, number: Any) -> Any:
        """Equal for equal numbers. Numbers of data are equal if they come from equal values."""
        if not isinstance(number, Expr) or not number.unbacked:
            return (Expr, number)
        terms = number.terms.items()
        return frozenset([(tuple(sorted(map(self._atom_key, m), key=repr)), n) for m, n in terms])

    def _atom_key(self, atom: Atom) -> Any:
        if not atom.unbacked:
            return (Expr, atom)
        if not isinstance(atom, Symbol):
            return (atom.kind, *map(self._expression_key, atom.operands))
        origin = self._origins.get(atom)
        if origin is None or not isinstance(origin.value, Value):
            return (Symbol, atom)
        return (Symbol, self._log_value_key(origin.value), *origin[1:])

    def type_key(self, t: TensorType | None) -> Any:
        if t is None or not t.is_symbolic:
            return t
        numbers = [self.value_key([*each]) for each in (t.size, t.stride, (t.offset,))]
        return t.dtype, t.device, t.layout, *numbers

    def _graph_key(self, graph: InnerGraph, operands: Sequence[Any] = ()) -> Any:
        """Equal for graphs that compute the same from what they are given. A graph that acts is
        equal to nothing: how often it runs is not known. (`operands`: numbers of data among them
        are no inputs that have places.)"""
        if any(map(_acts, graph.region.steps)):
            return object()
        around = self._given
        self._depth += 1
        pairs = zip_longest(graph.inputs, operands)
        placed = [v for v, operand in pairs if not _is_of_data(operand)]
        inputs = {v: (self._depth, place) for place, v in enumerate(placed)}
        self._given = {**around, **inputs}
        self.number_steps(graph.region.steps)
        demands = [guard.cond for guard in graph.demands]
        outputs = self.value_key([graph.outputs, demands])
        self._given = around
        self._depth -= 1
        return (InnerGraph, tuple([self.type_key(v.type) for v in placed]), outputs, graph.form)

    def _log_value_key(self, value: Value) -> Any:
        if value in self._given:
            return (Value, *self._given[value])
        if value.step is not None:
            return (Value, self._steps.get(value.step, value), value.index)
        literal = self._literals.get(value)
        if literal is None:
            return (Value, value)
        with torch._C._DisableTorchDispatch():
            return (Value, repr(literal.tolist()), value.type)

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _is_of_data(number: Any) -> bool:
    """Is it a number that lies in data?"""
    return isinstance(number, Expr) and number.unbacked


def _acts(step: Step) -> bool:
    """Does the step do something that matters even if its result is not read, by itself or in one
    of its graphs?"""
    left: list[Any] = [*step.args, *step.kwargs.values()]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, InnerGraph) and any(map(_acts, part.region.steps)):
            return True
    return has_effect(step.target)


_PLAIN = frozenset(
    (
        int, bool, str, type(None), type, BoolExpr,
        torch.dtype, torch.device, torch.layout, torch.memory_format,
    )
)  # fmt: skip
