"""What rewritten code says of an `if` or a loop to the hooks that it calls there."""

from __future__ import annotations

from typing import NamedTuple


class Site(NamedTuple):
    """Which `if` or loop of a function it is."""

    line: int
    column: int
    joins: tuple[str, bool, tuple[tuple[str, ...], ...]] | None = None
    """Of an `if` that stands for `a and b` or `a or b`, where `b` may be computed in any case if
    nobody notices that: the variable, whether it is `and`, and what `b` reads, each a name or one
    with an attribute."""
    read_last: tuple[str, ...] = ()
    """The variables that are read when the function is left: by a `finally`."""
    apart: tuple[str, ...] = ()
    """The variables that may be one thing or another."""
    is_guard: bool = False
    """Does it ask whether a loop runs?"""
    live: tuple[str, ...] = ()
    """All variables that are read after it."""


class LoopSite(NamedTuple):
    """Which loop of a function it is."""

    line: int
    column: int
    grows: bool
    """Does it append to lists? Then it becomes a `scan`, if it runs to its end."""
    keeps: bool
    """Does its body read what earlier turns have appended?"""
    is_guarded: bool
    """Does it stand in an `if` that asks whether it runs?"""
    items: str = ""
    at: str = ""
    """The variables of what a `for` goes over, and of where it is."""
    stop: str | None = None
    """The variable that tells whether it is left before its end."""
    apart: tuple[str, ...] = ()
    """The variables that may be one thing or another."""
