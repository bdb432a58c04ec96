"""The page of an error: the parts of its class docstring. Loaded by those who show pages, and by no
export."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

from lostwax.errors.base import LostwaxError


class ErrorPage(NamedTuple):
    """What is reported of a class of errors."""

    name: str
    code: str
    cause: str
    fix: str
    example: str
    """A program that gives the error; it finds `torch` and `lostwax` imported. Empty of a class
    that is never raised itself."""
    mended: str
    """How the program goes on without it."""


_PARTS = re.compile(r"^(What to do|Example|Mended):\s+", re.M)


def read_page(error: type[LostwaxError]) -> ErrorPage:
    """The parts of a class docstring."""
    cause, *rest = _PARTS.split(inspect.getdoc(error) or "")
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    code = (_dedent(parts.get(name, "")) for name in ("Example", "Mended"))
    return ErrorPage(error.__name__, error.code, cause.strip(), parts["What to do"].strip(), *code)


def _dedent(block: str) -> str:
    """A block of code, of which the first line has lost its indent to the heading's pattern."""
    return re.sub(r"^    ", "", block.strip(), flags=re.M)
