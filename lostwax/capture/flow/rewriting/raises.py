"""Exceptions that a function raises itself and may catch itself: what catches them is done where
they are raised.

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

So an `if` on data may raise: on neither side is anything left to be caught. The function does what
it did before. Must not know what a condition depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from lostwax.capture.flow.rewriting.exits import assign, load, locate, map_blocks, never_ends
from lostwax.capture.flow.rewriting.names import HANDLED

_MOST = 2_000
"""So many nodes the rest of a block has at most that is written twice."""


def lower_raises(block: Sequence[ast.stmt], numbers: Iterator[int]) -> list[ast.stmt]:
    """The statements of a block, those that catch rewritten; `numbers`: for new names."""
    return [new for each in block for new in _go_through(each, numbers)]


def _go_through(each: Any, numbers: Iterator[int]) -> list[ast.stmt]:
    map_blocks(each, lambda inner: lower_raises(inner, numbers))
    if not isinstance(each, ast.Try) or not each.handlers or not _raises(each.body):
        return [each]
    return _rewrite(each, f"{HANDLED}{next(numbers)}")


def _rewrite(each: ast.Try, handled: str) -> list[ast.stmt]:
    handlers = copy.deepcopy(each.handlers)
    body = _Handling(handlers, handled, each.orelse).lower(copy.deepcopy(each.body))
    if body is None:
        return [each]
    each.body = body
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
            if _is_own(each):
                caught = ast.Try([each], copy.deepcopy(self._handlers), [], [])
                return [*found, self._note(each), locate(caught, each)]
            found.append(each)
            if isinstance(each, ast.If) and _raises([each]):
                rest = block[i + 1 :]
                if sum(1 for part in rest for _ in ast.walk(part)) > _MOST:
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


def _raises(block: Sequence[ast.stmt]) -> bool:
    """Is there a `raise` in it, that stands in no other block than those of an `if`?"""
    for each in block:
        if _is_own(each):
            return True
        if isinstance(each, ast.If) and _raises([*each.body, *each.orelse]):
            return True
    return False


def _is_own(each: ast.stmt) -> bool:
    """Does it raise what the user says? (Where there is no such element, Python's error depends on
    what it is an element of.)"""
    is_new = isinstance(each, ast.Raise) and each.exc is not None
    return is_new and not hasattr(each, "is_stand_in")
