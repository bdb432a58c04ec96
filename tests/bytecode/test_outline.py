"""What is read from the bytes of code is what `dis` says of it."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lostwax import bytecode
from tests.whole import sampled

for _name in ("asyncio", "decimal", "email", "json", "logging", "typing", "unittest", "xml.dom"):
    __import__(_name)
_LIBRARIES = {*sys.stdlib_module_names, "torch"}


def _codes() -> Iterator[CodeType]:
    """Of the functions of the libraries that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in _LIBRARIES or not isinstance(module, ModuleType):
            continue
        for value in list(vars(module).values()):
            held = vars(value).values() if inspect.isclass(value) else (value,)
            yield from (each.__code__ for each in held if type(each) is FunctionType)


CODES = list({id(code): code for code in _codes()}.values())


def _read(code: CodeType, *names: str) -> set[Any]:
    return {i.argval for i in dis.get_instructions(code) if i.opname in names}


def _long() -> CodeType:
    """One with so many names that their numbers need two bytes."""
    lines = ["def long():", "  global last", "  import os.path"]
    lines += [f"  x = name_{i}" for i in range(700)]
    lines += ["  from . import near", "  from ..above import far", "  last = 1", "  a[0] = last"]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    code = space["long"].__code__
    assert isinstance(code, CodeType)
    return code


def _setting() -> list[CodeType]:
    """Some that set variables of functions around them, of their own and of others inside."""
    a = b = c = 0

    def outer(d: int) -> Any:
        nonlocal a
        a = e = d

        def inner() -> None:
            nonlocal b, d, e
            b = d = e = c

        return inner

    return [outer.__code__, outer(1).__code__]


def test_there_are_many() -> None:
    assert len(CODES) > 5000


def test_what_is_read_is_what_dis_says() -> None:
    found = {"read": 0, "set": 0, "nonlocal": 0}
    for code in [*CODES[:: max(1, len(CODES) // sampled(2000, 20_000))], *_setting(), _long()]:
        assert bytecode.globals_read(code) == _read(code, "LOAD_GLOBAL", "LOAD_NAME")
        outline = bytecode.outline(code)
        parts = outline.codes
        assert outline.globals_set() == set[str]().union(
            *(_read(part, "STORE_GLOBAL") for part in parts)
        )
        stored = set[str]().union(
            *(_read(part, "STORE_DEREF") & {*part.co_freevars} for part in parts)
        )
        assert outline.nonlocals_set() == stored
        kinds = {i.opname for part in parts for i in dis.get_instructions(part)}
        assert outline.has_imports() == ("IMPORT_NAME" in kinds)
        found["read"] += len(bytecode.globals_read(code))
        found["set"] += len(outline.globals_set())
        found["nonlocal"] += len(stored)
    assert min(found.values()) > 4, found


def test_imports_are_named_in_full() -> None:
    known = {"__package__": "top.middle"}
    assert bytecode.modules_imported(_long(), known) == ("os.path", "top.middle", "top.above")


def test_what_is_imported_is_what_dis_says() -> None:
    count = 0
    for code in CODES:
        if bytecode.outline(code).has_imports():
            said = [i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"]
            known = {"__package__": "a.b.c.d"}
            found = bytecode.modules_imported(code, known)
            assert len(found) == len(said)
            for full, name in zip(found, said, strict=True):
                assert full == name or (full.startswith("a") and full.endswith(name))
            count += len(said)
    assert count > 500


def test_defaults_are_those_of_the_last_arguments() -> None:
    def one(a: Any, b: Any = 1, c: Any = 2, *, d: Any = 3) -> None:
        pass

    def copied(*args: Any) -> None:  # as networkx decorates functions
        pass

    assert [*bytecode.argument_defaults(one)] == [("b", 1), ("c", 2), ("d", 3)]
    copied.__defaults__ = one.__defaults__
    assert [*bytecode.argument_defaults(copied)] == []
    one.__defaults__ = (0, 1, 2, 3)
    assert [*bytecode.argument_defaults(one)] == [("a", 1), ("b", 2), ("c", 3), ("d", 3)]
