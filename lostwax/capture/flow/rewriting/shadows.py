"""What names mean in a function, as far as that is certain before it runs: of `max` it is not where
it is an argument, or where something sets a global of this name.

Must not run anything: globals are looked up as they are.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from lostwax.capture.flow.rewriting.scopes import FUNCTIONS, SCOPES

_Place = tuple[int, int]
"""Where a function stands in its file: copies of it stand there, too."""
UNKNOWN: Any = object()


class Meanings(NamedTuple):
    """What names mean in one function."""

    bound: frozenset[str]
    """The names that it, or one around or within it, gives to something."""
    aliases: Mapping[str, ast.expr]
    """What those of these are that are set once, to something that has a name: `m = max`."""
    globals: Sequence[Mapping[str, Any]]
    """Of all functions of its file: a file may have been run more than once."""

    def find(self, each: ast.AST) -> Any:
        """What a name is, or an attribute of a module that has a name; else `UNKNOWN`."""
        if isinstance(each, ast.Attribute):
            owner = self.find(each.value)
            return vars(owner).get(each.attr, UNKNOWN) if type(owner) is ModuleType else UNKNOWN
        if not isinstance(each, ast.Name):
            return UNKNOWN
        if each.id in self.bound:
            return self.find(self.aliases[each.id]) if each.id in self.aliases else UNKNOWN
        of_python = getattr(builtins, each.id, UNKNOWN)
        found = [known.get(each.id, of_python) for known in self.globals] or [of_python]
        return found[0] if all(value is found[0] for value in found) else UNKNOWN

    def find_one_of(self, each: ast.AST, functions: Iterable[Any]) -> Any:
        """Which of these functions it is; None, if it is none of them or not known."""
        found = self.find(each)
        return next((function for function in functions if function is found), None)

    def stays(self, name: str) -> bool:
        """Is it certain that a name is Python's own?"""
        known = getattr(builtins, name, UNKNOWN)
        return known is not UNKNOWN and self.find(ast.Name(name, ast.Load())) is known


class Shadows:
    """What is named in a file."""

    def __init__(self, tree: ast.AST, globals_: Iterable[Mapping[str, Any]]) -> None:
        """`globals_`: those of the functions of the file that there are."""
        known = {id(each): each for each in globals_}
        said = [n for n in ast.walk(tree) if isinstance(n, ast.Global)]
        outside = {name for each in said for name in each.names}
        self._inside: dict[_Place, Meanings] = {}
        for outermost in _find_outermost(tree):
            bound = _find_bound(outermost)
            is_lambda = isinstance(outermost, ast.Lambda)
            aliases = {} if is_lambda else _find_aliases(outermost, [*bound, *outside])
            names = Meanings(frozenset({*outside, *bound}), aliases, [*known.values()])
            for node in ast.walk(outermost):
                if isinstance(node, (*FUNCTIONS, ast.Lambda)):
                    self._inside[node.lineno, node.col_offset] = names

    def find(self, function: Any) -> Meanings:
        """What names mean in a function or a lambda."""
        return self._inside[function.lineno, function.col_offset]


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


def _find_aliases(function: Any, bound: Sequence[str]) -> dict[str, ast.expr]:
    """The names that a statement of the function itself sets, and nothing else in it does, to what
    is not its own."""
    found: dict[str, ast.expr] = {}
    for each in function.body:
        match each:
            case ast.Assign([ast.Name(name)], ast.Name(source) | ast.Attribute(ast.Name(source))):
                if bound.count(name) == 1 and source not in bound:
                    found[name] = each.value
    return found


def _find_bound(function: ast.AST) -> list[str]:
    """The names that something in a function gives to something, its arguments among them, each as
    often as that is done."""
    found: list[str] = []
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
        found += [name] if name else []
    return found
