"""Which names of Python's own functions mean something else in a function: `max` where it is an
argument, or where `from torch import *` has brought another one.

Must not run anything: globals are looked up as they are.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lostwax.capture.flow.rewriting.exits import FUNCTIONS, SCOPES

Names = frozenset[str]
_Place = tuple[int, int]
"""Where a function stands in its file: copies of it stand there, too."""


class Shadows:
    """What is named in a file."""

    def __init__(self, tree: ast.AST, globals_: Iterable[Mapping[str, Any]]) -> None:
        """`globals_`: those of the functions of the file that there are."""
        said = [n for n in ast.walk(tree) if isinstance(n, ast.Global)]
        self._outside = _find_replaced(globals_) | {name for each in said for name in each.names}
        self._inside: dict[_Place, Names] = {}
        for outermost in _find_outermost(tree):
            names = self._outside | _find_bound(outermost)
            for node in ast.walk(outermost):
                if isinstance(node, (*FUNCTIONS, ast.Lambda)):
                    self._inside[node.lineno, node.col_offset] = names

    def find(self, function: Any) -> Names:
        """The names that may not be Python's own in a function or a lambda."""
        return self._inside[function.lineno, function.col_offset]


def _find_replaced(globals_: Iterable[Mapping[str, Any]]) -> Names:
    """The globals that have the names of Python's own and are others."""
    known = vars(builtins)
    return frozenset(
        name
        for each in globals_
        for name in known.keys() & each.keys()
        if each[name] is not known[name]
    )


def _find_outermost(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions and lambdas that stand in no other. (What a class names, its methods do not
    see.)"""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, SCOPES) and not isinstance(node, ast.ClassDef):
            yield node
        else:
            left += ast.iter_child_nodes(node)


def _find_bound(function: ast.AST) -> set[str]:
    """The names that something in a function gives to something, its arguments among them."""
    found: set[str] = set()
    for node in ast.walk(function):
        name: Any = None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node is not function:
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.alias):
            name = (node.asname or node.name).split(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            name = node.name
        elif isinstance(node, ast.MatchMapping):
            name = node.rest
        found |= {name} if name else set()
    return found
