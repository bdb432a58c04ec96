"""Branches on declared sizes, where the user asks for both ways (`control_flow="sizes"`).

A question about a declared size that no hook has seen stops the capture: it starts over, with hooks
in the function that asks. Where a question cannot be kept, it is *settled*: the example answers it,
with a guard, as it does without `control_flow="sizes"`. Must not record.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from lostwax.capture.attempt import SizeBranches
from lostwax.capture.flow.retry import ITEMS, SizeBranch
from lostwax.location import PASSING_ON, asking_frame, can_have_hooks
from lostwax.sym import BoolExpr, Expr, Symbol
from lostwax.sym.numbers.real import Real, definition

PASSING_ON.add(__file__)


class Splits:
    """Is asked, in one capture, about declared sizes of which both ways are wanted."""

    def __init__(self, settled: SizeBranches) -> None:
        self._settled = settled

    def ask(self, frame: FrameType, value: BoolExpr | Expr) -> None:
        """Python asks: stop the capture, unless the question is settled."""
        frame = _find_innermost(frame)
        if can_have_hooks(frame.f_code) and self._concerns(frame, value):
            raise SizeBranch(_find_written(frame), frame.f_lineno)

    def keeps(self, value: Any) -> bool:
        """Does a hook, which is asked about a value, go both ways?"""
        frame = asking_frame()
        if not (isinstance(value, (BoolExpr, Expr, Real)) and self._concerns(frame, value)):
            return False
        self._settled.last_tried[:] = [(frame.f_code.co_filename, frame.f_lineno)]
        return True

    def _concerns(self, frame: FrameType, value: BoolExpr | Expr | Real) -> bool:
        line = (frame.f_code.co_filename, frame.f_lineno)
        return line not in self._settled.lines and any(map(_is_declared, value.symbols()))


def _find_innermost(frame: FrameType) -> FrameType:
    """Who asks: the user's function, or one that stands in for Python's in it."""
    at: FrameType | None = sys._getframe()
    while at is not None and at is not frame and not can_have_hooks(at.f_code):
        at = at.f_back
    return frame if at is None else at


def _find_written(frame: FrameType) -> CodeType:
    """The function in which it is written, if it is a comprehension that asks."""
    code, at = frame.f_code, frame.f_back
    while code.co_name in ITEMS and at is not None:
        if code in at.f_code.co_consts:
            code = at.f_code
        at = at.f_back
    return code if can_have_hooks(code) else frame.f_code


def _is_declared(symbol: Symbol) -> bool:
    """Is it a declared size, or a number that floats compute of one (`math.sqrt(n) > 2`)?"""
    if symbol.declared:
        return True
    made = definition(symbol)
    parts = [a for a in made.args if isinstance(a, Real)] if made is not None else []
    return any(_is_declared(each) for part in parts for each in part.symbols())
