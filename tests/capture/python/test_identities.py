"""Code that asks us for `one is other` does everything else as before. `dis` tells: the steps,
where they stand in the source, where jumps lead, what is guarded."""
# ruff: noqa: F632

from __future__ import annotations

import ast
import asyncio
import dis
import enum
import inspect
import typing
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from lostwax.capture.python.identities import ASKED, ask_identities


def walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from walk(each)


def read(code: CodeType) -> tuple[list[Any], list[Any]]:
    """The steps, with targets by their numbers, and the handlers; our questions as `is`."""
    steps, numbers = list[Any](), dict[int, int]()
    found = [*dis.get_instructions(code)]
    for i, each in enumerate(found):
        numbers[each.offset] = len(steps)
        if each.opname == "EXTENDED_ARG" or (each.opname == "LOAD_CONST" and each.argval is ASKED):
            continue
        after = [e for e in found[i + 1 : i + 4] if e.opname != "EXTENDED_ARG"]
        name = each.opname
        if name == "BUILD_TUPLE" and after[0].argval is ASKED:
            assert after[1].positions == each.positions
            continue
        if name == "CONTAINS_OP" and steps and found[i - 1].argval is ASKED:
            name = "IS_OP"
        is_jump = each.opcode in dis.hasjrel
        steps.append((name, each.argval if is_jump else each.arg, each.positions, is_jump))
    numbers[len(code.co_code)] = len(steps)
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    handlers = [(numbers[e.start], numbers[e.end], numbers[e.target], e.depth) for e in table]
    return [(n, numbers[a] if jumps else a, p) for n, a, p, jumps in steps], handlers


def compile_all(source: str) -> tuple[CodeType, CodeType]:
    plain = compile(source, "<source>", "exec")
    return plain, ask_identities(plain)


FAR = (
    "def far(x, y):\n    while x is y:\n"
    + "        x = y[0].f(x is y) if x is not y else x\n" * 999
)


@pytest.mark.parametrize("where", [ast, asyncio.events, dis, enum, inspect, typing, FAR])
def test_all_else_is_as_it_was(where: ModuleType | str) -> None:
    source = where if isinstance(where, str) else inspect.getsource(where)
    plain, asking = compile_all(source)
    count = 0
    for one, other in zip(walk(plain), walk(asking), strict=True):
        assert read(one) == read(other)
        assert one.co_stacksize == other.co_stacksize
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
        except ValueError as error:
            out.append(str(error) is a)
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
