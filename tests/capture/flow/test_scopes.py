"""A name is a variable of the function, or of a function, class or comprehension within it: what is
read after a loop on data, and which variables a branch sets, is told by that. Truths are eager, and
Python's own tables of names."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import linecache
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lostwax
from lostwax.capture.flow.rewriting.scopes import (
    COMPREHENSIONS,
    find_captured,
    find_loads,
    find_stored,
)

INPUTS = [torch.tensor(each) for each in ([1.0, 2.0], [-1.0, -2.0], [3.0, 0.0], [0.0, 0.0])]

OF_ANOTHER = (
    "return x + sum(v for v in (x, 1))",
    "return x + sum([v for v in (x, 1)])",
    "return x + sum([v for v in (1, 2) if v > 1])",
    "return {k: v for k, v in ((1, x),)}[1]",
    "return x + len({v for v in (1, 2)})",
    "g = (v for v in (x, 1))\nreturn sum(g)",
    "return [[v for v in w] for w in ((x,),)][0][0]",
    "return [lambda: v for v in (x,)][0]()",
    "return (lambda v: v + 1)(x)",
    "return (lambda v=x: v + 1)()",
    "return (lambda *v, **w: v[0] + 1)(x)",
    "return (lambda a: (v := a) + v)(x)",
    "def g(v):\n    return v + 1\nreturn g(x)",
    "def g(a):\n    v = a + 1\n    return v\nreturn g(x)",
    "def g(a):\n    for v in (1, 2):\n        a = a + v\n    return a\nreturn g(x)",
    "def g(a):\n    import math as v\n    return a + v.pi\nreturn g(x)",
    "def g(v):\n    def h():\n        return v\n    return h()\nreturn g(x)",
    "def g(a):\n    global v\n    return a * v\nreturn g(x)",
    "class C:\n    v = 3\n    w = v + 1\nreturn x + C.w",
    "try:\n    x = x + 1\nexcept ValueError as v:\n    x = x + len(v.args)\nreturn x",
    "import math as v\nreturn x + v.pi",
    "with contextlib.nullcontext((2, 3)) as (v, w):\n    x = x + v\nreturn x + v + w",
    "match (1, 2):\n    case (v, w):\n        return x + v + w",
)
"""What follows a loop that sets v, and reads another v: the loop may run not at all."""


def _make(lines: str, name: str) -> Any:
    """A function of its lines."""
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in lines.splitlines())
    file = f"/generated/scopes_{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    known: dict[str, Any] = {
        "torch": torch,
        "contextlib": contextlib,
        "sys": sys,
        "known": 7,
        "v": 7,
    }
    exec(compile(source, file, "exec"), known)
    return known["f"]


def _check(lines: str, name: str) -> None:
    function = _make(lines, name)
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


@pytest.mark.parametrize("number", range(len(OF_ANOTHER)))
def test_a_name_of_another_variable_is_no_read(number: int) -> None:
    loop = "while x.sum() > 2:\n    x = x - 1\n    v = x * 2\n"
    _check(loop + OF_ANOTHER[number], f"after_{number}")


def test_a_function_that_was_there_before_may_have_a_variable_of_that_name() -> None:
    _check(
        "def g(a):\n    v = a + 1\n    return v\nwhile x.sum() > 2:\n    x = x - 1\n    v = x\n"
        "return g(x)",
        "before",
    )


OF_ITS_OWN = (
    "if x.sum() > 0:\n    v = x * 2\nreturn (lambda v=v: v)()",
    "if x.sum() > 0:\n    v = x * 2\ndef g(a=v):\n    return a\nv = 9\nreturn g() + v",
    "g = lambda a: (lambda b: b * v)(a)\nif x.sum() > 0:\n    v = x * 2\nreturn g(x)",
    "g = [lambda a: a * v + i for i in range(2)]\nif x.sum() > 0:\n    v = x * 2\nreturn g[1](x)",
    "class C:\n    v = 3\n    def g(self):\n        return v\n"
    "if x.sum() > 0:\n    v = x * 2\nreturn C().g()",
    "def g():\n    nonlocal v\n    v = v + 1\nif x.sum() > 0:\n    v = x * 2\ng()\nreturn v",
    "def g():\n    def h():\n        nonlocal v\n        v = x * 3\n    h()\n"
    "if x.sum() > 0:\n    v = x * 2\n    g()\nreturn v",
    "if x.sum() > 0:\n    v = (x * 2, x)\nreturn sum(v for v in v)",
    "if x.sum() > 0:\n    v = x * 2\nreturn sum(a * b for a in (1, 2) for b in (v,))",
    "if x.sum() > 0:\n    l = [(v := a) for a in (x, x * 2)]\nreturn x + v",
    "if x.sum() > 0:\n    l = [[(v := a) for a in (x, b)] for b in (x * 3,)]\nreturn x + v",
    "if x.sum() > 0:\n    def g(a=(v := x * 2)):\n        return a\nreturn x + v",
    "if x.sum() > 0:\n    g = lambda a=(v := x * 2): a\nreturn x + v",
    "if x.sum() > 0:\n    @(lambda g: (v := 1) and g)\n    def g(): pass\nreturn x + v",
    "if x.sum() > 0:\n    l = [(lambda: (v := a))() for a in (x, x * 2)]\nreturn x + v",
    "if x.sum() > 0:\n    l = [(lambda: (known := a))() for a in (x, 2)]\nreturn x + known",
    "l = list(map(lambda a: (v := a * 3) + 1, (x, 2)))\nif x.sum() > 0:\n    x = x + 1\n"
    "return x + v + l[0]",
    "l = [*filter(lambda a: (known := a) > 1, (1, 2))]\nif x.sum() > 0:\n    x = x + 1\n"
    "return x + known + l[0]",
)
"""Where v is the function's own, and is set or read in something that has variables, too; or looks
so."""


@pytest.mark.parametrize("number", range(len(OF_ITS_OWN)))
def test_a_variable_is_read_and_set_wherever_it_is_named(number: int) -> None:
    first = "v = (x, x)\n" if "for v in v" in OF_ITS_OWN[number] else "v = x\n"
    _check(first + OF_ITS_OWN[number], f"own_{number}")


# ------------------------------------------------------------------------ Python's tables of names


def _walk_tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for each in table.get_children():
        yield each
        yield from _walk_tables(each)


def _list_names(table: symtable.SymbolTable, question: str) -> set[str]:
    return {each.get_name() for each in table.get_symbols() if getattr(each, question)()}


def _find_captured(table: symtable.SymbolTable) -> set[str]:
    """Of the functions and classes in a table."""
    return set().union(*(_list_names(each, "is_free") for each in table.get_children()))


@pytest.mark.parametrize("module", [functools, dataclasses, contextlib])
def test_names_are_those_of_pythons_tables(module: Any) -> None:
    source = Path(module.__file__).read_text()
    tables = {
        (each.get_name(), each.get_lineno()): each
        for each in _walk_tables(symtable.symtable(source, "module.py", "exec"))
        if each.get_type() == "function"
    }
    compared = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or (node.name, node.lineno) not in tables:
            continue
        table, inside = tables[node.name, node.lineno], [*ast.walk(node)]
        # Since 3.12 Python mixes the names in comprehensions with the function's own.
        comprehensions = [n for n in inside if isinstance(n, COMPREHENSIONS)]
        own = _list_names(table, "is_local")
        own -= {n.id for each in comprehensions for n in ast.walk(each) if isinstance(n, ast.Name)}
        captured = own & _find_captured(table)
        read = _list_names(table, "is_referenced")
        assert find_captured(node.body) & own == captured
        # (To Python, what is changed in place or deleted is not read.)
        changed = find_loads([n for n in inside if isinstance(n, (ast.AugAssign, ast.Delete))])
        assert find_loads(node.body) & own - changed == (read | captured) & own - changed
        stored = _list_names(table, "is_assigned") | _list_names(table, "is_imported")
        assert {*find_stored(node.body)} & own == stored & own
        compared += 1
    assert compared > 9


LISTED = (
    "a = 1\nif x[0] > 0: b = 2\nreturn x * len([k for k in locals() if k in 'ab'])",
    "a = 1\nif x[0] > 0: a = 2\nelse: b = 3\nreturn x * locals()['a']",
    "a, b = 1, 2\nif x[0] > 0: b = 3\nreturn x * len(locals())",
    "a = 1\nif x[0] > 0: a = 2\nwhile x.sum() < 3: x = x + 1\nreturn x * vars()['a']",
    "a = 1\nif x[0] > 0: c = 2\nelse: c = 1\nreturn x * dir().index('c')",
    "a = 1\nif x[0] > 0: a = x.sum()\nreturn x + eval('a * 2')",
    "a = 1\nif x[0] > 0: a = x.sum()\nd = {**locals()}\nreturn d['x'] + d['a']",
    "a = 1\nif x[0] > 0: a = 2\nreturn x * sys._getframe().f_locals['a']",
)


@pytest.mark.parametrize("number", range(len(LISTED)))
def test_a_function_that_lists_its_variables_has_them_all(number: int) -> None:
    _check(LISTED[number], f"listed_{number}")
