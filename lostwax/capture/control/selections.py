"""What the body of a loop selects of tensors from outside by the number of its turn: `x[:, t]`. It
becomes a row that the `scan` hands to the body.

So the body has no number in it, if it does nothing else with that, and others who run the program
can differentiate it. Must not record what the body computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from lostwax.capture.control.lifting import find_read
from lostwax.capture.control.loops import Loop, Slot
from lostwax.capture.control.scope import RecordedFunction, Scope, are_equal
from lostwax.capture.trace.tracer import Tracer
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.numbers import number_sources, simplify_number
from lostwax.ir.trace.log import InnerGraph, NumberValue, Step, Value, values_of
from lostwax.ir.trace.views import memory_of
from lostwax.ops.registry import aten
from lostwax.sym import BoolExpr, Expr, Size, known
from lostwax.sym.numbers.real import Real


class Turns(NamedTuple):
    """The numbers of a loop's turns."""

    slot: Slot
    at: Expr
    """The number, in the body."""
    first: Size
    step: int
    length: Size


def take_selections(loop: Loop, body: RecordedFunction, turns: Turns) -> None:
    """Let the body have rows for what it selects."""
    scope, tracer = body.scope, loop.tracer
    if tracer.maybe_views:  # they are about views, and a row would be none
        return
    kept: list[Step] = []
    begins: dict[Value, Size] = {}
    for each in scope.region.steps:
        place = _find_place(each, scope, turns)
        if place is None or (tracer.grad and not each.grad):  # a row would have a gradient
            kept.append(each)
            _move_views(tracer, each, begins)
            continue
        rows = _list_rows(tracer.temporary(each.args[0]), each.args[1], *place, turns.length)
        row = each.result
        if not are_equal(tracer.adopt(rows).fake_type.stride[1:], row.type.stride):
            kept.append(each)
            continue
        row.step, row.index, begins[row] = None, None, row.type.offset
        _begin_at(tracer, row, 0)
        scope.region.inputs.append(row)
        loop.take_rows(rows)
        loop.slices[-1] = loop.slices[-1]._replace(inside=row)
    scope.region.steps[:] = kept
    if len(loop.slices) > 1 and not _reads_number(body, turns):
        loop.slices.remove(turns.slot)
        scope.region.inputs.remove(turns.slot.inside)


def _move_views(tracer: Tracer, step: Step, begins: dict[Value, Size]) -> None:
    """Views of rows begin where they do in the row, whose own memory begins with it."""
    for value in values_of(step.result) if begins else ():
        begin = begins.get(memory_of(value))
        if begin is not None and value.type is not None:
            _begin_at(tracer, value, value.type.offset - begin)


def _begin_at(tracer: Tracer, value: Value, offset: Size) -> None:
    assert value.type is not None
    value.type = value.type.replace(offset=offset)
    value.fake = new_fake(tracer, value.type)


def _find_place(step: Step, scope: Scope, turns: Turns) -> tuple[Size, bool] | None:
    """The least index that a step selects, if it selects one after the other; and whether it does
    that from the last one on."""
    if step.target is not aten.select.int or len(step.args) < 3:
        return None
    base, dim, index = step.args[:3]
    is_inside = base.step in scope.steps or any(base is each for each in scope.region.inputs)
    if is_inside or not isinstance(index, Expr) or abs(turns.step) != 1:
        return None
    for sign in (1, -1):
        rest: Size = index - turns.at * sign
        if isinstance(rest, int) or not rest.symbols() & turns.at.symbols():
            begin, backwards = turns.first * sign + rest, turns.step * sign < 0
            least = begin - turns.length + 1 if backwards else begin
            fits = known(least >= 0), known(least + turns.length <= base.type.size[dim])
            return (least, backwards) if fits == (True, True) else None
    return None


def _list_rows(tensor: Any, dim: int, least: Size, backwards: bool, length: Size) -> torch.Tensor:
    """What the turns get, one after the other."""
    begin, count = (wrap(each) if isinstance(each, Expr) else each for each in (least, length))
    is_whole = least == 0 and known(tensor.fake_type.size[dim] - length <= 0) is True
    rows = tensor if is_whole else tensor.narrow(dim, begin, count)
    rows = rows.movedim(dim, 0) if dim else rows
    return rows.flip(0) if backwards else rows  # type: ignore[no-any-return]


def _reads_number(body: RecordedFunction, turns: Turns) -> bool:
    """Does the body need the number of its turn?"""
    (symbol,) = turns.at.symbols()

    def look(parts: Iterable[Any]) -> bool:
        return any(map(reads, parts))

    def reads(part: Any) -> bool:
        if part.__class__ is Value or part.__class__ is NumberValue:
            return part is turns.slot.inside
        if isinstance(part, (list, tuple)):
            return look(part)
        if isinstance(part, InnerGraph):
            return look(part.outputs) or look(part.inputs)
        if isinstance(part, (Expr, BoolExpr, Real)):
            return symbol in number_sources(simplify_number(part))
        return False

    steps = any(look(find_read(each)) for each in body.scope.region.steps)
    return steps or look(body.leaves) or look(guard.cond for guard in body.scope.guards)
