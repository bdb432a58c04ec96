"""What a recorded region reads of what is outside: it becomes an operand of the step that takes the
region as a graph.

Tensors keep their values: in the graph the placeholder stands for the value. Sizes are read off an
operand that has them, else they are operands themselves. Must not record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from lostwax.capture.control.scope import Scope
from lostwax.capture.trace.gradient_reach import is_differentiable
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import wrap
from lostwax.ir.graph.numbers import (
    SymbolOrigin,
    number_sources,
    simplify_number,
    solve_size,
)
from lostwax.ir.trace.log import InnerGraph, NumberValue, Step, Value, new_value
from lostwax.location import Location
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.numbers.real import Real

_NUMBERS = (Expr, BoolExpr, Real)


class Lifting:
    """The operands of one step, for all of its graphs."""

    def __init__(
        self, tracer: Tracer, operands: Sequence[Any], inside: Sequence[Value] = ()
    ) -> None:
        """`operands` are values and numbers of the program, and `inside` what the graphs have for
        the first of them: by default the values themselves."""
        self.tracer = tracer
        self.operands = list(operands)
        self.inputs: list[Value] = [*inside]
        self._origins: dict[Any, SymbolOrigin] = {}
        for operand in self.operands[len(inside) :]:
            self._add_input(operand)
        for value in inside:
            self._note_sizes(value)
        self._known = set(self.inputs)

    def _add_input(self, operand: Any) -> None:
        if isinstance(operand, Value):
            self.inputs.append(operand)
            self._note_sizes(operand)
            return
        number = new_value(
            None, None, None, wrap(operand) if isinstance(operand, _NUMBERS) else operand
        )
        self.inputs.append(number)
        if isinstance(operand, Expr) and len(operand.terms) == 1:
            for symbol in operand.symbols():
                if symbol.expr is operand:
                    self._origins.setdefault(symbol, SymbolOrigin(number, None))
        elif isinstance(operand, Real) and operand.op == "symbol":
            self._origins.setdefault(operand, SymbolOrigin(number, None))

    def _note_sizes(self, value: Value) -> None:
        if value.type is None or not value.type.is_symbolic:
            return
        for d, size in enumerate(value.type.size):
            found = solve_size(size, value, d) if isinstance(size, Expr) else None
            if found is not None:
                self._origins.setdefault(*found)

    def read(self, scope: Scope, outputs: Sequence[Any]) -> None:
        """Add what a region reads of what is outside of it."""
        numbers: dict[Any, None] = {}
        own = scope.steps
        for step in scope.region.steps:
            self._read_all(find_read(step), own, numbers, step)
        self._read_all(outputs, own, numbers, None)
        for guard in scope.guards:
            numbers.update(dict.fromkeys(number_sources(guard.cond)))
        for source in numbers:
            self._read_number(source, own, scope)
        tracer = self.tracer
        if tracer.gradients.differentiable and tracer.grad is None and not torch.is_grad_enabled():
            self._check_no_gradients(scope)

    def _check_no_gradients(self, scope: Scope) -> None:
        """Refuse a region that enables gradients where they are disabled around the operator."""
        step = next((each for each in scope.region.steps if each.grad), None)
        if step is not None:
            raise CaptureError(
                f"{scope.what} enables gradients, which are disabled around it.\n"
                f"  at {line_of(step)}\n"
                "  why: the operator computes gradients for all that its functions compute, or for "
                "nothing\n"
                "  instead: call the operator with gradients enabled, and disable them inside of "
                "its functions where none are wanted"
            )

    def _read_all(
        self, parts: Iterable[Any], own: set[Step], numbers: dict[Any, None], reader: Step | None
    ) -> None:
        for part in parts:
            if part.__class__ is Value or part.__class__ is NumberValue:
                if part.step in own or part in self._known:
                    continue
                if part in self.tracer.regions.ended or part.step in self.tracer.regions.ended:
                    refuse_leak(self.tracer, part, reader)
                self._known.add(part)
                self.operands.append(part)
                self._add_input(part)
            elif isinstance(part, (list, tuple)):
                self._read_all(part, own, numbers, reader)
            elif isinstance(part, _NUMBERS):
                numbers.update(dict.fromkeys(number_sources(simplify_number(part))))

    def _read_number(self, source: Any, own: set[Step], scope: Scope) -> None:
        if source in self._origins:
            return
        origin = self.tracer.origins.get(source)
        if origin is not None and (origin.value.step in own or origin.value in scope.region.inputs):
            return
        # It is read where it was asked for. A float is read off its tensor: torch reads no files
        # with graphs that are given floats.
        is_float = isinstance(source, Real) and origin is not None and origin.value.type is not None
        if origin is not None and (source in scope.numbers or is_float):
            self._read_all([origin.value], own, {}, None)
            self._origins[source] = origin
            return
        if source in self.tracer.regions.ended:
            refuse_number(self.tracer, source)
        number = source if isinstance(source, Real) else source.expr
        self.operands.append(number)
        self._add_input(number)

    def check_gradients(self, what: str) -> None:
        """Refuse an operator through which a program would have to differentiate itself."""
        tracer = self.tracer
        if not (tracer.tracked and (tracer.grad or torch.is_grad_enabled())):
            return
        tensors = [v for v in self.operands if isinstance(v, Value) and v.type is not None]
        if any(map(is_differentiable, tensors)):
            raise CaptureError.here(
                f"{what} in a program that computes gradients itself",
                why="the gradient of its functions would have to be a step of the program, too",
                instead="give it detached tensors, x.detach(), or call it under torch.no_grad(); "
                "or export the forward alone, and let autograd differentiate the program when it "
                "runs",
            )

    def make_graph(
        self, name: str, scope: Scope, outputs: Sequence[Any], form: Any = tuple
    ) -> InnerGraph:
        graph = InnerGraph(name, scope.region, self.inputs, list(outputs))
        own = {
            source: origin
            for source, origin in self.tracer.origins.items()
            if origin.value.step in scope.steps or origin.value in scope.region.inputs
        }
        graph.origins = {**own, **self._origins}
        graph.demands = scope.guards
        graph.form = form
        return graph


def find_read(step: Step) -> Sequence[Any]:
    """What a step reads: values, numbers, and lists of these among others."""
    if step.tensors is not None:
        return [step.args[i] for i in step.tensors]
    return [*step.args, *step.kwargs.values()] if step.kwargs else step.args


def refuse_leak(tracer: Tracer, value: Value, reader: Step | None) -> NoReturn:
    """A tensor of a region is used outside of it."""
    what = tracer.regions.ended.get(value) or tracer.regions.ended[value.step]
    used = line_of(reader)
    raise CaptureError(
        f"a tensor of {what} is used outside of it.\n"
        f"  at {used or 'the end, where it is returned'}\n  it was computed at "
        f"{line_of(value.step) or what}\n"
        "  why: whether it is computed at all is known only when the program runs\n"
        "  instead: return it from the function, and use what the operator returns"
    )


def refuse_number(tracer: Tracer, source: Any) -> NoReturn:
    raise CaptureError.here(
        f"a number of {tracer.regions.ended[source]} is used outside of it",
        why="whether it is computed at all is known only when the program runs",
        instead="return it from the function, and use what the operator returns",
    )


def check_leaks(tracer: Tracer, outputs: Sequence[Any]) -> None:
    """Refuse a program in which a region's tensors are used outside of it, or in which somebody
    has caught what a region raised."""
    if tracer.regions.raised is not None:
        what, error = tracer.regions.raised
        raise CaptureError(
            f"{what} raises {type(error).__name__}, which is caught outside of it.\n"
            "  why: whether it is run, and raises, is known only when the program runs\n"
            "  instead: catch it inside of the function"
        ) from error

    def look(parts: Iterable[Any], reader: Step | None) -> None:
        for part in parts:
            if part.__class__ is Value or part.__class__ is NumberValue:
                if part in tracer.regions.ended or part.step in tracer.regions.ended:
                    refuse_leak(tracer, part, reader)
            elif isinstance(part, (list, tuple)):
                look(part, reader)
            elif isinstance(part, _NUMBERS):
                for source in number_sources(simplify_number(part)):
                    if source in tracer.regions.ended:
                        refuse_number(tracer, source)

    for step in tracer.region.steps:
        look(find_read(step), step)
    look(outputs, None)


def line_of(step: Step | None) -> Location | None:
    """The user's line that recorded a step."""
    found: Location | None = None if step is None else step.place.location()
    return found
