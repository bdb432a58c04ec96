"""Takes the exits out of a function: `return`, `break` and `continue` in the middle become values
of variables, so that every `if`, loop, `with` and `try` is left at its end.

What follows an `if` from which the function may be left goes into both of its sides; what follows a
loop, a `with` or a `try` of that kind stands under an `if` that asks whether it was left. The
function does what it did before. Must not know what a condition depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from lostwax.capture.flow.rewriting.names import LEFT, RESULT
from lostwax.capture.flow.rewriting.scopes import SCOPES, find_stored
from lostwax.capture.python.trees import walk

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MOST = 1_000
"""So many statements a function has at most, when what follows an `if` is in both sides: models
have 100, and more take longer to record than anybody waits."""


class NotRewritable(Exception):
    """The function does something that we cannot take apart; the text says what."""


class LoopStatement(ast.stmt):
    """A loop without `break`, `continue`, `return` and `else`. It ends when `test` is false, which
    is not asked any more once `stop` is true."""

    _fields = ("asking", "test", "body")
    asking: list[ast.stmt]
    """What is done each time before `test` is asked."""
    test: ast.expr
    body: list[ast.stmt]
    stop: str | None
    """The variable that a `break` sets."""
    is_for: bool
    items: str
    """The variable of what a `for` goes over."""
    at: str
    """That of where it is."""


class AskingWhile(ast.While):
    """A `while` that does something each time before its test is asked."""

    _fields = ("asking", "test", "body", "orelse")


class _Around(NamedTuple):
    """The loop, `with` or `try` around a statement."""

    kind: str
    stop: str = ""
    """The loop's variable for `break`."""
    skip: str = ""
    """The loop's variable for `continue`, for a `with` or `try` inside of it."""


def lower_exits(
    function: ast.FunctionDef, is_extended: Callable[[ast.If], bool] = lambda _: False
) -> None:
    """Rewrite the body of a function. `is_extended` says for which `if` the sides go on to the
    end of the function."""
    lowering = _ExitLowering(is_extended)
    names = find_stored(function.body)
    has_returns = "return" in _find_left(function.body)
    if has_returns and not never_ends(function.body):
        function.body.append(locate(ast.Return(None), function.body[-1]))
    body = lowering.lower(function.body, ())
    first: list[ast.stmt] = []
    if lowering.has_left:
        first.append(assign(LEFT, ast.Constant(False)))
    if lowering.has_result:
        first.append(assign(RESULT, hook_value("nothing")))
        body.append(locate(ast.Return(load(RESULT)), function.body[-1]))
    for each in first:
        locate(each, function.body[0])
    lost = set(names) - set(find_stored(body))
    if lost:  # they were set where nothing gets, and are variables of the function all the same
        body += [ast.Return(), *[assign(name, ast.Constant(None)) for name in sorted(lost)]]
        for each in body[-len(lost) - 1 :]:
            locate(each, function.body[-1])
    has_text = ast.get_docstring(function, clean=False) is not None
    function.body = [*body[:has_text], *first, *body[has_text:]]


class _ExitLowering:
    def __init__(self, is_extended: Callable[[ast.If], bool]) -> None:
        self.is_extended = is_extended
        self.has_left = self.has_result = False
        self._numbers = count(1)
        self._nodes = 0

    def lower(self, block: Sequence[ast.stmt], around: tuple[_Around, ...]) -> list[ast.stmt]:
        """A block of statements, after which nothing follows before the end of what is around."""
        found: list[ast.stmt] = []
        for i, each in enumerate(block):
            self._nodes += 1
            if self._nodes > _MOST:
                raise NotRewritable("it has so many exits that its ways cannot be listed")
            rest = block[i + 1 :]
            if isinstance(each, (ast.Return, ast.Break, ast.Continue)):
                return found + self._leave(each, around)
            if isinstance(each, ast.Raise):
                return [*found, each]
            if isinstance(each, (ast.If, ast.Match)) and (
                find_exits(each) or self._holds_extended(each)
            ):
                return [*found, self._lower_choice(each, rest, around)]
            lowered, flags = self._lower_one(each, around)
            found += lowered
            if flags and rest:
                asked: ast.expr = load(flags[0]) if len(flags) == 1 else call_hook("any", *flags)
                following = self.lower(rest, around)
                skip = ast.If(asked, [locate(ast.Pass(), each)], following)
                return [*found, locate(skip, each)]
        return found

    def _holds_extended(self, each: ast.If | ast.Match) -> bool:
        """Do its sides go on to the end, or those of an `if` that stands directly in it?"""
        if isinstance(each, ast.Match):
            inner = [new for case in each.cases for new in case.body]
        else:
            inner = [*each.body, *each.orelse]
        if isinstance(each, ast.If) and self.is_extended(each):
            return True
        return any(isinstance(e, (ast.If, ast.Match)) and self._holds_extended(e) for e in inner)

    def _leave(self, exit: ast.stmt, around: tuple[_Around, ...]) -> list[ast.stmt]:
        loops = [each for each in around if each.kind == "loop"]
        inner = around[-1].kind if around else ""
        new: list[ast.stmt] = []
        if isinstance(exit, ast.Return):
            self.has_result = True
            new.append(assign(RESULT, exit.value or ast.Constant(None)))
            if around:
                self.has_left = True
                new.append(assign(LEFT, ast.Constant(True)))
            new += [assign(each.stop, ast.Constant(True)) for each in loops]
        elif isinstance(exit, ast.Break):
            new.append(assign(loops[-1].stop, ast.Constant(True)))
        elif inner != "loop":
            new.append(assign(loops[-1].skip, ast.Constant(True)))
        else:
            new.append(ast.Pass())
        return [locate(each, exit) for each in new]

    def _lower_choice(
        self, choice: Any, rest: Sequence[ast.stmt], around: tuple[_Around, ...]
    ) -> ast.stmt:
        """Both sides go on with the rest."""
        choice.joins = None  # they do more than to ask the second of two truths

        def go_on(block: list[ast.stmt]) -> list[ast.stmt]:
            more = [] if never_ends(block) else copy.deepcopy([*rest])
            return self.lower([*block, *more], around) or [locate(ast.Pass(), choice)]

        if isinstance(choice, ast.Match):
            if rest and not _takes_all(choice.cases[-1]):
                every = ast.match_case(ast.MatchAs(), None, [ast.Pass()])
                choice.cases.append(locate(every, choice))
            for case in choice.cases:
                case.body = go_on(case.body)
            return choice
        choice.body, choice.orelse = go_on(choice.body), go_on(choice.orelse)
        return choice  # type: ignore[no-any-return]

    def _lower_one(
        self, each: Any, around: tuple[_Around, ...]
    ) -> tuple[list[ast.stmt], list[str]]:
        """A statement, and the variables that tell whether what is around it is left by it."""
        if isinstance(each, (ast.While, ast.For)):
            return self._lower_loop(each, around)
        exits = find_exits(each)
        flags = self._find_flags(exits, around)
        inside = (*around, _Around("block")) if exits else around
        if isinstance(each, ast.With):
            each.body = self.lower(each.body, inside)
        elif isinstance(each, ast.Try):
            if _find_left(each.finalbody):
                raise NotRewritable("a `finally` with an exit in it")
            own = self._find_flags(_find_left(each.body), around)
            each.body = self.lower(each.body, inside)
            each.finalbody = self.lower(each.finalbody, inside)
            for handler in each.handlers:
                handler.body = self.lower(handler.body, inside)
            each.orelse = self.lower(each.orelse, inside)
            for block in (each.finalbody, *[handler.body for handler in each.handlers]):
                block[:0] = _let_go(each.body) if block else []
            if own and each.orelse:
                asked = load(own[0]) if len(own) == 1 else call_hook("any", *own)
                skip = ast.If(asked, [ast.Pass()], each.orelse)
                each.orelse = [locate(skip, each)]
        elif isinstance(each, ast.If):
            each.body, each.orelse = (self.lower(b, around) for b in (each.body, each.orelse))
        elif isinstance(each, ast.Match):
            for case in each.cases:
                case.body = self.lower(case.body, around)
        elif exits:
            raise NotRewritable(f"a statement `{type(each).__name__}` with an exit in it")
        return [each], flags

    def _find_flags(self, exits: set[str], around: tuple[_Around, ...]) -> list[str]:
        loops = [each for each in around if each.kind == "loop"]
        found: list[str] = []
        if "return" in exits:
            found.append(LEFT)
        if "break" in exits:
            found.append(loops[-1].stop)
        if "continue" in exits:
            found.append(loops[-1].skip)
        return found

    def _lower_loop(
        self, loop: Any, around: tuple[_Around, ...]
    ) -> tuple[list[ast.stmt], list[str]]:
        n = next(self._numbers)
        own = _Around("loop", f"break {n}", f"continue {n}")
        inner = _find_left(loop.body)
        stops = bool(inner & {"break", "return"})
        body = self.lower(loop.body, (*around, own))
        before: list[ast.stmt] = []
        items, at = f"items {n}", f"next {n}"  # where: of a range whose end is open; else None
        if isinstance(loop, ast.For):
            before.append(assign(items, iterate(loop.iter)))
            before.append(assign(at, ast.Attribute(load(items), "start", ast.Load())))
            value, new_at, test = (_ask(items, each, at) for each in ("take", "advance", "more"))
            body[:0] = [ast.Assign([loop.target], value), assign(at, new_at)]
            for each in body[:2]:
                locate(each, loop)
        else:
            test = loop.test
        if stops:
            before.append(assign(own.stop, ast.Constant(False)))
        if _uses(body, own.skip):
            body.insert(0, assign(own.skip, ast.Constant(False)))
        asking = self.lower(getattr(loop, "asking", ()), around)
        new: Any = LoopStatement(asking, test, body or [ast.Pass()])  # type: ignore[call-arg,arg-type]
        new.stop = own.stop if stops else None
        new.is_for, new.items, new.at = isinstance(loop, ast.For), items, at
        found: list[ast.stmt] = [*before, new]
        if new.is_for:  # Python holds what it goes over no longer: a generator that is left ends
            found.append(assign(items, ast.Constant(None)))
        flags = [LEFT] if "return" in inner else []
        if loop.orelse:
            left = _find_left(loop.orelse)
            flags += [f for f in self._find_flags(left, around) if f not in flags]
            orelse = self.lower(loop.orelse, (*around, _Around("block")) if left else around)
            if stops:
                orelse = [ast.If(load(own.stop), [ast.Pass()], orelse)]
            found += orelse
        for each in (*found, *body[:1]):
            if not hasattr(each, "lineno"):
                locate(each, loop)
        return found, flags


def _let_go(block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Hold nothing more of what the loops of a block, which an exception has left, went over."""
    found = (node for each in block for node in walk(each))
    loops = [each for each in found if isinstance(each, LoopStatement) and each.is_for]
    return [locate(assign(each.items, ast.Constant(None)), each) for each in loops]


def _uses(block: Sequence[ast.stmt], name: str) -> bool:
    nodes = (node for each in block for node in walk(each))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def iterate(items: ast.expr) -> ast.expr:
    """What a loop goes over."""
    if hasattr(items, "is_items"):  # it is that already
        return items
    found: ast.expr = locate(hook("iterate", make_source(items)), items)
    return found


def make_source(items: Any) -> Any:
    """Let what is called make it (`range(n)` may be of a number that depends on data), and what
    that is given, if it may be one that joins such."""
    if isinstance(items, ast.Call) and is_hook(items.func, "callee"):
        function: Any = items.func
        joins = getattr(items, "may_join", False) and any(map(_is_called, items.args))
        items.func = locate(hook("source", function.args[0], ast.Constant(joins)), function)
        items.args = [make_source(each) if joins else each for each in items.args]
    return items


def _is_called(each: ast.AST) -> bool:
    return isinstance(each, ast.Call) and is_hook(each.func, "callee")


def _ask(items: str, method: str, at: str) -> ast.expr:
    return ast.Call(ast.Attribute(load(items), method, ast.Load()), [load(at)], [])


def find_exits(statement: ast.AST) -> set[str]:
    """The exits in a statement that leave it: "return", "break", "continue"."""
    found: set[str] = set()
    if isinstance(statement, ast.Return):
        return {"return"}
    if isinstance(statement, (ast.Break, ast.Continue)):
        return {type(statement).__name__.lower()}
    if isinstance(statement, SCOPES):
        return found
    for name, value in ast.iter_fields(statement):
        if isinstance(value, list):
            inner = _find_left(value)
            found |= (
                inner & {"return"} if isinstance(statement, LOOPS) and name == "body" else inner
            )
    return found


def _find_left(block: Sequence[ast.AST]) -> set[str]:
    """The exits in a block, up to where it ends."""
    found: set[str] = set()
    for each in block:
        if isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            found |= find_exits(each)
            if isinstance(each, ast.stmt) and _always_leaves(each):
                break
    return found


def never_ends(block: Sequence[ast.stmt]) -> bool:
    """Does the block always leave what is around it?"""
    return any(map(_always_leaves, block))


def _always_leaves(each: ast.stmt) -> bool:
    if isinstance(each, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return True
    if isinstance(each, ast.While):  # `while True`, which nothing but a `return` leaves
        is_endless = isinstance(each.test, ast.Constant) and bool(each.test.value)
        return is_endless and "break" not in _find_left(each.body)
    return isinstance(each, ast.If) and never_ends(each.body) and never_ends(each.orelse)


def _takes_all(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and not case.guard


def map_blocks(statement: Any, function: Callable[[list[ast.stmt]], Sequence[ast.stmt]]) -> bool:
    """Let a function make the blocks that stand in a statement. Returns whether there is one; those
    of a function or a class are its own."""
    inner = (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    has_blocks = bool(inner)
    for holder in () if isinstance(statement, SCOPES) else (statement, *inner):
        for name in ("asking", "body", "orelse", "finalbody"):
            if isinstance(block := getattr(holder, name, None), list):
                setattr(holder, name, function(block))
                has_blocks = True
    return has_blocks


# ------------------------------------------------------------------------------------ making nodes

HOOKS = "the hooks of lostwax"
"""Stands for them in the tree; the compiled code has the object itself (`recompile.py`)."""


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def hook_value(name: str) -> ast.expr:
    return ast.Attribute(ast.Constant(HOOKS), name, ast.Load())


def call_hook(name: str, *names: str) -> ast.Call:
    return ast.Call(hook_value(name), [load(each) for each in names], [])


def locate(new: Any, old: ast.AST) -> Any:
    """Give a new node the place in the file of another one; what is in it gets that, too
    (`ast.fix_missing_locations`)."""
    return ast.copy_location(new, old)


def locate_all(block: Sequence[ast.AST], at: ast.AST) -> None:
    """… and all that is in these, where it has none."""
    for each in block:
        for node in walk(each):
            if isinstance(node, (ast.stmt, ast.expr, ast.pattern)) and not hasattr(node, "lineno"):
                locate(node, at)


def hook(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(hook_value(name), list(args), [])


def is_hook(function: Any, name: str) -> bool:
    """Is it a call of this hook?"""
    called: Any = function.func if isinstance(function, ast.Call) else None
    is_ours = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Constant)
    return bool(is_ours and called.value.value == HOOKS and called.attr == name)
