"""What two functions return, made one: an operator has results of one type, whichever way it goes.

Sizes that differ become a number that the program learns when it runs. What cannot be one type is
refused with the lines of both sides. Must not know which operator it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.utils._pytree as pytree

from lostwax.capture.control.lifting import line_of
from lostwax.capture.control.scope import RecordedFunction, are_equal, find_order, lay_out
from lostwax.capture.trace.record import note_sizes
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.trace.log import Step, Value
from lostwax.location import user_location
from lostwax.sym import BoolExpr, Expr, Size, current, eq, known
from lostwax.sym.numbers.real import Real
from lostwax.types import TensorType

NUMBERS = (int, Expr, BoolExpr, Real)
ALIKE = "let both lie alike in memory, y.contiguous()"


class Side(NamedTuple):
    """One of the functions, and its name for messages."""

    name: str
    recorded: RecordedFunction


class Merger:
    """Makes the results of two functions one."""

    def __init__(self, tracer: Tracer, what: str, one: Side, other: Side) -> None:
        self.tracer = tracer
        self.what = what
        self.one = one
        self.other = other
        self._merged: dict[tuple[Size, Size, int | None], Expr] = {}
        """What numbers of the two became: the same ones are the same again."""

    def check_structure(self) -> None:
        a, b = self.one.recorded.structure, self.other.recorded.structure
        if a != b:
            raise self._disagree("", _describe_structure(a), _describe_structure(b))

    def merge(self, place: str, a: Any, b: Any) -> TensorType | Expr | None:
        """The type of a result; None if it is the same in both and need not be returned."""
        if isinstance(a, Value) and isinstance(b, Value) and a.type is not None:
            assert b.type is not None
            found = self._merge_tensors(place, a, b)
            if found is None:
                raise self._layouts_differ(place, a, b)
            return found
        if not isinstance(a, Value) and not isinstance(b, Value):
            a, b = _simplify(a), _simplify(b)
            if a is b or (not isinstance(a, Expr) and _are_alike(a, b)):
                return None
            if _is_integer(a) and _is_integer(b):
                if self._find_both(a, b) is a:
                    return None
                return self._merge_numbers(a, b)
        instead = "return tensors, torch.full((), number); or the same value from both"
        raise self._disagree(place, describe(a), describe(b), instead)

    def merge_written(self, a: Value, b: Value) -> TensorType:
        """The type of what is in a tensor from outside, which one of them has written to."""
        found = self._merge_tensors("a tensor from outside", a, b)
        assert a.type is not None
        return found or TensorType(a.type.size, a.type.dtype, a.type.device)

    def _merge_tensors(self, place: str, a: Value, b: Value) -> TensorType | None:
        """None: they lie in memory otherwise."""
        s, t = a.type, b.type
        assert s is not None
        assert t is not None
        if (s.dtype, s.device, s.ndim) != (t.dtype, t.device, t.ndim):
            instead = "convert one of them, y.to(x.dtype)"
            if s.dtype is t.dtype:
                instead = (
                    "move one of them, y.to(x.device)"
                    if s.device != t.device
                    else "give both the same number of dimensions, y.unsqueeze(0) or y.view(...)"
                )
            raise self._disagree(place, describe(a), describe(b), instead)
        sizes: list[Size] = []
        for m, n in zip(s.size, t.size, strict=True):
            m, n = current(m), current(n)
            both = self._find_both(m, n)
            sizes.append(self._merge_numbers(m, n, least=0) if both is None else both)
        if are_equal(s.stride, t.stride):
            if tuple(sizes) == s.size:
                return s.replace(offset=0) if s.offset != 0 else s
            return TensorType(tuple(sizes), s.dtype, s.device, s.stride)
        order = find_order(s, t)
        if order is None and not self._can_be_moved(a, b):
            return None
        order = [*range(s.ndim)][::-1] if order is None else order
        return TensorType(tuple(sizes), s.dtype, s.device, lay_out(sizes, order))

    def _can_be_moved(self, a: Value, b: Value) -> bool:
        """May two that lie otherwise in memory become one that lies row by row?"""
        return False

    def _layouts_differ(self, place: str, a: Value, b: Value) -> CaptureError:
        one, other = (describe(each, with_strides=True) for each in (a, b))
        return self._disagree(place, one, other, ALIKE)

    def _find_both(self, a: Size, b: Size) -> Size | None:
        """The one of two numbers that is right whichever way it goes: the other function ends only
        where they are equal. (`if pad > 0: y = y[:n]`: else all of `y` is n long.)"""
        if a == b or known(eq(a, b)) is True:
            return a
        for number, there in ((a, self.other), (b, self.one)):
            symbols = number.symbols() if isinstance(number, Expr) else ()
            ended = self.tracer.regions.ended
            if not any(each in ended for each in symbols) and there.recorded.scope.proves(eq(a, b)):
                return number
        return None

    def _merge_numbers(self, a: Size, b: Size, least: int | None = None) -> Expr:
        """`least`: what neither is below, though that may be known inside of the functions only."""
        if (a, b, least) in self._merged:
            return self._merged[a, b, least]
        env = self.tracer.shape_env
        (low, high), (lower, higher) = env.bounds(a), env.bounds(b)
        lo = None if low is None or lower is None else min(low, lower)
        if least is not None:
            lo = least if lo is None else max(lo, least)
        hi = None if high is None or higher is None else max(high, higher)
        merged = env.unbacked(lo=lo, hi=hi, origin=f"what {self.what} return")
        self._merged[a, b, least] = merged
        return merged

    def _disagree(self, place: str, a: str, b: str, instead: str = "") -> CaptureError:
        sides = "".join(
            f"\n    {side.name} returns {what}" for side, what in ((self.one, a), (self.other, b))
        )
        return CaptureError(
            f"{self.what} do not agree{f' in {place}' if place else ''}:{sides}\n"
            f"  at {user_location()}\n"
            "  why: the program goes on with what one of them returns, and must know what it is\n"
            f"  instead: {instead or 'let both return the same structure'}"
        )


def _is_integer(value: Any) -> bool:
    return type(value) in (int, Expr)  # no truth, no member of an `IntEnum`


def _are_alike(a: Any, b: Any) -> bool:
    """Are they equal, and of one class? (0.0 and -0.0 are equal, and are not the same.)"""
    if isinstance(a, (float, complex)):
        return type(a) is type(b) and repr(a) == repr(b)
    return type(a) is type(b) and bool(a == b)


def _simplify(value: Any) -> Any:
    return current(value) if isinstance(value, Expr) else value


def _describe_structure(structure: pytree.TreeSpec) -> str:
    if structure.is_leaf():
        return "one value"
    shown = pytree.tree_unflatten([...] * structure.num_leaves, structure)
    return f"{shown!r}".replace("Ellipsis", "…")


def describe(value: Any, with_strides: bool = False) -> str:
    """What a value is, and the line that computed it."""
    if not isinstance(value, Value) or value.type is None:
        return f"{value!r}, a number" if isinstance(value, NUMBERS) else f"{value!r}"
    t, where = value.type, line_of(value.step)
    device = "" if t.device.type == "cpu" else f" on {t.device}"
    strides = f" with strides {list(map(str, t.stride))}" if with_strides else ""
    text = f"{str(t.dtype).removeprefix('torch.')}{list(map(str, t.size))}{strides}{device}"
    return f"{text.replace(chr(39), '')}{'' if where is None else f', from {where}'}"


def new_results(tracer: Tracer, step: Step, types: Sequence[Any]) -> list[Any]:
    """Give a step its results, of these types; numbers are expressions."""
    fakes = [new_fake(tracer, t) if isinstance(t, TensorType) else wrap(t) for t in types]
    tracer.set_results(step, tuple(fakes))
    note_sizes(tracer, [fake for fake in fakes if isinstance(fake, FakeTensor)])
    return fakes
