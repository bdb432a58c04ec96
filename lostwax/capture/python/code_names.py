"""What a function has names for, and what its code does with them: read, never run."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from lostwax.identity import ByIdentity


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What is in its closure, by name."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not set yet
            continue


def defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Those of its arguments."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(values) :], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code, and those of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def globals_read(code: CodeType) -> frozenset[str]:
    """(`code.co_names` has the names of attributes, too.)"""
    found = _READ.get(code)
    if found is None:
        if len(_READ) >= _MOST:
            _READ.clear()
        instructions = dis.get_instructions(code)
        found = _READ[code] = frozenset(i.argval for i in instructions if i.opname in _READING)
    return found


def words(code: CodeType) -> tuple[str, ...]:
    """Its names, and the text in it, which may be one: `getattr(module, "name")`."""
    return (*code.co_names, *[each for each in code.co_consts if type(each) is str])


def imported(code: CodeType, known: dict[str, Any]) -> tuple[str, ...]:
    """The modules that it imports itself, by their full names."""
    found = _IMPORTED.get(code)
    if found is None:
        if len(_IMPORTED) >= _MOST:
            _IMPORTED.clear()
        found = _IMPORTED[code] = tuple(_imports(code))
    package = known.get("__package__") or str(known.get("__name__")).rpartition(".")[0]
    return tuple([_absolute(name, level, package) for name, level in found])


def _imports(code: CodeType) -> Iterator[tuple[str, int]]:
    level = 0
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_CONST" and isinstance(each.argval, int):
            level = each.argval
        elif each.opname == "IMPORT_NAME":
            yield each.argval, level


def _absolute(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    above = package.rsplit(".", level - 1)[0]
    return f"{above}.{name}" if name else above


def globals_set(code: CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}


def variables_set(code: CodeType) -> set[str]:
    """Those of the functions around (`nonlocal`)."""
    instructions = dis.get_instructions(code) if code.co_freevars else ()
    return {i.argval for i in instructions if i.opname == "STORE_DEREF"}


def sets_items(code: CodeType) -> bool:
    """Is there an `x[i] = y` in it?"""
    return any(i.opname in ("STORE_SUBSCR", "STORE_SLICE") for i in dis.get_instructions(code))


_READING = ("LOAD_GLOBAL", "LOAD_NAME")
_MOST = 20_000
_READ = ByIdentity[CodeType, frozenset[str]]()
"""What was found. (A code object's own hash reads all of it.)"""
_IMPORTED = ByIdentity[CodeType, tuple[tuple[str, int], ...]]()
