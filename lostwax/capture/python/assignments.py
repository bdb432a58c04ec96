"""Finds the user's line that sets or reads an attribute, for messages about what a call changed.

If several lines do, we guess the one that is called first: functions come in this order. Must not
run anything.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from lostwax.capture.python import code_names
from lostwax.location import Location

_SETTING = ("STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "STORE_GLOBAL")
_GETTING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "LOAD_GLOBAL")
_CHANGING = frozenset(
    (
        "append", "appendleft", "add", "update", "setdefault", "insert", "extend", "pop", "popleft",
        "popitem", "remove", "discard", "clear", "reverse", "sort", "rotate", "fill", "set",
    )
)  # fmt: skip


def line_that_sets(name: str, functions: Iterable[FunctionType]) -> Location | None:
    """The line where these functions set or change `name`."""
    read = [(code, _lines(code)) for code in _codes(functions) if name in _names_in(code)]
    for is_it in (_sets, _changes):
        for code, lines in read:
            for line, instructions in lines.items():
                if is_it(name, instructions):
                    return Location(code.co_filename, line, code.co_name)
    return None


def line_that_puts(key: Any, functions: Iterable[FunctionType]) -> Location | None:
    """The line where these functions put something under a key, `found["key"] = ...`."""
    for code in _codes(functions):
        for line, instructions in _lines(code).items():
            for (_, arg), (op, _) in pairwise(instructions):
                if op == "STORE_SUBSCR" and type(arg) is type(key) and arg == key:
                    return Location(code.co_filename, line, code.co_name)
    return None


def line_that_reads(name: str, functions: Iterable[FunctionType]) -> Location | None:
    """The line where they read the attribute `name` of anything but `self`."""
    for code in _codes(functions):
        before: Any = None
        for each in dis.get_instructions(code) if name in code.co_names else ():
            if each.opname == "LOAD_ATTR" and each.argval == name and before != "self":
                line = each.positions.lineno if each.positions is not None else None
                return Location(code.co_filename, line or code.co_firstlineno, code.co_name)
            before = each.argval
    return None


def _codes(functions: Iterable[FunctionType]) -> Iterator[CodeType]:
    for each in functions:
        if each.__name__ != "__init__":
            yield from code_names.nested_codes(each.__code__)


def _names_in(code: CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars, *code.co_cellvars)


def _lines(code: CodeType) -> dict[int, list[tuple[str, Any]]]:
    """The instructions of each line: their names and arguments."""
    found: dict[int, list[tuple[str, Any]]] = {}
    for each in dis.get_instructions(code):
        line = each.positions.lineno if each.positions is not None else None
        if line is not None:
            found.setdefault(line, []).append((each.opname, each.argval))
    return found


def _sets(name: str, line: list[tuple[str, Any]]) -> bool:
    return any(op in _SETTING and arg == name for op, arg in line)


def _changes(name: str, line: list[tuple[str, Any]]) -> bool:
    """Does the line load `name`, and change an item or call a method that changes a container?"""
    ops = {op for op, _ in line}
    changes = bool({"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"} & ops) or any(
        a in _CHANGING for _, a in line
    )
    return changes and any(op in _GETTING and arg == name for op, arg in line)
