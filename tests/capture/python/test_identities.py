"""Code that asks us (`one is other`, methods of numbers, handlers) does everything else as before.
`dis` tells: the steps, where they stand in the source, where jumps lead, what is guarded."""
# ruff: noqa: F632

from __future__ import annotations

import ast
import asyncio
import dis
import enum
import inspect
import typing
from bisect import bisect_left
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from lostwax.capture.python.identities import (
    ANSWERS,
    ASKED,
    CALLED_METHODS,
    CAUGHT,
    MATCHED,
    METHODS,
    ask_identities,
)


def walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from walk(each)


def read(code: CodeType) -> tuple[list[Any], list[Any]]:
    """The steps, with targets by their numbers, and the handlers; our questions as `is`."""
    steps, numbers = list[Any](), dict[int, int]()
    found = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    ours = set[int]()
    for i, each in enumerate(found):
        if each.opname == "LOAD_CONST" and any(each.argval is known for known in ADDED):
            added = [i + k for k in ADDED[each.argval]]
            assert {found[k].positions for k in added} == {each.positions}
            ours |= {*added}
    offsets = [each.offset for each in found]
    for each in dis.get_instructions(code):
        i = bisect_left(offsets, each.offset)
        numbers[each.offset] = len(steps)
        if each.opname == "EXTENDED_ARG" or i in ours:
            continue
        name, is_jump = each.opname, each.opcode in dis.hasjrel
        name = "IS_OP" if name == "CONTAINS_OP" and found[i - 1].argval is ASKED else name
        steps.append((name, each.argval if is_jump else each.arg, each.positions, is_jump))
    numbers[len(code.co_code)] = len(steps)
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    handlers = [(numbers[e.start], numbers[e.end], numbers[e.target], e.depth) for e in table]
    return [(n, numbers[a] if jumps else a, p) for n, a, p, jumps in steps], handlers


ADDED: dict[Any, tuple[int, ...]] = {
    ANSWERS: (0, 1, 2),
    ASKED: (-1, 0),
    CAUGHT: (-1, 0, 1, 2),
    MATCHED: (-1, 0, 1, 2),
    METHODS: (0, 1, 2),
    CALLED_METHODS: (0, 1, 2),
}
"""What stands around each of ours, by its distance, and is ours, too."""


def compile_all(source: str, has_lists: bool = False) -> tuple[CodeType, CodeType]:
    plain = compile(source, "<source>", "exec")
    return plain, ask_identities(plain, has_lists=has_lists)


FAR = (
    "def far(x, y):\n    while x is y:\n"
    + "        x = y[0].f(x is y) if x is not y else x\n" * 999
)
METHODS_OF_NUMBERS = (
    "def many(x, y):\n"
    + "".join(f"    x.name{i}\n" for i in range(300))
    + "    for i in y:\n        try:\n"
    + "            x = y if x.__eq__(y) else [x.__lt__, int.__add__(x, y), object.__setattr__]\n"
    * 99
    + "        except (TypeError, x.__add__):\n            return x is y\n"
    + "        finally:\n            y.__sub__(x)\n"
)


@pytest.mark.parametrize("has_lists", [False, True], ids=["numbers", "numbers and lists"])
@pytest.mark.parametrize(
    "where", [ast, asyncio.events, dis, enum, inspect, typing, FAR, METHODS_OF_NUMBERS]
)
def test_all_else_is_as_it_was(where: ModuleType | str, has_lists: bool) -> None:
    source = where if isinstance(where, str) else inspect.getsource(where)
    plain, asking = compile_all(source, has_lists)
    count = 0
    for one, other in zip(walk(plain), walk(asking), strict=True):
        assert read(one) == read(other)
        assert other.co_stacksize - one.co_stacksize in (0, 2)
        count += ASKED in other.co_consts
    assert count


def run_all(a: Any, b: Any, count: int) -> Any:
    out: list[Any] = []
    for i in range(count):
        try:
            if a is b:
                out.append(i is 2)
            elif (a if i % 2 else b) is True:
                out.append(("true", i))
            else:
                raise ValueError(i)
            match (a, i):
                case (True, 1):
                    out.append("one")
                case (None, _):
                    out.append("none")
                case (bool(), int(real=2)) | int():
                    out.append("two")
        except ValueError as error:
            out.append((str(error) is a, (2).__eq__(i), int.__lt__(i, 1), [*map(i.__ge__, (1, 2))]))
        finally:
            out.append([c for c in (a, b, None) if c is not b])
    return out


@pytest.mark.parametrize("args", [(True, False, 4), (None, None, 3), (1, True, 3), (True, True, 3)])
def test_it_answers_as_python_does(args: Any) -> None:
    asking = FunctionType(ask_identities(run_all.__code__), globals())
    assert asking(*args) == run_all(*args)


def test_what_cannot_be_of_numbers_is_left() -> None:
    plain, asking = compile_all("def f(x): return x is None, x is ..., 'a' is not x is 'b'")
    assert asking is not plain  # a constant on the left is not seen
    plain, asking = compile_all("def f(x): return x is None, x is ..., x is not 'a'")
    assert asking is plain
