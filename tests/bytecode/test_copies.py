"""Code that tells when it begins does everything else as before: its result, lines, signature,
frames, handlers; whatever kind of function it is."""

from __future__ import annotations

import asyncio
import dis
import inspect
import sys
import traceback
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

from lostwax.bytecode.copies import add_call
from tests.bytecode.library import codes

F = Any


def plain(x: F, *rest: F, key: F = 3, **more: F) -> F:
    return x, rest, key, more, sys._getframe(1).f_code.co_name


def handling(x: F) -> F:
    try:
        with open("/dev/null"):
            raise ValueError(x)
    except ValueError as error:
        return error.args, traceback.extract_tb(error.__traceback__)[0].lineno
    finally:
        x.append(1)


def generating(x: F) -> Iterator[F]:
    for each in x:
        try:
            yield each
        finally:
            x.append(2) if len(x) < 5 else x.clear()


async def waiting(x: F) -> F:
    await asyncio.sleep(0)
    return x


class Base:
    def method(self) -> F:
        return 1


class Derived(Base):
    def method(self) -> F:
        get = lambda: self  # noqa: E731
        return super().method(), get() is self


def raising(x: F) -> F:
    return x / 0


def run_all() -> list[F]:
    found: list[F] = [plain(1, 2, key=4, more=5), plain(1), handling([]), [*generating([1, 2])]]
    found += [asyncio.run(waiting(7)), Derived().method()]
    try:
        raising(1)
    except ZeroDivisionError:
        found.append(traceback.format_exc())
    return found


def test_it_is_told_and_does_the_same() -> None:
    functions: list[F] = [plain, handling, generating, waiting, Derived.method, Base.method]
    functions += [raising]
    wanted, signatures = run_all(), [*map(inspect.signature, functions)]
    codes, told = [each.__code__ for each in functions], list[str]()
    try:
        for each in functions:
            each.__code__ = add_call(each.__code__, lambda each=each: told.append(each.__name__))
        assert run_all() == wanted
        assert [*map(inspect.signature, functions)] == signatures
        assert [inspect.getsource(each) for each in functions]
        assert [inspect.iscoroutinefunction(each) for each in functions].count(True) == 1
    finally:
        for each, code in zip(functions, codes, strict=True):
            each.__code__ = code
    names = ["plain", "plain", "handling", "generating", "waiting", "method", "method", "raising"]
    assert told == names


def test_what_it_raises_comes_from_the_caller() -> None:
    def refuse() -> None:
        raise KeyError("no")

    function = FunctionType(add_call(raising.__code__, refuse), globals())
    with pytest.raises(KeyError) as raised:
        function(1)
    frames = [each.name for each in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_what_it_raises_comes_from_the_caller", "refuse"]


def many_constants() -> FunctionType:
    text = "def f(x):\n  return [" + ", ".join(f"x == {n}.5" for n in range(70_000)) + "]"
    exec(text, known := dict[str, F]())
    return known["f"]  # type: ignore[no-any-return]


def test_more_constants_than_a_byte_can_count() -> None:
    function, told = many_constants(), list[int]()
    wanted = function(3.5)
    function.__code__ = add_call(function.__code__, lambda: told.append(1))
    assert function(3.5) == wanted
    assert told == [1]


def test_the_tables_of_a_library() -> None:
    """Each instruction keeps its place in the source, and its handler."""
    for before in codes():
        after = add_call(before, print)
        shift = len(after.co_code) - len(before.co_code)
        assert [*after.co_positions()][shift // 2 :] == [*before.co_positions()]
        assert _handlers(after, 0) == _handlers(before, shift)


def _handlers(code: F, shift: int) -> list[F]:
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return [(e.start + shift, e.end + shift, e.target + shift, e.depth, e.lasti) for e in table]
