"""The table from operators to ONNX: which function writes an operator, from which opset on.

Entries stand in `operators/`, one family a file; users add their own by the same decorator. Must
not know how nodes are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch._ops import HigherOrderOperator, OpOverload

from lostwax.ops.dialect_operator import overload_of

Translation = Callable[..., Any]
"""Takes an `OnnxWriter` and the operator's arguments, tensors as `OnnxTensor`s, sizes as ints or
expressions; returns the `OnnxTensor` that the operator gives, or a list where it gives several."""
F = TypeVar("F", bound=Translation)

OLDEST, NEWEST, USUAL = 18, 26, 23
"""The opsets that can be written: the newest is the newest that onnxruntime runs."""


class _Since(NamedTuple):
    since: int
    function: Translation


_ENTRIES: dict[str, list[_Since]] = {}
"""For each operator how it is written, the entry of the newest opset first."""


def translation(*names: str, since: int = OLDEST) -> Callable[[F], F]:
    """Say how operators are written in ONNX: the decorated function is called with an `OnnxWriter`
    and the arguments of the call, as the operator's schema has them.

    Each of `names` is that of an overload, "mylib::scale" or "mylib::scale.Tensor"; those of
    ATen may be without "aten::". From the opset `since` on it takes the place of earlier ones, and
    of one that was there for the same opset.
    """

    def register(function: F) -> F:
        for name in names:
            entries = _ENTRIES.setdefault(name if "::" in name else f"aten::{name}", [])
            entries[:] = [each for each in entries if each.since != since]
            entries.append(_Since(since, function))
            entries.sort(reverse=True, key=lambda each: each.since)
        return function

    return register


def find_translation(target: Any, opset: int) -> Translation | None:
    """How a call of this target is written; None if nobody says it."""
    for entry in _ENTRIES.get(name_of(target), ()):
        if entry.since <= opset:
            return entry.function
    return None


Simplification = Callable[..., Any]
"""Takes an `OnnxWriter`, the inputs of a node that is to be written and its attributes; returns the
`OnnxTensor` that it would give, made of other nodes, or None."""
_SIMPLER: dict[str, list[_Since]] = {}


def simplification(op: str, *, since: int = OLDEST) -> Callable[[F], F]:
    """Say what is written in place of nodes of an operator of ONNX, where they are the last ones of
    a pattern. What they took the place of is not kept, unless others read it."""

    def register(function: F) -> F:
        _SIMPLER.setdefault(op, []).append(_Since(since, function))
        return function

    return register


def find_simplifications(op: str) -> Sequence[_Since]:
    """Those of an operator, each with the opset from which on it holds."""
    return _SIMPLER.get(op, ())


def name_of(target: Any) -> str:
    """The name by which the table knows an operator, or a function of Python's."""
    target = overload_of(target)
    if isinstance(target, OpOverload):
        return str(target.name())
    if isinstance(target, HigherOrderOperator):
        return f"higher_order::{target.name()}"
    return f"python::{getattr(target, '__name__', target)}"


class NotWritten(Exception):
    """Raised by a translation that does not cover a call: what it is, and what to write instead."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead
