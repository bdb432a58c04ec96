"""How one of several values (`one_of.py`) gets from the function that returns it to the one that
has called it, and to nobody else.

Python asks nobody for `x is None`: code that does not know of such a thing would be answered as if
it were an object of its own. So a function hands one back only where the call in progress is its
own, in a function that looks at what it gets; and that receives it next, or all is refused. Must
not record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch

from lostwax.bytecode import instruction_at
from lostwax.capture.python.module_hooks import find_kept, identity_of, read_code
from lostwax.capture.python.one_of import OneOf, choose_returned, find_function
from lostwax.capture.python.raising import MayRaise
from lostwax.errors import CaptureError
from lostwax.location import STANDING_IN, Location, is_own_file, locate_line

_MODULES = sys.modules[torch.nn.Module.__module__].__file__
_ROOT = "call_watched"
"""The function of ours that calls what is exported."""


class CallsInProgress:
    """The calls of functions that look at what they get, the innermost last."""

    def __init__(self) -> None:
        self._begun: list[tuple[FrameType, Any, int]] = []
        self._returned: Any = None
        """What a function has handed back, and nobody has received."""

    def begin(self, frame: FrameType, function: Any, raises: int = 0) -> None:
        """The function that runs here is about to call this one; then it receives. `raises`: how
        many exceptions it expects to be given."""
        self._begun.append((frame, function, raises))

    def give_raised(self, frame: FrameType, value: MayRaise) -> bool:
        """The function that runs here returns this, if who has called it expects it."""
        self._refuse()
        calling = frame.f_back
        while calling is not None and passes_result_on(calling):
            calling = calling.f_back
        if calling is None or find_kept(frame) is not None or not self._is_called(frame, calling):
            return False
        if self._begun[-1][2] < len(value.raised):
            return False
        self._returned = value
        return True

    def hand_back(self, frame: FrameType, value: Any) -> None:
        """The function that runs here returns this."""
        self._refuse()
        if type(value) is not OneOf:
            return
        calling = frame.f_back
        while calling is not None and passes_result_on(calling):
            calling = calling.f_back
        if calling is not None and _is_root(calling):
            return
        if calling is None or find_kept(frame) is not None:
            raise value._lw_refuse()
        if not self._is_called(frame, calling):
            refuse = partial(
                _refuse_given, value._lw_refuse, locate_line(calling, calling.f_lineno)
            )
            raise value._lw_asked([(find_function(calling), {})], refuse)
        self._returned = value

    def receive(self, frame: FrameType, value: Any) -> None:
        """A call has returned this to the function that runs here."""
        while self._begun and self._begun.pop()[0] is not frame:
            pass  # it was left by an exception
        if type(value) is OneOf and self._returned is None:
            raise value._lw_refuse()
        if type(value) is MayRaise and value is not self._returned:
            raise value.refuse()
        if value is self._returned:
            self._returned = None
        self._refuse()

    def end(self, result: Any) -> Any:
        """What the module returns: none of these things is on the way."""
        self._refuse()
        return choose_returned(result)

    def _refuse(self) -> None:
        if self._returned is not None:
            is_raised = type(self._returned) is MayRaise
            raise self._returned.refuse() if is_raised else self._returned._lw_refuse()

    def _is_called(self, frame: FrameType, calling: FrameType) -> bool:
        """Is it this function itself that is called, and not by another one or by what Python calls
        without a call (a property, an iterator)?"""
        begun, function, _ = self._begun[-1] if self._begun else (None, None, 0)
        step = instruction_at(calling.f_code, calling.f_lasti)
        if begun is not calling or not step.startswith("CALL"):
            return False
        if frame.f_code.co_filename in STANDING_IN and _stands_in(function):
            return True
        if isinstance(function, torch.nn.Module):
            function = function.forward
        elif frame.f_back is not calling:
            return False
        code = read_code(function)
        return code is not None and identity_of(code) == identity_of(frame.f_code)


def _stands_in(function: Any) -> bool:
    """Is it one of ours in the place of Python's, which hands on what the last one returns?"""
    while type(function) is partial:
        function = function.func
    return type(function) is FunctionType and is_own_file(function.__code__.co_filename)


def _refuse_given(refuse: Callable[[], CaptureError], where: Location) -> CaptureError:
    """… where something else than the user's own code gets it, which the user has called here."""
    error = refuse()
    before, why, after = error.args[0].partition("\n  why:")
    error.args = (f"{before}\n  it is called at {where}{why}{after}",)
    return error


def _is_root(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == _ROOT and is_own_file(code.co_filename)


def passes_result_on(frame: FrameType) -> bool:
    code = frame.f_code
    if is_own_file(code.co_filename):
        return not _is_root(frame) and "begin" not in code.co_names
    return code.co_filename == _MODULES and code.co_name in ("_call_impl", "_wrapped_call_impl")
