"""Where in the user's code we are. A location is cheap to take, and becomes text when somebody
asks.

Layer 0: imports nothing of the house but `cache`.
"""

from __future__ import annotations

import functools
import linecache
import sys
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType

from lostwax.cache import Cache, cached

_HOUSE = str(Path(__file__).parent) + "/"


@dataclass(frozen=True)
class Location:
    """One line of the user's program."""

    file: str
    line: int
    function: str

    @cached_property
    def text(self) -> str:
        """The line's source code, stripped; empty when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line} in {self.function}"
        return f"{place}: {self.text}" if self.text else place


NOWHERE = Location("<unknown>", 0, "<unknown>")


def is_user_code(code: CodeType) -> bool:
    """False for frames of lostwax, of torch, Triton and of the interpreter's own libraries."""
    found = JUDGED.get(id(code))
    if found is None:
        found = _CACHE.keep(id(code), (code, is_user_file(code.co_filename)))
    return found[1]


def asks_for_user(code: CodeType) -> bool:
    """Is it the user's, or does it ask for the user? `functools.singledispatch` asks for the class
    of an argument."""
    return is_user_code(code) or code.co_filename == functools.__file__


# By identity, and kept alive: a code object's own hash reads all of it.
_CACHE = Cache[int, tuple[CodeType, bool]](__name__, "judged", 50_000)
JUDGED = _CACHE.table
"""The answers of `is_user_code` so far, for loops that ask it very often."""


def is_of_torch(file: str) -> bool:
    """Is it a file of lostwax, of torch or of Triton?"""
    in_packages = any(f"-packages/{name}/" in file for name in ("torch", "triton"))
    return in_packages or file.startswith(_HOUSE)


@cached(2000)
def is_user_file(file: str) -> bool:
    """Is it none of the house, of torch, Triton or of the interpreter's own libraries?"""
    if is_of_torch(file) or file.startswith(("<frozen", "<string>", "<eval")):
        return False
    return not file.startswith(_STDLIB) or "/site-packages/" in file


_STDLIB = str(Path(linecache.__file__).parent) + "/"


PASSING_ON = {__file__}
"""The files of the house that only pass a question on: the one who asks is whoever calls them."""


def asking_frame() -> FrameType:
    """The frame that asks the question which is being answered. `isinstance(x, nn.Parameter)` and
    `if size:` ask by way of methods of torch's, for the frame that they stand in."""
    frame = sys._getframe()
    while frame.f_back is not None:
        code = frame.f_code
        if code.co_filename not in PASSING_ON and not _is_between(code):
            break
        frame = frame.f_back
    return frame


def _is_between(code: CodeType) -> bool:
    if code.co_name == "__bool__":  # who knows what others make of the truth
        return is_of_torch(code.co_filename)
    return code.co_name == "__instancecheck__" and not is_user_code(code)


def is_asked_by_user() -> bool:
    """Is it the user's code that asks?"""
    return is_user_code(asking_frame().f_code)


def user_location() -> Location:
    """The nearest frame of user code above the caller."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        return NOWHERE
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def warn(text: str) -> None:
    """Warn at the nearest line of the user's, however deep in the house this is called."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        warnings.warn(text, stacklevel=2)
        return
    known = frame.f_globals
    registry = known.setdefault("__warningregistry__", {})
    file, module = frame.f_code.co_filename, known.get("__name__")
    warnings.warn_explicit(text, UserWarning, file, frame.f_lineno, module, registry)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        code = frame.f_code
        found = JUDGED.get(id(code))
        if is_user_code(code) if found is None else found[1]:
            return frame
        frame = frame.f_back
    return None
