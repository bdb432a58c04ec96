"""Comprehensions and generators taken apart: what goes over their items stands in loops.

`any(c for …)`, `sum(a for … if c)`, `len([… if c])`, `next((a for … if c), b)`, `for a in (…)` and
lists become statements (`expressions.py`); a generator that is asked later becomes a function that
yields. Must not know what a condition depends on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import compress, count, filterfalse
from typing import Any, Protocol

import torch

from lostwax.capture.flow.rewriting.exits import assign, hook, load, locate, locate_all, map_blocks
from lostwax.capture.flow.rewriting.names import GENERATOR, ITEM, ITEMS, PART, TRUTH
from lostwax.capture.flow.rewriting.scopes import COMPREHENSIONS, Meanings, find_stored
from lostwax.capture.python.trees import children, walk

Block = list[ast.stmt]
QUESTIONS = (any, all)
_TAKES_ALL = (list, tuple, set, sum, sorted, max, min, dict)
"""The functions that ask an iterator for all that it has, before they do anything else."""
_COUNTING = (sum, len, next)
_MAPPING = (filter, map, filterfalse, compress)
_FILTERS = (filter, filterfalse)
_USING = (*QUESTIONS, *_TAKES_ALL, *_COUNTING, *_MAPPING)
"""The functions of Python's that may be called with a comprehension."""
SOURCES = (range, enumerate, zip, reversed, torch.unbind, torch.split, torch.chunk)
"""Those that may make what a loop goes over of a length that Python does not know."""


class Taking(Protocol):
    """What takes expressions apart (`expressions.py`)."""

    def take(self, each: Any, out: Block) -> Any: ...
    def ask(self, each: Any, out: Block) -> Any: ...
    def keep(self, each: Any, out: Block) -> Any: ...
    def decides(self, each: ast.AST | None) -> bool: ...
    def name(self, kind: str) -> str: ...


class ComprehensionLowering:
    def __init__(self, taking: Taking, meanings: Meanings) -> None:
        self._taking, self._meanings = taking, meanings
        self._numbers = count(1)
        self.made: list[ast.FunctionDef] = []
        """The functions that generators have become."""

    # ---------------------------------------------------------------------------- before all else

    def prepare(self, node: Any) -> None:
        """Let what takes all of a generator have a list, if there is a decision in it; and let
        `filter` and `map` be generators."""
        if isinstance(node, ast.Starred):
            node.value = self._make_list(self._make_generator(node.value))
        elif isinstance(node, ast.For):
            is_through = hasattr(node.iter, "is_through")
            node.iter = self._make_generator(node.iter)
            for each in (node.iter, *getattr(node.iter, "args", ())) if is_through else ():
                if isinstance(each, ast.GeneratorExp):
                    self._go_through(each, None)
        elif isinstance(node, COMPREHENSIONS) and hasattr(node, "is_through"):
            self._go_through(node, None)
        elif isinstance(node, ast.Call) and node.args and (function := self._find(node)):
            node.args[0] = self._make_generator(node.args[0])
            if hasattr(node, "is_through") and function in (*_TAKES_ALL, *QUESTIONS):
                node.args[0] = self._go_through(node.args[0], function)
            if function in _TAKES_ALL and self.find_use(node) is None:
                node.args[0] = self._make_list(node.args[0])

    def _go_through(self, values: Any, function: Any) -> Any:
        """Let it be a loop, as it may go over a generator that is written out; of what a function
        is given, a list."""
        made = values
        if not isinstance(values, COMPREHENSIONS):
            name = self._taking.name(ITEM)
            every = ast.comprehension(ast.Name(name, ast.Store()), values, [], 0)
            made = ast.GeneratorExp(load(name), [every])
            locate_all([made], values)
        if isinstance(made, ast.GeneratorExp) and function in _TAKES_ALL:
            made = locate(ast.ListComp(made.elt, made.generators), made)
        for each in (made, *(generator.iter for generator in made.generators)):
            each.is_through = True
        return made

    def _make_list(self, values: Any) -> Any:
        if not isinstance(values, ast.GeneratorExp):
            return values
        found = locate(ast.ListComp(values.elt, values.generators), values)
        return found if self._taking.decides(found) else values

    def _make_generator(self, call: Any) -> Any:
        """`(x for x in values if f(x))` for `filter(f, values)`, `(f(x) for x in values)` for
        `map(f, values)`, and their like."""
        if not isinstance(call, ast.Call) or (kind := self._find(call)) not in _MAPPING:
            return call
        if len(call.args) != 2 or any(isinstance(each, ast.Starred) for each in call.args):
            return call
        if kind is compress:
            return self._make_compressed(call)
        function, values = call.args
        name = self._taking.name(ITEM)
        found: ast.expr = ast.Call(function, [load(name)], [])
        if isinstance(function, ast.Lambda) and _takes_one(function):
            name, found = function.args.args[0].arg, function.body
        elif isinstance(function, ast.Constant) and function.value is None and kind in _FILTERS:
            found = load(name)
        elif not isinstance(function, (ast.Name, ast.Attribute)):
            return call
        if kind is filterfalse:
            found = ast.UnaryOp(ast.Not(), found)
        tests = [] if kind is map else [found]
        generator = ast.comprehension(ast.Name(name, ast.Store()), values, tests, 0)
        made = ast.GeneratorExp(load(name) if tests else found, [generator])
        locate_all([made], call)
        return made

    def _make_compressed(self, call: ast.Call) -> ast.expr:
        """`(x for x, c in zip(values, chosen) if c)` for `compress(values, chosen)`."""
        name, chosen = self._taking.name(ITEM), self._taking.name(ITEM)
        parts: list[ast.expr] = [ast.Name(each, ast.Store()) for each in (name, chosen)]
        both = hook("zip_both", *call.args)
        generator = ast.comprehension(ast.Tuple(parts, ast.Store()), both, [load(chosen)], 0)
        made = ast.GeneratorExp(load(name), [generator])
        locate_all([made], call)
        return made

    def _find(self, call: ast.Call) -> Any:
        """The function of Python's that is called, if it goes over something."""
        return self._meanings.find_one_of(call.func, _USING)

    # --------------------------------------------------------------------------- uses of their own

    def find_use(self, call: ast.Call) -> Any:
        """`sum`, `len` or `next`, if what a filter leaves is added up, counted, or asked for."""
        function = self._find(call)
        if function not in _COUNTING or len(call.args) + len(call.keywords) not in (1, 2):
            return None
        if not call.args or any(function is not sum or k.arg != "start" for k in call.keywords):
            return None
        values: Any = call.args[0]
        kind = {len: ast.ListComp, next: ast.GeneratorExp}.get(function, COMPREHENSIONS[::3])
        most = 1 if function is next else 9
        if not isinstance(values, kind) or not can_be_loop(values, most):
            return None
        return function if _has_filters(values) else None

    def take_use(self, call: Any, out: Block) -> Any:
        """
        found = 0                              # sum, len; what there is to return: next
        for … in …:
            if …:
                found = found + …; break       # or found + 1; or …: next
        """
        function, (values, *start) = self.find_use(call), call.args
        start += [each.value for each in call.keywords]
        found = self._taking.name(PART)
        first = values.generators[0]
        first.iter = self._taking.take(first.iter, out)
        if not all(map(_is_literal, start)):
            first.iter = self._taking.keep(first.iter, out)
        begin = [self._taking.take(each, out) for each in start]
        if not begin and function is not next:
            begin = [ast.Constant(0)]
        out += [assign(found, each) for each in begin]

        def put() -> Block:
            block: Block = []
            value = self._taking.take(values.elt, block)
            if function is next:
                return [*block, assign(found, value), ast.Break()]
            if function is len:
                block.append(ast.Expr(value))
                value = ast.Constant(1)
            return [*block, assign(found, ast.BinOp(load(found), ast.Add(), value))]

        loop = self._put_loop(values, put, out)
        if not begin:
            loop.orelse = [ast.Raise(load("StopIteration"), None)]
        locate_all(out, call)
        return locate(load(found), call)

    def take_question(self, call: Any, out: Block) -> Any:
        """
        found = False                          # any; True: all
        for … in …:
            found = truth(…)
            if found: break
        """
        (values,) = call.args
        name, each = self._taking.name(TRUTH), self._taking.name(PART)
        is_any = self._find(call) is any
        out.append(assign(name, ast.Constant(not is_any)))
        leave: Any = ([ast.Break()], []) if is_any else ([ast.Pass()], [ast.Break()])

        def ask(element: Any) -> Block:
            block: Block = []
            truth = hook("truth", self._taking.ask(element, block))
            return [*block, assign(name, truth), ast.If(load(name), *leave)]

        if isinstance(values, ast.GeneratorExp) and can_be_loop(values, most=1):
            self._put_loop(values, lambda: ask(values.elt), out)
        else:
            values = self._taking.take(values, out)
            out.append(ast.For(ast.Name(each, ast.Store()), values, ask(load(each)), []))
        locate_all(out, call)
        return locate(hook("value", load(name)), call)

    def take_loop(self, loop: Any, out: Block) -> Any:
        """`for a in (b for c in values if d): …` is `for c in values: if d: a = b; …`."""
        values = loop.iter

        def put() -> Block:
            block: Block = []
            value = self._taking.take(values.elt, block)
            return [*block, ast.Assign([loop.target], value), *loop.body]

        new = self._put_loop(values, put, out)
        out.remove(new)
        new.orelse = loop.orelse
        locate_all([*out, new], loop)
        return new

    # ----------------------------------------------------------------------------- comprehensions

    def decides(self, each: Any) -> bool:
        """Is there a decision in a comprehension?"""
        if not (can_be_loop(each) or _can_be_function(each)):
            return self._taking.decides(each.generators[0].iter)
        if hasattr(each, "is_through"):
            return True
        is_list = isinstance(each, ast.ListComp)
        counts = is_list and any(self._counts(g.iter) for g in each.generators)
        is_any = any(map(self._taking.decides, children(each)))
        return counts or is_any or _has_filters(each)

    def _counts(self, items: ast.expr) -> bool:
        """May it be one of a length that Python does not know? What has a name may be a tensor."""
        if not isinstance(items, ast.Call):
            return isinstance(items, (ast.Name, ast.Attribute))
        is_source = self._meanings.find_one_of(items.func, SOURCES) is not None
        return is_source or getattr(items.func, "attr", "") in _PARTS

    def take(self, each: Any, out: Block) -> Any:
        if isinstance(each, ast.GeneratorExp) and _can_be_function(each):
            return self._make_function(each, out)
        if isinstance(each, ast.GeneratorExp) or not can_be_loop(each):
            first = each.generators[0]
            first.iter = self._taking.take(first.iter, out)
            return each
        found = self._taking.name(ITEMS)
        out.append(assign(found, _EMPTY[type(each)]()))

        def put() -> Block:
            block: Block = []
            if isinstance(each, ast.DictComp):
                key = self._taking.keep(self._taking.take(each.key, block), block)
                value = self._taking.take(each.value, block)
                target = ast.Subscript(load(found), key, ast.Store())
                return [*block, ast.Assign([target], value)]
            value = self._taking.take(each.elt, block)
            method = "append" if isinstance(each, ast.ListComp) else "add"
            call = ast.Call(ast.Attribute(load(found), method, ast.Load()), [value], [])
            return [*block, ast.Expr(call)]

        self._put_loop(each, put, out)
        locate_all(out, each)
        return locate(load(found), each)

    def _make_function(self, each: Any, out: Block) -> Any:
        """Let a generator be a function that yields; what takes it apart comes to it later."""
        first, *_ = each.generators
        values = self._taking.take(first.iter, out)
        name, given = self._taking.name(GENERATOR), self._taking.name(ITEM)
        first.iter = load(given)
        if hasattr(each, "is_through"):
            first.iter.is_through = True
        body: Block = [ast.Expr(ast.Yield(each.elt))]
        for generator in reversed(each.generators):
            for test in reversed(generator.ifs):
                body = [ast.If(test, body, [])]
            body = [ast.For(generator.target, generator.iter, body, [])]
        arguments = ast.arguments([], [ast.arg(given)], None, [], [], None, [])
        function = ast.FunctionDef(name, arguments, body, [], None)
        function.type_params = []  # type: ignore[attr-defined]
        locate_all([function], each)
        self.made.append(function)
        out.append(function)
        return locate(ast.Call(load(name), [hook("start", values)], []), each)

    def _put_loop(self, each: Any, make: Callable[[], Block], out: Block) -> ast.For:
        """The loops of a comprehension, with what is done with an element in the innermost. Its
        variables get names of their own."""
        n = next(self._numbers)
        first, *more = each.generators
        values = self._taking.take(first.iter, out)
        first.iter = ast.Constant(None)  # it is no part of what the variables are for
        targets = {name for g in each.generators for name in find_stored([g.target])}
        for node in walk(each):
            if isinstance(node, ast.Name) and node.id in targets:
                node.id = f"{ITEM}{n} of {node.id}"
        loop = ast.For(first.target, values, self._nest(first.ifs, more, make), [])
        out.append(loop)
        return loop

    def _nest(self, filters: list[Any], more: list[Any], make: Callable[[], Block]) -> Block:
        block: Block = []
        if filters:
            test = self._taking.ask(filters[0], block)
            return [*block, ast.If(test, self._nest(filters[1:], more, make), [])]
        if more:
            first, *rest = more
            values = self._taking.take(first.iter, block)
            return [*block, ast.For(first.target, values, self._nest(first.ifs, rest, make), [])]
        return make()


def can_be_loop(each: Any, most: int = 9) -> bool:
    """Can a comprehension, with so many `for` at most, be written as loops? Not where functions
    keep its variables."""
    if len(each.generators) > most or any(g.is_async for g in each.generators):
        return False
    first = {*walk(each.generators[0].iter)}  # which is computed outside of it
    nodes = [n for n in walk(each) if n is not each and n not in first]
    inner = [n for n in nodes if isinstance(n, COMPREHENSIONS)]
    own = find_stored([g.target for g in each.generators])
    theirs = find_stored([g.target for n in inner for g in n.generators])
    has_functions = any(isinstance(n, ast.Lambda) for n in nodes)
    return not (has_functions or set(own) & set(theirs) or holds_wait(each))


def _can_be_function(each: Any) -> bool:
    """Can it be written as a function? Not where it sets variables of the one around."""
    if not isinstance(each, ast.GeneratorExp) or any(g.is_async for g in each.generators):
        return False
    sets = any(isinstance(node, ast.NamedExpr) for node in walk(each))
    return not (sets or holds_wait(each))


def _is_literal(each: ast.expr) -> bool:
    return isinstance(each.operand if isinstance(each, ast.UnaryOp) else each, ast.Constant)


def _has_filters(each: Any) -> bool:
    return any(generator.ifs for generator in each.generators)


def _takes_one(function: ast.Lambda) -> bool:
    """Has it one argument, of which nothing is special, and no other variable?"""
    given = function.args
    others = (*given.posonlyargs, *given.kwonlyargs, *given.defaults, given.vararg, given.kwarg)
    return len(given.args) == 1 and not any(others) and not find_stored([function.body])


_PARTS = ("unbind", "split", "chunk", "tolist")
_EMPTY: dict[Any, Callable[[], ast.expr]] = {
    ast.ListComp: lambda: ast.List([], ast.Load()),
    ast.SetComp: lambda: ast.Set([ast.Starred(ast.Tuple([], ast.Load()), ast.Load())]),
    ast.DictComp: lambda: ast.Dict([], []),
}


# ---------------------------------------------------------------------------------------- yields


def holds_wait(each: ast.AST) -> bool:
    kinds = (ast.Yield, ast.YieldFrom, ast.Await)
    return any(isinstance(node, kinds) for node in walk(each))


def join_yields(block: Sequence[ast.stmt], name: Callable[[], str]) -> Block:
    """Let both sides of an `if` that end with a `yield`, and have no other, yield after it."""
    found: Block = []
    for each in block:
        map_blocks(each, lambda inner: join_yields(inner, name))
        found.append(each)
        if isinstance(each, ast.If) and _ends_with_yield(each):
            value = name()
            _set_instead(each, value)
            found.append(locate(ast.Expr(ast.Yield(load(value))), each))
    return found


def _ends_with_yield(each: Any) -> bool:
    if not isinstance(each, ast.If):
        is_yield = isinstance(each, ast.Expr) and isinstance(each.value, ast.Yield)
        return is_yield and not (each.value.value and holds_wait(each.value.value))
    return all(
        block and _ends_with_yield(block[-1]) and not any(map(holds_wait, block[:-1]))
        for block in (each.body, each.orelse)
    ) and not holds_wait(each.test)


def _set_instead(each: Any, name: str) -> None:
    for block in (each.body, each.orelse):
        last = block[-1]
        if isinstance(last, ast.If):
            _set_instead(last, name)
        else:
            value = last.value.value or ast.Constant(None)
            block[-1] = locate(assign(name, value), last)
