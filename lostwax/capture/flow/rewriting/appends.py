"""Lists to which a function appends by making them again: `outs = outs + [h]`, `outs = [*outs, h]`;
and loops that append, and may not run.

Where nobody else can hold the list, the same list may get longer, `outs += [h]`, which loops know
(`growth.py`). A loop that is a `scan` runs once, and one that turns None into a tensor leaves
something else if it does not run: so where data decide whether it does, it stands in an `if`, of
which one side has no loop.

    for x in rows: …                     what is gone over 1 = rows
                                         if hooks.may_run(what is gone over 1):
                                             for x in what is gone over 1: …

    while x > y: …                       goes on 1 = x > y
                                         if goes on 1:
                                             is asked 1 = False
                                             while (goes on 1 = x > y if is asked 1 else True):
                                                 is asked 1 = True; …

What has an end before its last value, where data may say so (`takewhile(f, xs)`), is asked for it:

    for x in ENDING: …                   what is gone over 1 = ENDING
                                         for item 1 in hooks.list_pairs(what is gone over 1):
                                             if hooks.is_over(what is gone over 1, item 1): break
                                             if hooks.passes(…): continue
                                             x = hooks.show_item(what is gone over 1, item 1); …

The function does what it did before. Must not know what a loop goes over.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

from lostwax.capture.flow.rewriting.exits import (
    AskingWhile,
    assign,
    hook,
    iterate,
    load,
    locate,
    locate_all,
    make_source,
)
from lostwax.capture.flow.rewriting.names import ASKED, GOES_ON, ITEM, OVER, TRUTH
from lostwax.capture.flow.rewriting.picks import Place, place_of
from lostwax.capture.flow.rewriting.scopes import FUNCTIONS, SCOPES, find_stored, walk_own
from lostwax.capture.python.trees import children, walk

APPENDS, READS, GUARDED, REPLACES = "appends", "reads", "guarded", "replaces"
"""What is known of a loop: it appends to lists; its body reads what earlier turns have appended; it
stands in an `if` that asks whether it runs; it changes lists otherwise."""

_READING = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})
"""Functions of torch's that read a list and do not keep it."""
_METHODS = frozenset({"append", "clear", "copy", "count", "extend", "index", "insert", "pop"})
"""Methods of a list that give nobody the list."""


def append_in_place(function: ast.FunctionDef) -> None:
    """Rewrite the body of a function."""
    own = [*walk_own(function)]
    if not any(_find_appended(each) for each in own):
        return
    around = {child: each for each in (function, *own) for child in children(each)}
    inner = [each for each in own if isinstance(each, SCOPES)]
    elsewhere = {n.id for each in inner for n in walk(each) if isinstance(n, ast.Name)}
    elsewhere |= {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
    for each in own:
        elsewhere |= {*each.names} if isinstance(each, (ast.Global, ast.Nonlocal)) else set()
        elsewhere |= {each.name} if isinstance(each, FUNCTIONS) else set()
    uses: dict[str, list[ast.Name]] = {}
    for each in own:
        if isinstance(each, ast.Name):
            uses.setdefault(each.id, []).append(each)
    alone = {
        name
        for name, names in uses.items()
        if name not in elsewhere and all(_is_alone(each, around) for each in names)
    }
    function.body = [_Appending(alone).visit(each) for each in function.body]


def guard_loops(function: ast.FunctionDef, growing: Collection[tuple[int, int, str]]) -> None:
    """Put the loops that may not run into an `if`."""
    places = {(line, column) for line, column, kind in growing if kind == GUARDED}
    if places:
        function.body = _Guarding(places).visit(ast.Module(function.body, [])).body


class _Guarding(ast.NodeTransformer):
    def __init__(self, places: Collection[tuple[int, int]]) -> None:
        self._places, self._numbers = places, count(1)

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_For(self, loop: Any) -> Any:
        self.generic_visit(loop)
        if (loop.lineno, loop.col_offset) not in self._places:
            return loop
        name = f"{OVER}{next(self._numbers)}"
        before = assign(name, iterate(loop.iter))
        loop.iter = load(name)
        loop.iter.is_items = True
        runs = ast.If(hook("may_run", load(name)), [loop], copy.deepcopy(loop.orelse))
        return [locate(before, loop), locate(runs, loop)]

    def visit_While(self, loop: Any) -> Any:
        """Its first turn knows that it runs."""
        self.generic_visit(loop)
        if (loop.lineno, loop.col_offset) not in self._places:
            return loop
        n = next(self._numbers)
        test, again = f"{GOES_ON}{n}", f"{ASKED}{n}"
        asking = [*getattr(loop, "asking", ()), assign(test, loop.test)]
        first: list[ast.stmt] = [assign(test, ast.Constant(True))]
        asked = ast.If(load(again), asking, first)
        body = [assign(again, ast.Constant(True)), *loop.body]
        new = AskingWhile([asked], load(test), body, loop.orelse)  # type: ignore[call-arg,arg-type]
        inside = [assign(again, ast.Constant(False)), new]
        runs = ast.If(load(test), inside, copy.deepcopy(loop.orelse))
        found = [*copy.deepcopy(asking), runs]
        locate_all(found, loop)
        return found

    visit_AskingWhile = visit_While


def ask_for_ends(function: ast.FunctionDef, places: Collection[Place]) -> None:
    """Let the loops of a function ask that go over what stands in these places."""
    if places:
        body = ast.Module(function.body, [])
        function.body = _AskingForEnds(places).visit(body).body


class _AskingForEnds(ast.NodeTransformer):
    def __init__(self, places: Collection[Place]) -> None:
        self._places, self._numbers = places, count(1)

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_For(self, loop: Any) -> Any:
        self.generic_visit(loop)
        if not hasattr(loop.iter, "end_lineno") or place_of(loop.iter) not in self._places:
            return loop
        n = next(self._numbers)
        values, item, ended = f"{OVER}to its end {n}", f"{ITEM}to its end {n}", f"{TRUTH}of end {n}"
        found: list[ast.stmt] = [assign(values, make_source(loop.iter))]
        loop.iter = locate(hook("list_pairs", load(values)), loop.iter)
        loop.iter.is_items = True
        target: ast.stmt = ast.Assign([loop.target], hook("show_item", load(values), load(item)))
        asked, passed = (hook(name, load(values), load(item)) for name in ("is_over", "passes"))
        leave: list[ast.stmt] = [ast.Break()]
        if loop.orelse:
            leave.insert(0, assign(ended, ast.Constant(True)))
        loop.body = [
            ast.If(asked, leave, [ast.Pass()]),
            ast.If(passed, [ast.Continue()], [ast.Pass()]),
            target,
            *loop.body,
        ]
        loop.target = ast.Name(item, ast.Store())
        found.append(loop)
        if loop.orelse:
            found.insert(1, assign(ended, ast.Constant(False)))
            found.append(ast.If(load(ended), loop.orelse, [ast.Pass()]))
            loop.orelse = [assign(ended, ast.Constant(True))]
        locate_all(found, loop)
        return found


class _Appending(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        name, added = _find_appended(node) or ("", [])
        if name not in self._names:
            return node
        target = locate(ast.Name(name, ast.Store()), node.targets[0])
        values = locate(ast.List(added, ast.Load()), node.value)
        return locate(ast.AugAssign(target, ast.Add(), values), node)  # type: ignore[no-any-return]


def _find_appended(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The variable, and what is appended to it, of `v = v + […]` and `v = [*v, …]`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Name):
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = value.left, value.right
        if isinstance(right, ast.List) and getattr(left, "id", None) == target.id:
            return target.id, right.elts
    first = value.elts[0] if isinstance(value, ast.List) and value.elts else None
    if isinstance(first, ast.Starred) and getattr(first.value, "id", None) == target.id:
        return target.id, value.elts[1:]  # type: ignore[attr-defined]
    return None


def _is_alone(name: ast.Name, around: dict[ast.AST, ast.AST]) -> bool:
    """Is it a place that makes the list, or reads it and does not keep it?"""
    holders = [*_list_around(name, around)]
    inside, *more = holders
    if isinstance(name.ctx, ast.Store):
        return isinstance(inside, ast.AugAssign) or _makes_list(name, inside, more)
    if isinstance(name.ctx, ast.Del):
        return False
    if isinstance(inside, (ast.BinOp, ast.Starred)):
        statement = next((each for each in holders if isinstance(each, ast.stmt)), None)
        first: Any = None
        if isinstance(statement, ast.Assign) and _find_appended(statement):
            value: Any = statement.value
            first = value.left if isinstance(value, ast.BinOp) else value.elts[0].value
        return first is name
    if isinstance(inside, ast.Subscript):
        return inside.value is name
    if isinstance(inside, ast.Attribute):
        is_called = bool(more) and isinstance(more[0], ast.Call) and more[0].func is inside
        return is_called and inside.attr in _METHODS
    if isinstance(inside, ast.Call):
        return name in inside.args and _reads(inside.func)
    if isinstance(inside, ast.comprehension):  # a generator would go over it later
        return not isinstance(more[0], ast.GeneratorExp)
    if isinstance(inside, ast.For):
        return inside.iter is name and name.id not in find_stored(inside.body)
    if isinstance(inside, (ast.If, ast.While, ast.IfExp)):
        return inside.test is name
    return isinstance(inside, ast.Return)


def _reads(function: ast.expr) -> bool:
    """Is it `len`, or a function of torch's that reads a list?"""
    if isinstance(function, ast.Attribute):
        return function.attr in _READING and getattr(function.value, "id", "") == "torch"
    return getattr(function, "id", "") == "len"


def _makes_list(name: ast.Name, inside: Any, more: list[Any]) -> bool:
    """Is a new list assigned to a variable, and to nothing else?"""
    if _find_appended(inside) is not None:
        return True
    at: Any = None
    if isinstance(inside, ast.Tuple) and more and isinstance(more[0], ast.Assign):
        at, inside = inside.elts.index(name), more[0]
    if not isinstance(inside, (ast.Assign, ast.AnnAssign)):
        return False
    if isinstance(inside, ast.Assign) and len(inside.targets) != 1:
        return False
    value: Any = inside.value
    if at is not None:
        target: Any = inside.targets[0]  # type: ignore[union-attr]
        parts = getattr(value, "elts", [])
        is_plain = isinstance(value, ast.Tuple) and len(parts) == len(target.elts)
        starred = [each for each in (*target.elts, *parts) if isinstance(each, ast.Starred)]
        value = parts[at] if is_plain and not starred else None
    return isinstance(value, (ast.List, ast.ListComp))


def _list_around(node: ast.AST, around: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in around:
        node = around[node]
        yield node
