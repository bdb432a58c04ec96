"""Reads which names a function uses, and what its code does with them. Must not run anything."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from lostwax.cache import cached_by_identity


def closure_variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values in a function's closure."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not set yet
            continue


def argument_defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The arguments that have defaults, with these."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(values) :], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


@cached_by_identity(20_000)
def globals_read(code: CodeType) -> frozenset[str]:
    """The globals that it reads. (`code.co_names` has the names of attributes, too.)"""
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in _READING)


def words(code: CodeType) -> tuple[str, ...]:
    """Its names, and its strings, which may be names, too: `getattr(module, "name")`."""
    return (*code.co_names, *[each for each in code.co_consts if type(each) is str])


def modules_imported(code: CodeType, known: dict[str, Any]) -> tuple[str, ...]:
    """The full names of the modules that the code imports when it runs."""
    package = known.get("__package__") or str(known.get("__name__")).rpartition(".")[0]
    return tuple([_absolute_name(name, level, package) for name, level in _imports(code)])


@cached_by_identity(20_000)
def _imports(code: CodeType) -> tuple[tuple[str, int], ...]:
    found, level = [], 0
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_CONST" and isinstance(each.argval, int):
            level = each.argval
        elif each.opname == "IMPORT_NAME":
            found.append((each.argval, level))
    return tuple(found)


def _absolute_name(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    above = package.rsplit(".", level - 1)[0]
    return f"{above}.{name}" if name else above


@cached_by_identity(20_000)
def globals_set(code: CodeType) -> frozenset[str]:
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL")


@cached_by_identity(20_000)
def nonlocals_set(code: CodeType) -> frozenset[str]:
    """The variables of enclosing functions that it sets (`nonlocal`)."""
    instructions = dis.get_instructions(code) if code.co_freevars else ()
    return frozenset(i.argval for i in instructions if i.opname == "STORE_DEREF")


@cached_by_identity(20_000)
def sets_items(code: CodeType) -> bool:
    """Does it have an `x[i] = y`?"""
    return any(i.opname in ("STORE_SUBSCR", "STORE_SLICE") for i in dis.get_instructions(code))


_READING = ("LOAD_GLOBAL", "LOAD_NAME")
