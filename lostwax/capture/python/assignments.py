"""Finds the user's line that sets or reads an attribute, for messages about what a call changed.

If several lines do, we guess the one that is called first: functions come in this order. Must not
run anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from lostwax.bytecode import (
    CHANGING_METHODS,
    Instruction,
    gets,
    nested_codes,
    puts_item,
    read_lines,
    read_steps,
    sets,
)
from lostwax.location import Location


def line_that_sets(name: str, functions: Iterable[FunctionType]) -> Location | None:
    """The line where these functions set or change `name`."""
    read = [code for code in _codes(functions) if name in _names_in(code)]
    for is_it in (_sets, _changes):
        for code in read:
            for line, steps in read_lines(code).items():
                if is_it(name, steps):
                    return Location(code.co_filename, line, code.co_name)
    return None


def line_that_puts(key: Any, functions: Iterable[FunctionType]) -> Location | None:
    """The line where these functions put something under a key, `found["key"] = ...`."""
    for code in _codes(functions):
        for line, steps in read_lines(code).items():
            for (_, _, given, *_), step in pairwise(steps):
                if step.opname == "STORE_SUBSCR" and type(given) is type(key) and given == key:
                    return Location(code.co_filename, line, code.co_name)
    return None


def line_that_reads(name: str, functions: Iterable[FunctionType]) -> Location | None:
    """The line where they read the attribute `name` of anything but `self`."""
    for code in _codes(functions):
        steps = read_steps(code) if name in code.co_names else ()
        for before, step in pairwise(steps):
            if step.opname == "LOAD_ATTR" and step.argval == name and before.argval != "self":
                return Location(code.co_filename, step.line or code.co_firstlineno, code.co_name)
    return None


def _codes(functions: Iterable[FunctionType]) -> Iterator[CodeType]:
    for each in functions:
        if each.__name__ != "__init__":
            yield from nested_codes(each.__code__)


def _names_in(code: CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars, *code.co_cellvars)


def _sets(name: str, line: list[Instruction]) -> bool:
    return any(sets(step, name) for step in line)


def _changes(name: str, line: list[Instruction]) -> bool:
    """Does the line load `name`, and change an item or call a method that changes a container?"""
    changes = any(puts_item(step) or step.argval in CHANGING_METHODS for step in line)
    return changes and any(gets(step, name) for step in line)
