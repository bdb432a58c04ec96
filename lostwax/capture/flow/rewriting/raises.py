"""Exceptions that a function raises, and that it or another one catches.

What catches them is done where they are raised.

    try:                                 handled 1 = False
        if c:                            try:
            raise ValueError                 if c:
        y = …                                    handled 1 = True
    except ValueError:                           try: raise ValueError
        …                                        except ValueError: …
                                             else:
                                                 y = …
                                         except ValueError:
                                             if handled 1: raise
                                             …

So an `if` on data may raise: on neither side is anything left to be caught. What leaves more than
an `if` becomes an exit:

    if c:                       if c:
        raise ValueError            raised 1 = hooks.keep_raised(ValueError)
    return y                        the raising = 1; return
                                return y
    …                           return hooks.give_raised(the result, the raising, raised 1)

    y = f(x)                    part 1 = hooks.hear(hooks.begin_raising(f, 1)(x))
                                if hooks.is_raised(part 1, 1): raise hooks.take_raised(part 1, 1)
                                y = hooks.take_result(part 1)

In a `try`, a loop that raises is left by a `break`, and what it raises is raised after it. So what
catches it can be done there. The function does what it did before. Must not know
what a condition depends on.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from lostwax.capture.flow.rewriting.exits import (
    LOOPS,
    assign,
    hook,
    hook_value,
    is_hook,
    load,
    locate,
    locate_all,
    map_blocks,
    never_ends,
)
from lostwax.capture.flow.rewriting.names import (
    HANDLED,
    LEAVING,
    MANAGER,
    RAISED,
    RAISING,
    RESULT,
    TURN,
)
from lostwax.capture.flow.rewriting.picks import Place, place_of
from lostwax.capture.flow.rewriting.scopes import SCOPES, Meanings, walk_own
from lostwax.capture.python.trees import walk

Block = list[ast.stmt]


_MOST = 2_000
"""So many nodes the rest of a block has at most that is written twice."""


def lower_raises(block: Sequence[ast.stmt], numbers: Iterator[int]) -> list[ast.stmt]:
    """The statements of a block, those that catch rewritten; `numbers`: for new names."""
    return [new for each in block for new in _go_through(each, numbers)]


def _go_through(each: Any, numbers: Iterator[int]) -> list[ast.stmt]:
    map_blocks(each, lambda inner: lower_raises(inner, numbers))
    if not isinstance(each, ast.Try) or not each.handlers:
        return [each]
    each.body = leave_loops(each.body, numbers)
    if not _raises(each.body, _shows(each.handlers)):
        return [each]
    return _rewrite(each, f"{HANDLED}{next(numbers)}")


def _rewrite(each: ast.Try, handled: str) -> list[ast.stmt]:
    handlers = copy.deepcopy(each.handlers)
    body = _Handling(handlers, handled, each.orelse).lower(copy.deepcopy(each.body))
    if body is None:
        return [each]
    each.body = body
    each.is_rewritten = True  # type: ignore[attr-defined]
    for handler in each.handlers:
        again = ast.If(load(handled), [ast.Raise(None, None)], [])
        handler.body.insert(0, locate(again, handler))
    each.orelse = []
    return [locate(assign(handled, ast.Constant(False)), each), each]


class _Handling:
    def __init__(
        self, handlers: list[ast.ExceptHandler], handled: str, orelse: list[ast.stmt]
    ) -> None:
        self._handlers, self._handled, self._orelse = handlers, handled, orelse

    def lower(self, block: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """A block in which what is raised is handled, and nothing follows it. None: it would be
        too long."""
        found: list[ast.stmt] = []
        for i, each in enumerate(block):
            if _is_own(each, _shows(self._handlers)):
                if not hasattr(each, "is_stand_in"):
                    each.exc = locate(seal(each.exc), each)  # type: ignore[attr-defined]
                    locate_all([each], each)
                caught: Any = ast.Try([each], copy.deepcopy(self._handlers), [], [])
                caught.is_of_raise = True
                return [*found, self._note(each), locate(caught, each)]
            found.append(each)
            if isinstance(each, ast.If) and _raises([each], _shows(self._handlers)):
                rest = block[i + 1 :]
                if sum(1 for part in rest for _ in walk(part)) > _MOST:
                    return None
                sides = [self._go_on(side, rest) for side in (each.body, each.orelse)]
                if None in sides:
                    return None
                each.body, each.orelse = sides  # type: ignore[assignment]
                return found
        if not self._orelse or never_ends(block):
            return found
        return [*found, self._note(self._orelse[0]), *copy.deepcopy(self._orelse)]

    def _note(self, at: ast.AST) -> ast.stmt:
        """Nothing is caught from here on."""
        return locate(assign(self._handled, ast.Constant(True)), at)  # type: ignore[no-any-return]

    def _go_on(self, side: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        return self.lower([*side, *([] if never_ends(side) else copy.deepcopy([*rest]))])


def _raises(block: Sequence[ast.stmt], shows: bool) -> bool:
    """Is there a `raise` in it, that stands in no other block than those of an `if`?"""
    for each in block:
        if _is_own(each, shows):
            return True
        if isinstance(each, ast.If) and _raises([*each.body, *each.orelse], shows):
            return True
    return False


def _shows(handlers: Sequence[ast.ExceptHandler]) -> bool:
    """May one of them look at what it has caught?"""
    return any(each.name or _raises_again(each) for each in handlers)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in walk(handler))


def _is_own(each: ast.stmt, shows: bool) -> bool:
    """Does it raise what the user says? Or that there is no such element, and nobody looks at the
    text? (Of an attribute Python's error depends on what it is an attribute of.)"""
    if not isinstance(each, ast.Raise) or each.exc is None:
        return False
    return getattr(each, "is_stand_in", "") in ("", *(() if shows else ("element",)))


# ----------------------------------------------------------------------------- what is written else


def write_raises(block: Sequence[ast.stmt]) -> Block:
    """The statements of a block, in which each `raise` says what it raises, and each `try` has
    handlers or a `finally`."""
    return [_write_raise(each) for each in block]


def _write_raise(each: Any) -> ast.stmt:
    for handler in getattr(each, "handlers", ()):
        for node in walk(handler):
            if isinstance(node, ast.Raise):
                node.caught_as = handler.name  # type: ignore[attr-defined]
    map_blocks(each, write_raises)
    new: Any = each
    if isinstance(each, ast.Raise) and each.exc is None:
        new = ast.Raise(hook("take_handled"), None)
        new.caught_as = getattr(each, "caught_as", None)
    elif isinstance(each, ast.Raise) and each.cause is not None:
        new = ast.Raise(hook("with_cause", *filter(None, (each.exc, each.cause))), None)
    elif isinstance(each, ast.Try) and each.handlers and each.finalbody:
        inner = ast.Try(each.body, each.handlers, each.orelse, [])
        new = ast.Try([inner], [], [], each.finalbody)
    locate_all([new], each)
    return new  # type: ignore[no-any-return]


# ------------------------------------------------------------------------- out of what is called


def mark_raising_calls(function: ast.FunctionDef, calls: Mapping[Place, int]) -> None:
    """Note which calls may raise where data say so, and how many exceptions."""
    for each in walk_own(function) if calls else ():
        if isinstance(each, ast.Call) and place_of(each) in calls:
            each.is_named = True  # type: ignore[attr-defined]
            each.raises = calls[place_of(each)]  # type: ignore[attr-defined]


def hear_raises(block: Sequence[ast.stmt]) -> Block:
    """The statements of a block, with a `raise` after each such call."""
    return [new for each in block for new in _hear_one(each)]


def _hear_one(each: Any) -> Block:
    if isinstance(each, SCOPES) or map_blocks(each, hear_raises):
        return [each]
    calls: list[Any] = [node for node in walk(each) if hasattr(node, "raises")]
    if len(calls) != 1 or not isinstance(each, ast.Assign):
        return [each]
    call, target = calls[0], each.targets[0]
    part, most = target.id, call.raises  # type: ignore[attr-defined]
    del call.raises
    if is_hook(call.func, "begin"):
        call.func = call.func.args[0]
    call.func = hook("begin_raising", call.func, ast.Constant(most))
    each.value = hook("hear", each.value)
    found: Block = [each, *(_raise_one(part, number) for number in range(1, most + 1))]
    found.append(assign(part, hook("take_result", load(part))))
    locate_all(found, each)
    return found


def _raise_one(part: str, number: int) -> ast.stmt:
    of = load(part), ast.Constant(number)
    return ast.If(hook("is_raised", *of), [ast.Raise(hook("take_raised", *of), None)], [])


def write_suppress(block: Sequence[ast.stmt], meanings: Meanings) -> Block:
    """The statements of a block, `with suppress(...)` as a `try`."""
    found: Block = []
    for each in block:
        map_blocks(each, lambda inner: write_suppress(inner, meanings))
        found.append(_write_suppress(each, meanings) if isinstance(each, ast.With) else each)
    return found


def _write_suppress(each: ast.With, meanings: Meanings) -> ast.stmt:
    item: Any = each.items[0]
    call = item.context_expr
    is_call = isinstance(call, ast.Call) and len(each.items) == 1 and not item.optional_vars
    if not is_call or meanings.find(call.func) is not contextlib.suppress or call.keywords:
        return each
    if not all(isinstance(arg, (ast.Name, ast.Attribute)) for arg in call.args):
        return each
    handler = ast.ExceptHandler(ast.Tuple(call.args, ast.Load()), None, [ast.Pass()])
    ast.copy_location(handler, each)
    new = ast.Try(each.body, [handler], [], [])
    locate_all([new], each)
    return new


# ----------------------------------------------------------------------------------- out of a with


def name_managers(
    block: Block, numbers: Iterator[int], is_caught: bool, around: tuple[str, ...] = ()
) -> Block:
    """The statements of a block. What is raised in a `with`, and caught outside of it, is to leave
    it as a `break` does: its managers are asked before whether that is the same to them."""
    return [new for each in block for new in _name_one(each, numbers, is_caught, around)]


def _name_one(each: Any, numbers: Iterator[int], is_caught: bool, around: tuple[str, ...]) -> Block:
    if is_own_raise(each) and around:
        asked = ast.Expr(hook("leave_managers", *map(load, around)))
        locate_all([asked], each)
        return [asked, each]
    if isinstance(each, ast.With) and is_caught and any(map(_holds_raise, each.body)):
        return _name_manager(each, numbers, around)
    caught = _find_caught(each)

    def go_on(inner: Block) -> Block:
        ways = (True, ()) if inner is caught else (is_caught, around)
        return name_managers(inner, numbers, *ways)

    map_blocks(each, go_on)
    return [each]


def _name_manager(each: ast.With, numbers: Iterator[int], around: tuple[str, ...]) -> Block:
    first, *others = each.items
    name = f"{MANAGER}{next(numbers)}"
    named: Any = assign(name, first.context_expr)
    first.context_expr = load(name)
    if others:
        inner = ast.With(others, each.body)
        each.items, each.body = [first], [locate(inner, each)]
    each.body = name_managers(each.body, numbers, True, (*around, name))
    locate_all([named, each], each)
    return [named, each]


# ------------------------------------------------------------------------------- out of a function


def leave_by_raises(function: ast.FunctionDef) -> int:
    """Let a function return where it raises. Returns how many exceptions these are."""
    numbers = count(1)
    function.body = [new for each in function.body for new in _return_one(each, numbers)]
    return next(numbers) - 1


def _return_one(
    each: Any, numbers: Iterator[int], is_caught: bool = False, around: bool = False
) -> Block:
    """`is_caught`: may a `try` catch what it raises? `around`: may one around that `try`?"""
    if is_own_raise(each) and not is_caught:
        n = next(numbers)
        new = [assign(f"{RAISED}{n}", _keep(each)), *_return_raised(n)]
        locate_all(new, each)
        return new
    caught, is_of_raise = _find_caught(each), hasattr(each, "is_of_raise")
    outside = around if is_of_raise else is_caught

    def go_on(block: list[ast.stmt]) -> Block:
        ways = (True, outside) if block is caught else (outside, around)
        return [new for inner in block for new in _return_one(inner, numbers, *ways)]

    map_blocks(each, go_on)
    if is_of_raise and not around and is_own_raise(each.body[0]):
        return _return_uncaught(each, next(numbers))
    return [each]


def _return_raised(n: int) -> Block:
    return [assign(RAISING, ast.Constant(n)), ast.Return(hook_value("nothing"))]


def _return_uncaught(each: ast.Try, n: int) -> Block:
    """What only raises, and handlers that may not be for it."""
    raised: Any = each.body[0]
    before = assign(f"{RAISED}{n}", _keep(raised))
    raised.exc = hook("make_raised", load(f"{RAISED}{n}"))
    each.handlers.append(ast.ExceptHandler(hook_value("any_error"), None, _return_raised(n)))
    ast.copy_location(each.handlers[-1], each)
    new: Block = [before, each]
    locate_all(new, each)
    return new


def give_raised(function: ast.FunctionDef, most: int) -> None:
    """Let the function, of which all exits are taken out, give back what it raises."""
    names = [f"{RAISED}{n}" for n in range(1, most + 1)]
    has_text = ast.get_docstring(function, clean=False) is not None
    first = [assign(RAISING, ast.Constant(0)), *[assign(n, hook_value("nothing")) for n in names]]
    locate_all(first, function.body[0])
    function.body[has_text:has_text] = first
    for each in function.body:
        if isinstance(each, ast.Return) and getattr(each.value, "id", None) == RESULT:
            each.value = hook("give_raised", *map(load, (RESULT, RAISING, *names)))
            locate_all([each], each)


# ----------------------------------------------------------------------------------- out of a loop


def leave_loops(block: Sequence[ast.stmt], numbers: Iterator[int]) -> Block:
    """The block of a `try`, in which no loop and no `with` raises: it is left, and then raises."""
    return [new for each in block for new in _leave_one(each, numbers)]


def _leave_one(each: Any, numbers: Iterator[int]) -> Block:
    if isinstance(each, ast.If):
        map_blocks(each, lambda inner: leave_loops(inner, numbers))
    if not isinstance(each, (*LOOPS, ast.With, ast.Try)) or not _holds_raise(each):
        return [each]
    loop: Any = each if isinstance(each, LOOPS) else _make_loop(each, numbers)
    flags = list[str]()
    loop.body = _break(loop.body, numbers, flags)
    before: Block = [assign(flag, ast.Constant(False)) for flag in flags]
    before += [assign(RAISED + flag, hook_value("nothing")) for flag in flags]
    after: Block = [
        ast.If(load(flag), [ast.Raise(hook("make_raised", load(RAISED + flag)), None)], [])
        for flag in flags
    ]
    locate_all([*before, *after], each)
    return [*before, loop, *after]


def _make_loop(each: ast.With | ast.Try, numbers: Iterator[int]) -> ast.stmt:
    """A `with` or a `try` in a loop of one turn, that can be left."""
    turn = ast.Name(f"{TURN}{next(numbers)}", ast.Store())
    loop = ast.For(turn, ast.Tuple([ast.Constant(None)], ast.Load()), [each], [], None)
    locate_all([loop], each)
    return loop


def _break(block: Sequence[ast.stmt], numbers: Iterator[int], flags: list[str]) -> Block:
    """The body of a loop, left by `break` where it raises."""
    found: Block = []
    for each in block:
        if is_own_raise(each):
            flags.append(f"{LEAVING}{next(numbers)}")
            new: Block = [
                assign(RAISED + flags[-1], _keep(each)),
                assign(flags[-1], ast.Constant(True)),
                ast.Break(),
            ]
            locate_all(new, each)
            found += new
        elif isinstance(each, LOOPS):
            left = _leave_one(each, numbers)
            found += [each] if len(left) == 1 else _break_after(left, each, numbers, flags)
        else:
            caught = _find_catching(each)
            map_blocks(
                each,
                lambda inner, caught=caught: (  # type: ignore[misc]
                    inner if inner is caught else _break(inner, numbers, flags)
                ),
            )
            found.append(each)
    return found


def _break_after(left: Block, loop: ast.stmt, numbers: Iterator[int], flags: list[str]) -> Block:
    """What an inner loop has become: after it, the outer one is left, too."""
    return [
        new for each in left for new in ([each] if each is loop else _break([each], numbers, flags))
    ]


def _holds_raise(each: Any) -> bool:
    """Does it raise, and not in a `try` of its own?"""
    if is_own_raise(each):
        return True
    found, caught = list[bool](), _find_catching(each)

    def look(block: list[ast.stmt]) -> Block:
        if block is not caught:
            found.extend(map(_holds_raise, block))
        return block

    map_blocks(each, look)
    return any(found)


def _find_caught(each: Any) -> Any:
    """The block from which a `try` may catch something."""
    return each.body if isinstance(each, ast.Try) and each.handlers else None


def _find_catching(each: Any) -> Any:
    """The same; but not of one whose handlers stand already where it raises."""
    return None if hasattr(each, "is_rewritten") else _find_caught(each)


def is_own_raise(each: Any) -> bool:
    """Does it raise what the user says?"""
    is_new = isinstance(each, ast.Raise) and each.exc is not None and each.cause is None
    return is_new and not hasattr(each, "is_stand_in")


def _keep(each: Any) -> ast.expr:
    """What there is in what is raised."""
    made: Any = each.exc.args[1] if is_hook(each.exc, "seal") else each.exc
    if is_hook(made, "make_raised"):
        return made.args[0]  # type: ignore[no-any-return]
    if is_hook(made, "take_raised"):
        return hook("take_kept", *made.args)
    name = getattr(each, "caught_as", None)
    is_caught = is_hook(made, "take_handled") or (isinstance(made, ast.Name) and made.id == name)
    return hook("keep_raised", seal(made), ast.Constant(name if is_caught else ""))


def seal(error: ast.expr) -> ast.expr:
    """An exception, in whose texts nobody is to read what is not known."""
    return hook("seal", hook_value("texts"), error)
