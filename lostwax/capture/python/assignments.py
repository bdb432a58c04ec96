"""Finds the user's line that sets or reads an attribute, for messages about what a call changed.

If several lines do, we guess the one that is called first. Must not run anything.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from lostwax.capture.python import code_names
from lostwax.capture.python.containers import is_object
from lostwax.capture.python.reachable import reachable_functions
from lostwax.location import Location

_SETTING = ("STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "STORE_GLOBAL")
_GETTING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "LOAD_GLOBAL")
_CHANGING = frozenset(
    (
        "append", "appendleft", "add", "update", "setdefault", "insert", "extend", "pop", "popleft",
        "popitem", "remove", "discard", "clear", "reverse", "sort", "rotate",
    )
)  # fmt: skip


def line_that_sets(name: str, starts: Iterable[Any]) -> Location | None:
    """The line where these functions, or the ones that they name, set or change `name`."""
    read = [(code, _lines(code)) for code in _codes(starts) if name in _names_in(code)]
    for is_it in (_sets, _changes):
        for code, lines in read:
            for line, instructions in lines.items():
                if is_it(name, instructions):
                    return Location(code.co_filename, line, code.co_name)
    return None


def line_that_reads(name: str, starts: Iterable[Any]) -> Location | None:
    """The line where they read the attribute `name` of anything but `self`."""
    for code in _codes(starts):
        before: Any = None
        for each in dis.get_instructions(code) if name in code.co_names else ():
            if each.opname == "LOAD_ATTR" and each.argval == name and before != "self":
                line = each.positions.lineno if each.positions is not None else None
                return Location(code.co_filename, line or code.co_firstlineno, code.co_name)
            before = each.argval
    return None


def functions_of(call: Any, modules: Iterable[nn.Module]) -> list[Any]:
    """The called function, and the methods of the modules and of the objects in their attributes.
    The one that runs first comes last, since `reachable_functions` begins at the end."""
    modules = list(modules)
    classes = dict.fromkeys(type(module) for module in modules)
    held = (value for module in modules for value in vars(module).values())
    objects = dict.fromkeys(type(value) for value in held if is_object(value))
    return [*objects, *classes, *(cls.forward for cls in reversed(classes)), call]


def _codes(starts: Iterable[Any]) -> Iterator[CodeType]:
    for function in reachable_functions(starts):
        if isinstance(function, FunctionType) and function.__name__ != "__init__":
            yield from code_names.nested_codes(function.__code__)


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
