"""What a recorder records: steps and the values they make, in order, in regions.

A log, not yet a graph: recording appends one small object. Nodes are made of the log when the
recording is over, so that what nobody reads never becomes a node. Must not know of fake tensors'
aliasing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.fx.immutable_collections import immutable_list

from lostwax.cache import Cache
from lostwax.types import TensorType


class Value:
    """One tensor (or number) of the program: an input, or an output of a step. (Made by a function,
    not by `__init__`: Python calls functions in half the time.)"""

    __slots__ = ("fake", "index", "is_literal", "step", "type")

    step: Step | None
    """None: an input of the program."""
    index: Any
    """Which output of the step; None: its only one; a pair: which of a list among them."""
    type: TensorType | None
    fake: Any
    """An object that has this type: what `meta["val"]` shows."""
    is_literal: bool
    """It is a tensor literal of the user's code (`torch.tensor([1, 2])`)."""


class NumberValue(Value):
    """A number that an operator of the user's gives: it has no type, and `fake` is symbolic."""

    __slots__ = ()


def new_number(step: Step, index: Any, number: Any) -> NumberValue:
    value = NumberValue()
    value.step, value.index, value.type, value.fake = step, index, None, number
    value.is_literal = False
    return value


def new_value(step: Step | None, index: Any, type: TensorType | None, fake: Any) -> Value:
    value = Value()
    value.step = step
    value.index = index
    value.type = type
    value.fake = fake
    value.is_literal = False
    return value


class Step:
    """One call of an operator. Tensors among the arguments are `Value`s, symbolic numbers are
    expressions."""

    __slots__ = ("args", "grad", "kwargs", "place", "result", "target", "tensors")

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Any
    """Where it was recorded, for a capture to say (`provenance.StepPlace`)."""
    grad: bool
    """Whether gradients flow through it (`no_grad` regions switch that off)."""
    tensors: Sequence[int] | None
    """The positions of the arguments that are `Value`s, if no other argument has any; else None."""
    result: Any
    """What the call returned, with a `Value` in each tensor's place."""


def values_of(result: Any) -> list[Value]:
    """The values in what a step returned, or in its arguments, in order."""
    if result.__class__ is Value:
        return [result]
    found: list[Value] = []
    if isinstance(result, (list, tuple)):
        for each in result:
            if each.__class__ is Value:
                found.append(each)
            else:
                found += values_of(each)
    elif result.__class__ is InnerGraph:  # what its steps read, and what it returns
        for step in result.region.steps:
            found += values_of([step.args, *step.kwargs.values()])
        found += values_of(result.outputs)
    return found


def share_list(numbers: tuple[Any, ...]) -> Any:
    """The one list of these plain ints, for steps and for the nodes made of them; None if one of
    them is no plain int."""
    found = SHARED.get(numbers)
    if found is not None:  # an empty one, too: another in its place would leave its identity behind
        return found
    for n in numbers:
        if n.__class__ is not int:
            return None
    found = immutable_list(numbers)
    _BY_IDENTITY.keep(id(found), found)
    return _BY_NUMBERS.keep(numbers, found)


def is_shared(numbers: Any) -> bool:
    """Is it such a list? Then there are only ints in it."""
    return id(numbers) in _BY_IDENTITY.table


_BY_NUMBERS = Cache[tuple[Any, ...], Any](__name__, "shared", 10_000)
SHARED = _BY_NUMBERS.table
_BY_IDENTITY = Cache[int, Any](__name__, "shared, by identity", 10_000)
"""The same lists, and those that another has replaced: each entry holds the list of its id."""


class Region:
    """A straight sequence of steps: the program, or the body of a branch."""

    __slots__ = ("inputs", "steps")

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.steps: list[Step] = []


class StepPosition(NamedTuple):
    """Where something happens while it is recorded."""

    steps: list[Step]
    """Those of the program, or of the region that is recorded."""
    before: int
    """How many of them there were before."""
    outside: int
    """How many steps the program had then."""


class InnerGraph:
    """A graph of its own that a step takes as an argument."""

    __slots__ = (
        "demands", "form", "inputs", "name", "operands", "origins", "outputs", "region",
    )  # fmt: skip

    def __init__(self, name: str, region: Region, inputs: list[Value], outputs: list[Any]) -> None:
        self.name = name
        self.region = region
        self.inputs = inputs
        self.outputs = outputs
        self.operands: Sequence[Any] | None = None
        """What the step gives it, by which its inputs are named; None: they are numbered."""
        self.origins: Any = None
        """Where it finds the values of symbols; None: it is a backward, and finds them where the
        program around it does."""
        self.demands: Sequence[Any] = ()
        """The conditions that it checks when it runs."""
        self.form: Any = tuple
        """What it returns: a tuple, a list, or (None) its only output as it is."""


class HeldModule:
    """A module that a step takes as it is, and what the program calls it."""

    __slots__ = ("module", "name")

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module


class Operands(list[Any]):
    """The operands of the graphs that a step takes: one tuple among its arguments."""

    __slots__ = ()
