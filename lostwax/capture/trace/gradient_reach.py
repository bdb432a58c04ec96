"""What a gradient of a recorded value reaches, by the steps that made it.

Must not ask autograd: it has not seen most captures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from lostwax.fake.asked_tensor import is_marked
from lostwax.ir.graph.gradient import with_gradient
from lostwax.ir.trace.log import InnerGraph, Value, values_of
from lostwax.ir.trace.views import IN_LOOP
from lostwax.ops.gradients import has_gradient
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


def can_have_gradient(value: Any) -> bool:
    """Is it a tensor of real or complex numbers?"""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (value.is_floating_point() or value.is_complex())


def is_differentiable(value: Value, or_marked: bool = False) -> bool:
    """Does a gradient of this value reach something that the program is given? Or something that
    it has itself marked as a leaf."""
    return any(
        (each.step is None or (or_marked and each.fake is not None)) and is_marked(each.fake)
        for each in _history(value, _derived_from)
    )


def finds_gradient(value: Value, or_marked: bool = False) -> bool | None:
    """The same, also through the graphs of branches and loops. None: it depends on the way that a
    call goes."""
    return _ReachSearch(or_marked).find(value)


def reaches_own_leaf(value: Value) -> bool:
    """May a gradient of this value, whichever way a call goes, reach a tensor that the program has
    itself marked as a leaf? (Autograd has seen the capture: what is computed of it is marked.)"""
    left, seen = [value], set[Value]()
    while left:
        for each in _history(left.pop(), _derived_outside):
            if each in seen:
                continue
            seen.add(each)
            is_own = each.step is not None or each.is_literal
            if is_own and each.fake is not None and is_marked(each.fake):
                return True
            left += _enter(each)
    return False


def _enter(value: Value) -> list[Value]:
    """What a gradient of a result of a branch or a loop goes on to; nothing, if it is none."""
    graphs, step, at = _find_graphs(value), value.step, value.index
    if not graphs or step is None or not step.grad:
        return []
    if step.target is torch.ops.higher_order.cond and isinstance(at, int):
        found = [graph.outputs[at] for graph in graphs]
    else:
        found = [*values_of([step.args]), *[own for graph in graphs for own in graph.outputs]]
    return [each for each in found if type(each) is Value]


def find_joins(value: Value) -> list[Value]:
    """The results of branches and loops of which a value is computed."""
    return [each for each in _history(value, _derived_outside) if _find_graphs(each)]


def find_unseen(value: Value) -> list[Value]:
    """Those of them that autograd, which has seen the capture, takes for constants: it sees a
    function with a backward of its own, and no branch."""
    found, left = list[Value](), [value]
    while left:
        for each in find_joins(left.pop()):
            if each.step is not None and each.step.target is with_gradient:
                left += _enter(each)
            else:
                found.append(each)
    return found


def find_join_between(value: Value, ends: Collection[Value]) -> Value | None:
    """The result of a branch or a loop that autograd does not see, and through which a gradient of
    this value comes to one of these, or, without any, to what is marked."""
    for join in find_unseen(value):
        left, seen = [join], set[Value]()
        while left:
            for each in _history(left.pop(), _derived_outside):
                if each in seen:
                    continue
                seen.add(each)
                if each in ends or (not ends and each.fake is not None and is_marked(each.fake)):
                    return join
                left += _enter(each)
    return None


def gradient_sources(value: Value, grad: bool) -> list[Value]:
    """What the program is given, or holds, that a gradient of this value reaches if that wants one;
    without `grad`, that it would reach if gradients were switched on."""
    reads = _derived_from if grad else _derivable_from
    return [each for each in _history(value, reads) if each.step is None]


def list_reached(value: Value) -> Iterator[Value]:
    """The value, and all that a gradient of it reaches."""
    return _history(value, _derived_from)


def keeps_gradient(old: Value, new: Value) -> bool:
    """Does a gradient of the new value reach all that one of the old would? Not where a tensor is
    overwritten whole: eager's is a zero then."""
    if any(each is old for each in _kept_by(new)):  # most writes
        return True
    if not is_differentiable(old):
        return True
    reached = set(_history(new, _kept_by))
    return old in reached or all(
        each in reached
        for each in _history(old, _derived_from)
        if each.step is None and is_marked(each.fake)
    )


def _history(value: Value, reads: Callable[[Value], list[Value]]) -> Iterator[Value]:
    """The value and all that its gradient reaches, by what is read for each value."""
    left, seen = [value], set[Value]()
    while left:
        each = left.pop()
        if each in seen or each.type is None or not _is_real(each.type):
            continue
        seen.add(each)
        left.extend(reads(each))
        yield each


def _derivable_from(value: Value) -> list[Value]:
    step = value.step
    if step is None or not has_gradient(step.target, value.index):
        return []
    return values_of([step.args, *step.kwargs.values()])


def _derived_from(value: Value) -> list[Value]:
    return _derivable_from(value) if value.step is not None and value.step.grad else []


def _kept_by(value: Value) -> list[Value]:
    """What a gradient still reaches if the operator overwrites its first argument."""
    found = _derived_from(value)
    is_filled = value.step is not None and has_trait(value.step.target, Trait.OVERWRITES)
    return found[1:] if is_filled else found


def _is_real(t: TensorType) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex


def is_handed_on(value: Value) -> bool:
    """Is it what a loop hands on, as its body has it? (A gradient that a backward is given has no
    memory of its own.)"""
    tracked = value.fake.tracked if value.step is None else None
    return tracked is not None and tracked.root.kind == IN_LOOP


class _ReachSearch:
    """Looks for what gradients reach, inside of the graphs that steps take, too."""

    def __init__(self, or_marked: bool) -> None:
        self._or_marked = or_marked
        self._known: dict[Value, bool | None] = {}
        """Of what a loop hands on, inside of it; and of results of branches and loops."""

    def find(self, value: Value) -> bool | None:
        is_sure = True
        for each in _history(value, _derived_outside):
            found: bool | None = False
            graphs = _find_graphs(each)
            if each in self._known:
                found = self._known[each]
            elif graphs:
                found = self._known[each] = self._find_in(each, graphs)
            elif is_handed_on(each):
                found = None
            elif each.step is None or (self._or_marked and each.fake is not None):
                found = is_marked(each.fake)
            if found:
                return True
            is_sure = is_sure and found is not None
        return False if is_sure else None

    def _find_in(self, result: Value, graphs: list[InnerGraph]) -> bool | None:
        step, at = result.step, result.index
        if step is None or not step.grad or not isinstance(at, int):
            return False if step is not None and not step.grad else None
        if step.target is torch.ops.higher_order.cond:
            one, other = (self.find(graph.outputs[at]) for graph in graphs)
            return one if one is other else None
        if step.target is with_gradient:
            reached = {self.find(each) for each in step.args[2]}
            return True if True in reached else None if None in reached else False
        is_while = step.target is torch.ops.higher_order.while_loop
        if not is_while and step.target is not torch.ops.higher_order.scan:
            return None
        body = graphs[-1]
        handed = step.args[2 if is_while else 1]
        given = [*handed, *([] if is_while else step.args[2])]
        inside = [*zip(body.inputs, given, strict=False)]
        for own, operand in inside:
            if own is not operand and isinstance(operand, Value):
                self._known[own] = self.find(operand)
        self._settle([own for own, _ in inside[: len(handed)]], body)
        found = self.find(body.outputs[at])
        if is_while and at < len(handed) and isinstance(handed[at], Value):
            first = self.find(handed[at])
            return found if found is first else None
        return found

    def _settle(self, handed: list[Value], body: InnerGraph) -> None:
        """What a loop hands on is sure where each turn leaves it as it was."""
        is_new = True
        while is_new:
            is_new = False
            for own, left in zip(handed, body.outputs, strict=False):
                if isinstance(left, Value) and self._known.get(own, None) is not None:
                    inner = [each for each in self._known if each.step is not None]
                    for each in inner:  # they may depend on what was assumed
                        del self._known[each]
                    if self.find(left) is not self._known[own]:
                        self._known[own], is_new = None, True


def _derived_outside(value: Value) -> list[Value]:
    return [] if _find_graphs(value) else _derived_from(value)


def _find_graphs(value: Value) -> list[InnerGraph]:
    step = value.step
    is_inner = step is not None and step.tensors is None
    return [each for each in step.args if type(each) is InnerGraph] if is_inner and step else []
