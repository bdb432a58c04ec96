"""Reads which names a function uses, and what its code does with them.

Hundreds of functions run in one export, and all of them are read. So we look at the bytes: whether
an instruction occurs at all is one search in them, and most do not. Must not run anything.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from lostwax.bytecode.encoding import find_units, read_argument
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


class Outline(NamedTuple):
    """What stands in a function's code and in the functions defined in it."""

    codes: tuple[CodeType, ...]
    names: tuple[str, ...]
    """Of globals and of attributes."""
    operations: bytes
    """The instructions, without their arguments."""

    def has_imports(self) -> bool:
        return _IMPORT_NAME in self.operations

    def globals_set(self) -> set[str]:
        if _STORE_GLOBAL not in self.operations:
            return set()
        return set[str]().union(*map(_globals_set, self.codes))

    def nonlocals_set(self) -> set[str]:
        """The variables of enclosing functions that are set (`nonlocal`)."""
        if _STORE_DEREF not in self.operations:
            return set()
        return set[str]().union(*map(_nonlocals_set, self.codes))

    def sets_items(self) -> bool:
        """Is there an `x[i] = y`?"""
        return any(each in self.operations for each in _STORE_ITEM)

    def sets_attributes(self) -> bool:
        """Is there an `x.name = y`, or a `del x.name`?"""
        return any(each in self.operations for each in _SET_ATTRIBUTE)

    def may_change_containers(self) -> bool:
        """Does it set items, or call methods that change containers?"""
        return self.sets_items() or not CHANGING_METHODS.isdisjoint(self.names)

    def may_set_computed_names(self) -> bool:
        """May it set attributes whose names are computed?"""
        return not _SETTING_BY_NAME.isdisjoint(self.names)

    def may_read_computed_names(self) -> bool:
        """May it read attributes whose names are computed?"""
        return not READING_BY_NAME.isdisjoint(self.names)

    def may_reach_unnamed(self) -> bool:
        """May it get at what no name in it leads to?"""
        return not _REFLECTIVE_NAMES.isdisjoint(self.names)


EMPTY = Outline((), (), b"")


@cached_by_identity(20_000)
def outline(code: CodeType) -> Outline:
    inner = [outline(each) for each in code.co_consts if type(each) is CodeType]
    if not inner:
        return Outline((code,), code.co_names, code.co_code[::2])
    return Outline(
        (code, *[part for each in inner for part in each.codes]),
        tuple(dict.fromkeys([*code.co_names, *[name for each in inner for name in each.names]])),
        b"".join([code.co_code[::2], *[each.operations for each in inner]]),
    )


def nested_codes(code: CodeType) -> tuple[CodeType, ...]:
    """A code object, and those of the functions defined in it."""
    return outline(code).codes


@cached_by_identity(20_000)
def globals_read(code: CodeType) -> frozenset[str]:
    """The globals that it reads. (`code.co_names` has the names of attributes, too.)"""
    names = code.co_names
    found = [names[argument >> 1] for argument in _arguments(code, _LOAD_GLOBAL)]
    return frozenset(found + [names[argument] for argument in _arguments(code, _LOAD_NAME)])


@cached_by_identity(20_000)
def words(code: CodeType) -> tuple[str, ...]:
    """Its names, and its strings, which may be names, too: `getattr(module, "name")`."""
    return (*code.co_names, *[each for each in code.co_consts if type(each) is str])


def modules_imported(code: CodeType, known: dict[str, Any]) -> tuple[str, ...]:
    """The full names of the modules that the code imports when it runs."""
    package = known.get("__package__") or str(known.get("__name__")).rpartition(".")[0]
    return tuple([_absolute_name(name, level, package) for name, level in _imports(code)])


@cached_by_identity(5000)
def _imports(code: CodeType) -> list[tuple[str, int]]:
    """The names that it imports, each with how many packages up it begins (`from .. import x`)."""
    found, written = [], code.co_code
    for at in find_units(written[::2], _IMPORT_NAME):
        start, name = read_argument(written, at)
        start, _ = read_argument(written, start - 1)  # the names that it takes from the module
        _, level = read_argument(written, start - 1)
        found.append((code.co_names[name], code.co_consts[level]))
    return found


def _absolute_name(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    above = package.rsplit(".", level - 1)[0]
    return f"{above}.{name}" if name else above


def _globals_set(code: CodeType) -> set[str]:
    return {code.co_names[argument] for argument in _arguments(code, _STORE_GLOBAL)}


def _nonlocals_set(code: CodeType) -> set[str]:
    own = len({*code.co_varnames, *code.co_cellvars})
    stored = _arguments(code, _STORE_DEREF)  # its own variables are numbered first
    return {code.co_freevars[argument - own] for argument in stored if argument >= own}


def _arguments(code: CodeType, operation: int) -> list[int]:
    written = code.co_code
    return [read_argument(written, at)[1] for at in find_units(written[::2], operation)]


_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAME = dis.opmap["LOAD_NAME"]
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_STORE_DEREF = dis.opmap["STORE_DEREF"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_STORE_ITEM = [dis.opmap[name] for name in ("STORE_SUBSCR", "STORE_SLICE") if name in dis.opmap]
_SET_ATTRIBUTE = [dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]]


# ------------------------------------------------------------------- what names say of behaviour

CHANGING_METHODS = frozenset(
    (
        "append", "appendleft", "add", "update", "setdefault", "insert", "extend", "extendleft",
        "pop", "popleft", "popitem", "remove", "discard", "clear", "reverse", "sort", "rotate",
        "fill", "set",
    )
)  # fmt: skip
_SETTING_BY_NAME = frozenset(("setattr", "delattr", "vars", "__dict__", "__setattr__"))
READING_BY_NAME = frozenset(
    ("getattr", "hasattr", "vars", "__dict__", "__getattr__", "attrgetter", "methodcaller")
)
_REFLECTIVE_NAMES = frozenset(
    (
        "globals", "locals", "vars", "eval", "exec", "__import__", "import_module", "modules",
        "f_back", "f_globals", "f_locals", "get_objects", "get_referrers", "get_referents",
        "__globals__", "__closure__",
    )
)  # fmt: skip
"""Who has a frame needs one of its attributes to get further."""
