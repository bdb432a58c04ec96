"""The class of a symbolic number, as the program that is captured sees it: `isinstance(n, int)` is
True, as it is in eager; so are `n.__class__ is int` and `case int():`.

Everybody else is shown torch's class, and so are programs that ask for that. `type(n)` cannot be
answered here: for `type` stands something else (`capture/patches/classes.py`). Must not know what
is done with the answer.
"""

from __future__ import annotations

import functools
import gc
import sys
from types import CodeType, FrameType
from typing import Any

from lostwax.branches import is_run_by_capture
from lostwax.classes import SHOWN, SYMBOLIC
from lostwax.location import JUDGED, asks_for_user, is_user_code


def install(nodes: tuple[Any, ...]) -> None:
    """Let torch's classes answer so, for numbers with these nodes."""
    for cls, node in zip(SYMBOLIC, nodes, strict=True):
        # `cls.__class__ = …` would be about the class of the class.
        (names,) = [each for each in gc.get_referents(cls.__dict__) if type(each) is dict]
        names["__class__"] = property(_make_getter(cls, node))
        cls.__doc__ = cls.__doc__  # Python keeps what it has looked up until a class is changed


def _make_getter(cls: Any, node: Any) -> Any:
    plain = SHOWN[cls]

    def get_class(self: Any) -> Any:
        frame = sys._getframe(1)
        found = JUDGED.get(id(frame.f_code))
        if found is not None and not found[1] and not _may_ask_for_others(frame.f_code):
            return cls
        return plain if self.node.__class__ is node and _asks_for_program(frame) else cls

    return get_class


def _may_ask_for_others(code: CodeType) -> bool:
    return code.co_name == "__instancecheck__" or code.co_filename == functools.__file__


def _asks_for_program(frame: FrameType | None) -> bool:
    """Is it the program that is captured that asks?"""
    while frame is not None and frame.f_code.co_name == "__instancecheck__":
        if is_user_code(frame.f_code):
            break
        frame = frame.f_back
    return frame is not None and asks_for_user(frame.f_code) and is_run_by_capture(frame)
