"""Where in the user's code we are. A location is cheap to take, and becomes text when somebody
asks.

Layer 0: imports nothing of lostwax but `cache`.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

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
        if self.line == 0:
            return UNKNOWN
        place = f"{show_path(self.file)}:{self.line} in {self.function}"
        return f"{place}: {self.text}" if self.text else place


def show_path(file: str) -> str:
    """A file as terminals and editors open it: relative to the working directory if it is below,
    else as it is."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the working directory is gone
        return file
    return file.removeprefix(here.rstrip("/") + "/")


def shorten_path(file: str) -> str:
    """A file without the names of this machine's folders: relative to the folder that packages are
    installed in, or to the working directory, else its name alone."""
    if not os.path.isabs(file):
        return file
    for installed in ("/site-packages/", "/dist-packages/"):
        if installed in file:
            return file.rpartition(installed)[2]
    shown = show_path(file)
    is_below = not os.path.isabs(shown) and file != f"/{shown}"  # everything is below of "/"
    return shown if is_below else Path(file).name


class Span(NamedTuple):
    """A part of a line of the user's program: columns in bytes, as Python counts them."""

    file: str
    line: int
    function: str
    start: int
    last: int
    """The line that it ends in."""
    end: int


def locate_span(frame: FrameType) -> Span | None:
    """What runs now in a frame; None if the interpreter keeps no columns."""
    code = frame.f_code
    found = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    line, last, start, end = found or (None, None, None, None)
    if line is None or last is None or start is None or end is None:
        return None
    return Span(code.co_filename, line, code.co_name, start, last, end)


def read_columns(span: Span) -> tuple[str, int, int] | None:
    """The stripped line, and from which to which of its characters a span goes, at most to its
    end; None if that is all of it, or it cannot be read."""
    whole = linecache.getline(span.file, span.line).rstrip()
    source, data = whole.lstrip(), whole.encode()
    indent = len(whole) - len(source)
    start = len(data[: span.start].decode(errors="ignore")) - indent
    goes_on = span.last > span.line
    end = len(source) if goes_on else len(data[: span.end].decode(errors="ignore")) - indent
    if not 0 <= start < end <= len(source) or end - start == len(source):
        return None
    return source, start, end


def mark_span(text: str, span: Span) -> str:
    """A text with `^^^` below the part of the user's line, at the first place that shows it."""
    place = f"{show_path(span.file)}:{span.line} in {span.function}: "
    if place not in text or (columns := read_columns(span)) is None:
        return text
    source, start, end = columns
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.endswith(place + source):
            before = " " * (len(line) - len(source) + start)
            marks = before + "^" * (end - start)
            if lines[i + 1 : i + 2] != [marks]:
                lines.insert(i + 1, marks)
            break
    return "\n".join(lines)


NOWHERE = Location("<unknown>", 0, "<unknown>")
UNKNOWN = "an unknown line"
"""How `NOWHERE` is shown."""

_SHOWN = (
    r"(?:(?<=\bat )|^)"  # "item() at model.py:3 in forward: x.item()", or the place alone
    r"(?P<file>/[^\n]*?|<[^\n]*?>|(?:(?! at )[^\n])+?)"
    r"(?P<line>:\d+ in [^\s:]+(?:: [^\n]*)?)"
)


def shorten_places(text: str) -> str:
    """A text with the files of the locations in it shortened."""
    return re.sub(_SHOWN, lambda found: shorten_path(found["file"]) + found["line"], text)


def strip_places(text: str) -> str:
    """A text without the locations in it."""
    return re.sub(_SHOWN, UNKNOWN, text)


def is_user_code(code: CodeType) -> bool:
    """False for frames of lostwax, of torch, Triton and of the interpreter's own libraries."""
    found = JUDGED.get(id(code))
    if found is None:
        found = _CACHE.keep(id(code), (code, is_user_file(code.co_filename)))
    return found[1]


def may_be_users(code: CodeType) -> bool:
    """Is it the user's, or a text that `exec` or `eval` runs? (Whose it is, that does not tell.)"""
    return is_user_code(code) or code.co_filename == "<string>"


def asks_for_user(code: CodeType) -> bool:
    """Is it the user's, or does it ask for the user? `functools.singledispatch` asks for the class
    of an argument."""
    return is_user_code(code) or code.co_filename == functools.__file__


# By identity, and kept alive: a code object's own hash reads all of it.
_CACHE = Cache[int, tuple[CodeType, bool]](__name__, "judged", 50_000)
JUDGED = _CACHE.table
"""The answers of `is_user_code` so far, for loops that ask it very often."""


def is_of_torch(file: str) -> bool:
    """Is it a file of lostwax, of torch, of Triton, or of sympy, which torch imports in the middle
    of a capture?"""
    in_packages = any(f"-packages/{name}/" in file for name in _OF_TORCH)
    return in_packages or file.startswith(_HOUSE)


_OF_TORCH = ("torch", "triton", "sympy", "mpmath")


@cached(2000)
def is_user_file(file: str) -> bool:
    """Is it none of lostwax, of torch, Triton or of the interpreter's own libraries?"""
    if is_of_torch(file) or file.startswith(("<frozen", "<string>", "<eval")):
        return False
    return not is_of_python(file)


def is_of_python(file: str) -> bool:
    """Is it one of Python's libraries, or the one that puts functions into `typing`?"""
    if file.endswith("-packages/typing_extensions.py"):
        return True
    return file.startswith(_STDLIB) and "/site-packages/" not in file


_STDLIB = str(Path(linecache.__file__).parent) + "/"


PASSING_ON = {__file__}
"""The files of lostwax that only pass a question on: the one who asks is whoever calls them."""
STANDING_IN = set[str]()
"""The files of lostwax with functions of Python's, written in Python: they ask as the user's do."""


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
    if code.co_name in (
        "__bool__",
        "__index__",
        "__int__",
    ):  # who knows what others make of the truth
        return is_of_torch(code.co_filename)
    return code.co_name == "__instancecheck__" and not is_user_code(code)


def is_asked_by_user() -> bool:
    """Is it the user's code that asks?"""
    return is_user_code(asking_frame().f_code)


def user_location() -> Location:
    """The nearest frame of user code above the caller."""
    frame = find_user_frame(sys._getframe(1))
    if frame is None:
        return NOWHERE
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def locate_line(frame: FrameType, line: int) -> Location:
    """A line of a function that runs; of one of lostwax, the user's line that it runs for."""
    if not is_user_code(frame.f_code) and (above := find_user_frame(frame)) is not None:
        frame, line = above, above.f_lineno
    return Location(frame.f_code.co_filename, line, frame.f_code.co_name)


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextmanager
def hear_warnings() -> Iterator[list[str]]:
    """Inside, all that `warn` is given is also put into the list."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def warn(text: str) -> None:
    """Warn at the nearest line of the user's, however deep in lostwax this is called."""
    heard = _heard.get()
    if heard is not None:
        heard.append(text)
    frame = find_user_frame(sys._getframe(1))
    if frame is None:
        warnings.warn(text, stacklevel=2)
        return
    known = frame.f_globals
    registry = known.setdefault("__warningregistry__", {})
    file, module = frame.f_code.co_filename, known.get("__name__")
    warnings.warn_explicit(text, UserWarning, file, frame.f_lineno, module, registry)


def find_user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of user code, from this one on."""
    while frame is not None:
        code = frame.f_code
        found = JUDGED.get(id(code))
        if is_user_code(code) if found is None else found[1]:
            return None if id(code) in _OUTERMOST else frame
        frame = frame.f_back
    return None


def end_search_at(code: CodeType) -> None:
    """Above a call of this function there is no code of the user's: what runs a command does, and
    it is not what the user wrote. (Judged as if it were the user's, it ends the search.)"""
    _OUTERMOST[id(code)] = code
    _CACHE.keep(id(code), (code, True))


_OUTERMOST: dict[int, CodeType] = {}


def find_raised(error: BaseException) -> tuple[str, int] | None:
    """The innermost line of the user's that an exception has come through: file and line."""
    found = None
    for each in find_tracebacks(error):
        if find_user_frame(each.tb_frame) is each.tb_frame:
            found = (show_path(each.tb_frame.f_code.co_filename), each.tb_lineno)
    return found


def can_have_hooks(code: CodeType) -> bool:
    """Is it code of the user's, or of what stands in for other functions?"""
    return is_user_code(code) or code.co_filename in STANDING_IN


def is_own_file(file: str) -> bool:
    return file.startswith(_HOUSE)


UNSEEN = "<unseen>"
"""The name of code that stands for what nobody may look at."""


def find_tracebacks(error: BaseException | None) -> Iterator[TracebackType]:
    """Where an error has come through, outermost first. (What stands there for functions that
    nobody may look at is no such place.)"""
    at = None if error is None else error.__traceback__
    while at is not None and at.tb_frame.f_code.co_name != UNSEEN:
        yield at
        at = at.tb_next
