"""Puts hooks into a function without exits (`exits.py`): around each `if` and each loop.

Where a condition is known, the function does what it did before. Where it depends on data, its two
sides are run one after the other, from the same variables, and what the two have made of the
variables becomes one; a loop's body is run until it is known what it hands on. What the hooks do is
not known here.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import count
from typing import Any

from lostwax.capture.flow.rewriting.appends import APPENDS, GUARDED, READS
from lostwax.capture.flow.rewriting.exits import (
    LoopStatement,
    NotRewritable,
    assign,
    hook,
    hook_value,
    is_hook,
    load,
    locate,
)
from lostwax.capture.flow.rewriting.liveness import find_nonlocal
from lostwax.capture.flow.rewriting.names import ITEMS, MOVED
from lostwax.capture.flow.rewriting.scopes import FUNCTIONS, NONE, Names, find_loads, find_stored
from lostwax.capture.python.trees import children, walk


def add_hooks(
    function: ast.FunctionDef,
    outside: Names,
    growing: frozenset[tuple[int, int, str]] = frozenset(),
    apart: Names = NONE,
) -> None:
    """Rewrite the body of a function; `outside`: the names in it that are globals;
    `growing`: what is known of the loops that append to lists (`appends.py`); `apart`: the
    variables that data make one thing or another (`options.py`)."""
    hooking, around = _Hooking(function, outside, growing, apart), find_nonlocal(function)
    function.body = hooking.go_through(function.body)
    if hooking.moved:  # variables of this function, also where inner ones alone set them
        arguments = {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
        names = sorted(hooking.moved - arguments - around)
        unset: list[ast.stmt] = [assign(name, ast.Constant(None)) for name in names]
        function.body.insert(0, ast.If(ast.Constant(False), unset or [ast.Pass()], []))


class _Hooking:
    def __init__(
        self,
        function: ast.FunctionDef,
        outside: Names,
        growing: frozenset[tuple[int, int, str]],
        apart: Names,
    ) -> None:
        self.outside, self._growing, self._apart = outside, growing, apart
        self.moved: set[str] = set()
        """The variables that parts set which stand in functions of their own."""
        first = [*function.args.posonlyargs, *function.args.args][:1]
        self._first = first[0].arg if first else None
        lines = [each.lineno for each in function.decorator_list]
        self._first_line = min([function.lineno, *lines])
        blocks = [each for each in walk(function) if isinstance(each, ast.Try)]
        last = find_loads([each for block in blocks for each in block.finalbody])
        self._finally = tuple(sorted(last))
        """The names that are read when the function is left."""
        self._numbers = count(1)
        self._depth = 0
        """How many blocks are around, of which Python takes at most 20."""

    def go_through(self, block: Sequence[ast.stmt], deeper: int = 0) -> list[ast.stmt]:
        """`deeper`: how many more blocks are around than before."""
        before, self._depth = self._depth, self._depth + deeper
        try:
            if self._depth <= _DEEPEST or not any(map(_has_blocks, block)):
                return [new for each in block for new in self._go_through_one(each)]
            self._depth = 0
            if any(map(holds_yield, block)):
                raise NotRewritable("it is a generator, and its blocks are too deep")
            return self._move(block)
        finally:
            self._depth = before

    def _move(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Put a block into a function of its own, which is called at once."""
        names = find_stored(block, self.outside)
        self.moved |= set(names)
        for each in block:
            spell_super(each, self._first)
        body = self.go_through(block)
        # Every name that its hooks set is the outer function's.
        own = sorted(set(find_stored(body)) - self.outside)
        self.moved |= set(own)
        name = f"{MOVED}{next(self._numbers)}"
        kept: list[ast.stmt] = [ast.Nonlocal(own)] if own else []
        known = sorted(set(find_stored(block)) & self.outside)
        kept += [ast.Global(known)] if known else []
        function = ast.FunctionDef(name, _no_arguments(), [*kept, *body], [], None)
        function.type_params = []  # type: ignore[attr-defined]
        call = ast.Expr(ast.Call(load(name), [], []))
        locate(call, block[0])
        function.lineno = self._first_line  # by which the function is known to us
        function.col_offset = 0
        return [function, call]

    def _go_through_one(self, each: Any) -> list[ast.stmt]:
        if isinstance(each, LoopStatement):
            return self._hook_loop(each)
        if isinstance(each, ast.If):
            return self._hook_choice(each)
        if isinstance(each, ast.With):
            each.body = self.go_through(each.body, 1)
        elif isinstance(each, ast.Try):
            each.body = self.go_through(each.body, 2)
            for handler in each.handlers:
                handler.body = self.go_through(handler.body, 2)
            each.orelse = self.go_through(each.orelse, 2)
            each.finalbody = self.go_through(each.finalbody, 2)
        elif isinstance(each, ast.Match):
            for case in each.cases:
                case.body = self.go_through(case.body)
        return [each]

    def _hook_choice(self, choice: ast.If) -> list[ast.stmt]:
        """
        test = ...
        choice = hooks.choose(test, ...)
        while True:
            try:
                if test if choice is None else choice.side: ...
                else: ...
            except hooks.failing(choice) as error:
                choice.fail(error)
            if choice is None: break
            is_over = choice.end()
            ...                                # the variables as they are to be
            if is_over: break
        """
        if holds_yield(choice):
            return self._hook_known_choice(choice)
        n = next(self._numbers)
        test, own, error, over = (f"{w} {n}" for w in ("test", "choice", "error", "over"))
        while isinstance(choice.test, ast.UnaryOp) and isinstance(choice.test.op, ast.Not):
            choice.test = choice.test.operand
            choice.body, choice.orelse = choice.orelse or [ast.Pass()], choice.body
        names = find_stored([*choice.body, *choice.orelse], self.outside)
        live = [name for name in names if name in choice.live]  # type: ignore[attr-defined]
        joins = getattr(choice, "joins", None)
        apart = tuple(name for name in names if name in self._apart)
        place = choice.lineno, choice.col_offset
        is_guard = (*place, GUARDED) in self._growing
        after = tuple(sorted(choice.live))  # type: ignore[attr-defined]
        options = _constant((*place, joins, self._finally, apart, is_guard, after))
        is_none = ast.Compare(load(own), [ast.Is()], [ast.Constant(None)])
        body = self.go_through(choice.body, 2)
        orelse = self.go_through(choice.orelse, 2)
        side = ast.Attribute(load(own), "side", ast.Load())
        asked = ast.IfExp(is_none, load(test), side)
        inner = locate(ast.If(asked, body or [ast.Pass()], orelse), choice)
        handler = _make_handler(own, error)
        new: list[ast.stmt] = [
            assign(test, choice.test),
            assign(own, hook("choose", load(test), options, _names(names), _names(live))),
            ast.While(
                ast.Constant(True),
                [
                    ast.Try([inner], [handler], [], []),
                    ast.If(is_none, [ast.Break()], []),
                    ast.Assign([ast.Name(over, ast.Store())], _call(own, "end").value),
                    *_take_variables(own, names),
                    ast.If(load(over), [ast.Break()], []),
                ],
                [],
            ),
        ]
        return [_locate_at_start(each, choice) for each in new]

    def _hook_known_choice(self, choice: ast.If) -> list[ast.stmt]:
        """One whose sides cannot both be run: the function stops in them."""
        choice.test = _ask_known(choice.test, choice)
        choice.body = self.go_through(choice.body)
        choice.orelse = self.go_through(choice.orelse)
        return [choice]

    def _hook_known_loop(self, loop: LoopStatement) -> list[ast.stmt]:
        """A loop in which the function stops.

        while True:
            test = ...
            if not test: break
            ...
        """
        test = f"test {next(self._numbers)}"
        tested: list[ast.stmt] = [*loop.asking, assign(test, _ask_known(loop.test, loop))]
        tested = self.go_through(tested)
        if loop.stop is not None:
            stopped = _ask_known(load(loop.stop), loop)
            tested = [
                assign(test, ast.Constant(False)),
                ast.If(stopped, [ast.Pass()], tested),
            ]
        leave = ast.If(load(test), [ast.Pass()], [ast.Break()])
        body = self.go_through(loop.body, 1)
        return [locate(ast.While(ast.Constant(True), [*tested, leave, *body], []), loop)]

    def _skip(self, asked: ast.expr, block: list[ast.stmt], live: Names, at: ast.AST) -> ast.If:
        """The block, unless that is true."""
        found = locate(ast.If(asked, [ast.Pass()], block), at)
        found.live = live
        return found  # type: ignore[no-any-return]

    def _hook_loop(self, loop: LoopStatement) -> list[ast.stmt]:
        """
        loop = hooks.repeat(...)
        while True:
            try:
                loop.begin()
                test = ...
                if not (test if loop.is_plain(test) else loop.go_on()): break
                ...
            except hooks.failing(loop) as error:
                loop.fail(error)
            if loop.is_symbolic:
                is_over = loop.end()
                ...                            # the variables as they are to be
                if is_over: break
        """
        if holds_yield(loop):
            return self._hook_known_loop(loop)
        n = next(self._numbers)
        test, own, over = (f"{w} {n}" for w in ("test", "loop", "over"))
        names = find_stored([*loop.asking, loop.test, *loop.body], self.outside)
        inside = [name for name in names if name in loop.live_inside]  # type: ignore[attr-defined]
        after = [name for name in names if name in loop.live]  # type: ignore[attr-defined]
        place = loop.lineno, loop.col_offset
        of_items = (loop.items, loop.at) if loop.is_for else ("", "")
        kinds = {kind for *at, kind in self._growing if (*at,) == place}
        growing = APPENDS in kinds, READS in kinds, GUARDED in kinds
        apart = tuple(name for name in names if name in self._apart)
        at = _constant((*place, *growing, *of_items, loop.stop, apart))
        tested: list[ast.stmt] = [*loop.asking, assign(test, loop.test)]
        block = loop.body
        live = frozenset([test, *loop.live_inside, *loop.live])  # type: ignore[attr-defined]
        if loop.stop is not None:
            stopped: list[ast.expr] = [load(loop.stop)]
            if loop.is_for:
                items = load(loop.items)
                stopped = [hook(name, items, load(loop.stop)) for name in ("stops", "skips")]
                block = [self._skip(stopped[1], block, live, loop)]
            unless = self._skip(stopped[0], tested, live, loop)
            tested = [assign(test, ast.Constant(False)), *self._hook_choice(unless)]
        else:
            tested = self.go_through(tested, 2)
        plain = _call(own, "is_plain", load(test)).value
        asked = ast.IfExp(plain, load(test), _call(own, "go_on").value)
        body = self.go_through(block, 2)
        is_symbolic = ast.Attribute(load(own), "is_symbolic", ast.Load())
        ending: list[ast.stmt] = [
            assign(over, _call(own, "end").value),
            *_take_variables(own, names),
            ast.If(load(over), [ast.Break()], []),
        ]
        new: list[ast.stmt] = [
            assign(own, hook("repeat", at, _names(names), _names(inside), _names(after))),
            ast.While(
                ast.Constant(True),
                [
                    ast.Try(
                        [
                            _call(own, "begin"),
                            *tested,
                            ast.If(asked, [ast.Pass()], [ast.Break()]),
                            *body,
                        ],
                        [_make_handler(own, f"error {n}")],
                        [],
                        [],
                    ),
                    ast.If(is_symbolic, ending, []),
                ],
                [],
            ),
        ]
        return [_locate_at_start(each, loop) for each in new]


def mark_made(block: Sequence[ast.stmt], names: Names, kind: str) -> None:
    """Let a hook make the lists or dicts that are assigned to these variables."""
    marking = _MarkingContainers(kind)
    for node in (node for each in block for node in walk(each)):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                node.value = _mark(target, node.value, names, marking)
        elif isinstance(node, ast.Call) and _appends_item(node):
            node.args = [marking.visit(each) for each in node.args]


def _appends_item(call: ast.Call) -> bool:
    """Does it append to what a comprehension makes?"""
    method = call.func
    is_append = isinstance(method, ast.Attribute) and method.attr == "append"
    return is_append and getattr(method.value, "id", "").startswith(ITEMS)  # type: ignore[attr-defined]


def _mark(target: ast.expr, value: ast.expr, names: Names, marking: _MarkingContainers) -> ast.expr:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple):
        if len(target.elts) == len(value.elts):
            pairs = zip(target.elts, value.elts, strict=True)
            value.elts = [_mark(a, b, names, marking) for a, b in pairs]
    elif isinstance(target, ast.Name) and target.id in names:
        return marking.visit(value)  # type: ignore[no-any-return]
    return value


class _MarkingContainers(ast.NodeTransformer):
    """Lets a hook make `[...]` and `list(...)`, also those within them, within a dict, a tuple or a
    comprehension; or so the dicts and sets."""

    def __init__(self, kind: str) -> None:
        self._hook, self._made = f"make_{kind}", _MADE[kind]

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.Call) and is_hook(node.func, "callee"):
            function: Any = node.func
            maker = hook("maker", function.args[0], ast.Constant(self._hook == "make_dict"))
            node.func = locate(maker, function)
        elif isinstance(node, _HOLDING):
            self.generic_visit(node)
        return locate(hook(self._hook, node), node) if isinstance(node, self._made) else node


_HOLDING = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)
_MADE: dict[str, Any] = {"list": ast.List, "dict": (ast.Dict, ast.DictComp, ast.Set, ast.SetComp)}


_DEEPEST = 10


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def _has_blocks(each: ast.stmt) -> bool:
    kinds = (ast.If, LoopStatement, ast.With, ast.Try)
    return isinstance(each, kinds) or any(
        isinstance(node, kinds) for node in walk(each) if not isinstance(each, FUNCTIONS)
    )


def spell_super(node: ast.AST, first: str | None) -> None:
    """Write `super()` as it is meant: in another function it would not be known."""
    for each in walk(node):
        is_super = isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        if is_super and each.func.id == "super" and not each.args and first is not None:  # type: ignore[attr-defined]
            each.args = [load("__class__"), load(first)]  # type: ignore[attr-defined]


def _ask_known(test: ast.expr, at: ast.AST) -> ast.expr:
    """Ask for what has to be known."""
    return _locate_at_start(hook("know", test), at)  # type: ignore[no-any-return]


def _locate_at_start(new: Any, statement: ast.AST) -> Any:
    """Give a new node the first line of a statement: what it records has that line. (Python gives
    a call of a method the last line of what it is called on.)"""
    located: Any = locate(new, statement)
    located.end_lineno, located.end_col_offset = located.lineno, located.col_offset
    return located


def _make_handler(own: str, error: str) -> ast.ExceptHandler:
    return ast.ExceptHandler(hook("failing", load(own)), error, [_call(own, "fail", load(error))])


def _take_variables(own: str, names: Sequence[str]) -> list[ast.stmt]:
    """Set the variables as the choice or loop says, or unset them."""
    found: list[ast.stmt] = []
    for name in names:
        value = "given now"
        keeps = hook("is_same", load(value), hook_value("kept"))
        unset = hook("is_same", load(value), hook_value("unset"))
        delete = ast.Delete([ast.Name(name, ast.Del())])
        take: list[ast.stmt] = [assign(name, load(value)), ast.If(unset, [delete], [])]
        found += [
            assign(value, _call(own, "give", ast.Constant(name)).value),
            ast.If(keeps, [ast.Pass()], take),
        ]
    return found


def _call(own: str, method: str, *args: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Attribute(load(own), method, ast.Load()), list(args), []))


def _constant(value: Any) -> ast.Constant:
    return ast.Constant(value)


def _names(names: Sequence[str]) -> ast.Constant:
    return _constant(tuple(names))


def holds_yield(node: ast.AST) -> bool:
    left = children(node)
    while left:
        each = left.pop()
        if isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)):
            return True
        if not isinstance(each, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            left += children(each)
    return False
