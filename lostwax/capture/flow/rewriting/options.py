"""Statements that read a variable which data make one thing or another (`one_of.py`): each is
written once for each option, under an `if` that asks which it is.

    option 1 = hooks.find_option(best, 2)
    if hooks.is_before(option 1, 1): truth 1 = hooks.truth(loss < hooks.take_option(best, option 1))
    else: truth 1 = hooks.truth(loss < hooks.take_option(best, option 1))
    if truth 1: ...

A variable that another one gets, or that is returned, stays as it is; so does one that is compared
with None or a text. Nowhere else is such a thing let go: no code but this would know it. Must not
know what the variable depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from lostwax.capture.flow.rewriting.exits import (
    AskingWhile,
    NotRewritable,
    assign,
    hook,
    is_hook,
    load,
    locate,
    locate_all,
    map_blocks,
)
from lostwax.capture.flow.rewriting.liveness import lists_variables
from lostwax.capture.flow.rewriting.names import OPTION, PART, TRUTH
from lostwax.capture.flow.rewriting.picks import halve, place_of
from lostwax.capture.flow.rewriting.scopes import COMPREHENSIONS, SCOPES, walk_own
from lostwax.capture.python.trees import children, walk

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete)
_COMPARING = ("equal", "differ", "is_same", "is_other")
_INNER = (*SCOPES, *COMPREHENSIONS)


def write_for_options(function: ast.FunctionDef, variables: Mapping[str, int]) -> None:
    """Write the statements of a function that read these variables once for each of so many
    options."""
    if lists_variables(function.body):
        raise NotRewritable("it looks at its own variables by their names")
    for name in variables:
        if _is_shared(function, name):
            raise NotRewritable(f"a function, a comprehension or a module has {name}, too")
    function.body = _PerOption(variables).go_through(function.body)


def add_copies(function: ast.FunctionDef, variables: Mapping[str, int]) -> dict[str, int]:
    """These variables, and those that get what is in one of them."""
    found = dict(variables)
    copies = [
        (target.id, node.value.id)
        for node in walk_own(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    before = 0
    while before < len(found):
        before = len(found)
        for name, of in copies:
            if of in found:
                found[name] = max(found[of], found.get(name, 0))
    return found


def receive_results(function: ast.FunctionDef, apart: Mapping[str, int]) -> None:
    """Let a hook see what calls return, where these variables do not get it: it may be one thing or
    another."""
    function.body = _Receiving(apart).go_through(function.body)


def hand_back_results(function: ast.FunctionDef) -> None:
    """Let a hook see what the function returns."""
    for node in walk_own(function):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = locate(hook("hand_back", node.value), node.value)


def _is_shared(function: ast.FunctionDef, name: str) -> bool:
    """May other code read or set the variable?"""
    for node in walk_own(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
        if isinstance(node, _INNER) and any(
            isinstance(each, ast.Name) and each.id == name for each in walk(node)
        ):
            return True
    return False


class _PerOption:
    def __init__(self, variables: Mapping[str, int]) -> None:
        self._variables = variables
        self._numbers = count(1)

    def go_through(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for each in block:
            new = self._go_through_one(each)
            locate_all(new, each)
            found += new
        return found

    def _go_through_one(self, each: Any) -> list[ast.stmt]:
        if isinstance(each, SCOPES):
            return [each]  # type: ignore[list-item]
        if isinstance(each, _SIMPLE):
            return self._write(_hook_comparisons(each, self._variables))
        is_asking = isinstance(each, (ast.If, ast.While))
        if is_asking:
            each.test = _hook_comparisons(each.test, self._variables)
        for head in () if is_asking else _list_heads(each):
            if any(isinstance(n, ast.Name) and n.id in self._variables for n in walk(head)):
                raise NotRewritable(f"the head of a `{type(each).__name__.lower()}` reads it")
        map_blocks(each, self.go_through)
        if not is_asking or not self._asks(each.test):
            return [each]
        name = f"{TRUTH}of options {next(self._numbers)}"
        before = self._write(locate(assign(name, hook("truth", each.test)), each.test))
        if isinstance(each, ast.If):
            each.test = load(name)
            return [*before, each]
        asking = [*getattr(each, "asking", ()), *before]
        new = AskingWhile(asking, load(name), each.body, each.orelse)  # type: ignore[call-arg,arg-type]
        return [locate(new, each)]

    def _asks(self, test: ast.expr) -> bool:
        return getattr(test, "id", None) in self._variables or bool(self._find(test))

    def _write(self, each: Any) -> list[ast.stmt]:
        """A simple statement, once for each option of each variable that it reads."""
        target: Any = getattr(each, "target", None)
        if isinstance(each, ast.AugAssign) and getattr(target, "id", None) in self._variables:
            kind = ast.Constant(type(each.op).__name__)
            new = ast.Assign([target], hook("augment", kind, load(target.id), each.value))
            each = locate(new, each)
        before: list[ast.stmt] = []
        known = dict[str, str]()
        for node in self._find(each):
            if node.id not in known:
                known[node.id] = f"{OPTION}{next(self._numbers)}"
                most = ast.Constant(self._variables[node.id])
                before.append(assign(known[node.id], hook("find_option", load(node.id), most)))
        each = _OptionsTaken(known).visit(each) if known else each
        for name, option in known.items():
            each = halve(each, option, 0, self._variables[name])
        return [*before, each]

    def _find(self, each: ast.AST) -> list[Any]:
        """Where one of the variables is read for what it is."""
        return [node for node in _list_asked(each) if node.id in self._variables]


def _list_heads(each: ast.stmt) -> Iterator[ast.AST]:
    """What a statement computes before, or beside, its blocks."""
    for node in children(each):
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            inner = children(node)
            yield from (part for part in inner if not isinstance(part, ast.stmt))
        elif not isinstance(node, ast.stmt):
            yield node


def _list_asked(each: ast.AST) -> Iterator[ast.Name]:
    """The variables of which a statement or an expression wants more than to hand them on."""
    if isinstance(each, ast.Name):
        if isinstance(each.ctx, ast.Load):
            yield each
        return
    is_plain = isinstance(each, ast.Return) or (
        isinstance(each, ast.Assign) and all(isinstance(t, ast.Name) for t in each.targets)
    )
    is_compared = any(is_hook(each, name) for name in _COMPARING)
    is_compared = is_compared and any(map(_is_atom, each.args))  # type: ignore[attr-defined]
    for node in () if isinstance(each, _INNER) else children(each):
        if not ((is_plain or is_compared) and isinstance(node, ast.Name)):
            yield from _list_asked(node)


def _is_atom(each: ast.expr) -> bool:
    return isinstance(each, ast.Constant) and (each.value is None or type(each.value) is str)


class _Plain(ast.NodeTransformer):
    """Visits the expressions of a function itself."""

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, _INNER) else super().visit(node)


class _OptionsTaken(_Plain):
    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._known or not isinstance(node.ctx, ast.Load):
            return node
        option = load(self._known[node.id])
        return locate(hook("take_option", copy.copy(node), option), node)  # type: ignore[no-any-return]


def _hook_comparisons(each: Any, variables: Mapping[str, int]) -> Any:
    return _ComparedByHooks(variables).visit(each)


class _ComparedByHooks(_Plain):
    """Lets hooks answer `best is None`, which is left to Python elsewhere."""

    def __init__(self, variables: Mapping[str, int]) -> None:
        self._variables = variables

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        sides = node.left, *node.comparators
        is_about = any(getattr(side, "id", None) in self._variables for side in sides)
        if len(sides) > 2 or not is_about or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        name = "is_same" if isinstance(node.ops[0], ast.Is) else "is_other"
        return locate(hook(name, *sides), node)  # type: ignore[no-any-return]


class _Receiving:
    """`x = f(y)` becomes `x = hooks.receive(f(y), "x")`, and `a, b = f(y)` gets a variable."""

    def __init__(self, apart: Mapping[str, int]) -> None:
        self._apart = apart
        self._numbers = count(1)

    def go_through(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [new for each in block for new in self._go_through_one(each)]

    def _go_through_one(self, each: Any) -> list[ast.stmt]:
        if isinstance(each, SCOPES):
            return [each]  # type: ignore[list-item]
        if map_blocks(each, self.go_through):
            self._wrap_heads(each)
            return [each]
        before: list[ast.stmt] = []
        value = getattr(each, "value", None)
        if isinstance(value, ast.Call) and isinstance(each, (ast.Assign, ast.Return)):
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            name = getattr(target, "id", None)
            if name is None or len(getattr(each, "targets", ())) > 1:
                name = f"{PART}of results {next(self._numbers)}"
                before = [locate(assign(name, value), each)]
                each.value = locate(load(name), value)
            value.receiver = name  # type: ignore[attr-defined]
        return [_Wrapping(self._apart).visit(new) for new in (*before, each)]

    def _wrap_heads(self, each: Any) -> None:
        """… in what a statement computes before, or beside, its blocks."""
        wrapping = _Wrapping(self._apart)
        inner = (*getattr(each, "handlers", ()), *getattr(each, "cases", ()))
        for holder in (each, *inner):
            for name, value in ast.iter_fields(holder):
                if isinstance(value, ast.expr):
                    setattr(holder, name, wrapping.visit(value))
                elif name == "items":
                    setattr(holder, name, [wrapping.visit(item) for item in value])


def _place(node: Any) -> Any:
    return place_of(node) if hasattr(node, "end_col_offset") else None


class _Wrapping(ast.NodeTransformer):
    def __init__(self, apart: Mapping[str, int]) -> None:
        self._apart = apart

    def visit(self, node: Any) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_Call(self, node: Any) -> ast.expr:
        name = getattr(node, "receiver", None)
        self.generic_visit(node)
        if not hasattr(node, "lineno"):  # it is none of the user's
            return node  # type: ignore[no-any-return]
        function: Any = node.func
        if isinstance(function, ast.Attribute) and is_hook(
            ast.Call(function, [], []), function.attr
        ):
            return node  # type: ignore[no-any-return]
        node.func = locate(hook("begin", function), function)
        if name in self._apart:
            return locate(hook("receive_option", node), node)  # type: ignore[no-any-return]
        return locate(hook("receive", node, ast.Constant(name), ast.Constant(_place(node))), node)  # type: ignore[no-any-return]
