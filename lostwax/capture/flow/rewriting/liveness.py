"""Which variables of a function may still be read: for each `if` and each loop, after it.

It works on functions without exits (`exits.py`). Where it is not certain, a variable counts as
read. Must not change the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from lostwax.capture.flow.rewriting.exits import LOOPS, LoopStatement
from lostwax.capture.flow.rewriting.scopes import (
    COMPREHENSIONS,
    FUNCTIONS,
    NONE,
    SCOPES,
    Names,
    find_captured,
    find_loads,
    find_stored,
    walk_own,
)
from lostwax.capture.python.trees import children, walk


def note_live(function: ast.FunctionDef) -> None:
    """Give each `if` and each loop of a function the attribute `live`, the names that are read
    after it; loops also `live_inside`, those that the next iteration reads."""
    _Liveness(function).go_through(function.body, NONE)


def find_nonlocal(function: ast.FunctionDef) -> Names:
    """The names that are variables of a function around it."""
    found = [node for node in walk_own(function) if isinstance(node, ast.Nonlocal)]
    return frozenset(name for node in found for name in node.names)


def lists_variables(block: Iterable[ast.AST]) -> bool:
    """May it read variables by names that are not in the code?"""
    nodes = [node for each in block for node in walk(each)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    named |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return not _LISTING.isdisjoint(named)


_LISTING = frozenset(("locals", "vars", "dir", "eval", "exec", "f_locals"))
"""All in Python that shows a function its own variables."""


class _Liveness:
    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._around = find_nonlocal(function)
        self.captured = find_captured(function.body) | self._around
        lists = lists_variables(function.body)
        self._all = frozenset(find_stored(function.body)) if lists else NONE

    def go_through(self, block: Sequence[ast.stmt], after: Names, always: Names = NONE) -> Names:
        """The names that are read from a block on, if these are after it. `always`: those which may
        be read after any statement of it, as an exception may come from each."""
        for each in reversed(block):
            after = self._go_through_one(each, after | always, always)
        return after | always

    def _go_through_one(self, each: Any, after: Names, always: Names) -> Names:
        if isinstance(each, ast.If):
            each.live = after | self.captured  # type: ignore[attr-defined]
            one, other = (self.go_through(b, after, always) for b in (each.body, each.orelse))
            one -= getattr(each, "bound", NONE)  # what a pattern sets where the test is true
            return ((one | other) - find_named(each.test)) | self._find_loads([each.test])
        if isinstance(each, LoopStatement):
            return self._go_through_loop(each, after, always)
        if isinstance(each, ast.Match):
            found = self._find_loads([each.subject])
            for case in each.cases:
                read = self.go_through(case.body, after, always)
                read |= self._find_loads([case.guard] if case.guard else [])
                found |= (read - {*find_stored([case.pattern])}) | self._find_loads([case.pattern])
            return found | after
        if isinstance(each, (ast.With, ast.AsyncWith)):
            # (The first may catch what the next raises, before that is set.)
            inside = self.go_through(each.body, after, always)
            return (inside - _find_names([each.items[0].optional_vars])) | self._find_loads(
                each.items
            )
        if isinstance(each, ast.Try) or type(each).__name__ == "TryStar":
            return self._go_through_try(each, after, always)
        if isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            return (after - {each.name}) | self._find_loads([each])
        if isinstance(each, LOOPS):
            return after | self._find_loads([each])
        return (after - find_set(each)) | self._find_loads([each])

    def _find_loads(self, parts: Iterable[ast.AST]) -> Names:
        """The names that these read; all, if they list the function's variables."""
        parts = [*parts]
        found = frozenset(find_loads(parts))
        return found | self._all if self._all and lists_variables(parts) else found

    def _go_through_loop(self, loop: LoopStatement, after: Names, always: Names) -> Names:
        stop = frozenset([loop.stop] if loop.stop else [])
        asked = self._find_loads([loop.test]) | after
        head = after | stop
        while True:
            entered = self.go_through(loop.body, head, always)
            before = self.go_through(loop.asking, entered | asked, always) | stop
            if before <= head:
                break
            head |= before
        # No turn hands on a function, so those within the loop are gone when it ends.
        captured = find_captured(self._function.body, outside_of=loop) | self._around
        loop.live, loop.live_inside = after | captured, head | captured  # type: ignore[attr-defined]
        return head

    def _go_through_try(self, each: Any, after: Names, always: Names) -> Names:
        end = self.go_through(each.finalbody, after, always)
        # What follows may run after any statement, where an exception comes from it.
        raised = end
        for handler in each.handlers:
            raised |= self.go_through(handler.body, end, always | end) - {handler.name}
            raised |= self._find_loads([handler.type] if handler.type else [])
        inside = self.go_through(each.orelse, end, always | end)
        return self.go_through(each.body, inside, always | raised) | raised


def find_set(each: ast.stmt) -> Names:
    """The names that a simple statement sets for certain."""
    targets: list[ast.expr] = []
    if isinstance(each, ast.Assign):
        targets += each.targets
    elif isinstance(each, ast.AnnAssign) and each.value is not None:
        targets += [each.target]
    elif isinstance(each, (ast.Import, ast.ImportFrom)):
        return frozenset(find_stored([each]))
    return _find_names(targets) | find_named(each)


def _find_names(targets: Iterable[ast.expr | None]) -> Names:
    """The variables that these are."""
    left = list(targets)
    found: set[str] = set()
    while left:
        target = left.pop()
        if isinstance(target, ast.Name):
            found.add(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            left += target.elts
        elif isinstance(target, ast.Starred):
            left.append(target.value)
    return frozenset(found)


def find_named(part: ast.AST) -> Names:
    """The names that `name := value` sets in an expression for certain."""
    found: set[str] = set()
    left = [part]
    while left:
        node = left.pop()
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
        if not isinstance(node, (*SCOPES, *COMPREHENSIONS, ast.BoolOp, ast.IfExp)):
            left += children(node)
    return frozenset(found)
