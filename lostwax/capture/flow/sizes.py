"""Branches on declared sizes, where the user asks for both ways (`control_flow="sizes"`).

A question about a declared size that no hook has seen stops the capture: it begins anew, with hooks
in the function that asks. Where a question cannot be kept, it is *settled*: the example answers it,
with a guard, as it does without `control_flow="sizes"`. Must not record.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any

from lostwax.capture.flow.stand_ins import can_have_hooks
from lostwax.location import PASSING_ON, asking_frame
from lostwax.sym import BoolExpr, Expr, Symbol
from lostwax.sym.numbers.real import Real, definition

PASSING_ON.add(__file__)
_Place = tuple[str, int]
"""A file and a line."""


class SplitError(BaseException):
    """Python asks about a declared size. (No `Exception`: the user's code is not to catch it.)"""

    def __init__(self, code: CodeType, line: int) -> None:
        self.code, self.line = code, line
        super().__init__("a branch on a declared size")


class Splits:
    """What is known, over all captures of one export, of the questions about declared sizes."""

    def __init__(self) -> None:
        self._settled: set[_Place] = set()
        self._last: _Place | None = None
        self.reasons: list[str] = []
        """Why questions are settled that a hook has seen."""

    def ask(self, frame: FrameType, value: BoolExpr | Expr) -> None:
        """Python asks: stop the capture, unless the question is settled."""
        if can_have_hooks(frame.f_code) and self._concerns(frame, value):
            raise SplitError(frame.f_code, frame.f_lineno)

    def keeps(self, value: Any) -> bool:
        """Does a hook, which is asked about a value, go both ways?"""
        frame = asking_frame()
        if not (isinstance(value, (BoolExpr, Expr, Real)) and self._concerns(frame, value)):
            return False
        self._last = (frame.f_code.co_filename, frame.f_lineno)
        return True

    def _concerns(self, frame: FrameType, value: BoolExpr | Expr | Real) -> bool:
        place = (frame.f_code.co_filename, frame.f_lineno)
        return place not in self._settled and any(map(_is_declared, value.symbols()))

    def settle(self, file: str, line: int) -> bool:
        """Let the example answer there from now on. Returns whether that is new."""
        is_new = (file, line) not in self._settled
        self._settled.add((file, line))
        return is_new

    def settle_last(self, reason: Exception) -> bool:
        """Settle the question that was kept last. Returns whether there was one."""
        last, self._last = self._last, None
        if last is None or not self.settle(*last):
            return False
        self.reasons.append(str(reason))
        return True


def _is_declared(symbol: Symbol) -> bool:
    """Is it a declared size, or a number that floats compute of one (`math.sqrt(n) > 2`)?"""
    if symbol.declared:
        return True
    made = definition(symbol)
    parts = [a for a in made.args if isinstance(a, Real)] if made is not None else []
    return any(_is_declared(each) for part in parts for each in part.symbols())
