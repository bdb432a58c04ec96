"""Whose variable a name is: the function's itself, or that of a function, class or comprehension
within it, which may give the same name to something else.

Where it is not certain, it is the function's. Must not change the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

Names = frozenset[str]
NONE: Names = frozenset()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def walk_own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions within it."""
    left = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, SCOPES):
            left += ast.iter_child_nodes(node)


def find_stored(parts: Iterable[ast.AST], outside: Names = NONE) -> list[str]:
    """The variables of the function that these may set, `outside` aside."""
    found: set[str | None] = set()
    for node in _walk(parts):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.MatchMapping):
            found.add(node.rest)
        elif isinstance(node, _NAMING):
            found.add(node.name)
        elif isinstance(node, COMPREHENSIONS):  # its variables are its own, but for `:=`
            found |= {n.target.id for n in walk_own(node) if isinstance(n, ast.NamedExpr)}
    return sorted(name for name in found if name is not None and name not in outside)


_NAMING = (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


def find_loads(parts: Iterable[ast.AST]) -> Names:
    """The variables of the function that these read, change in place, or delete; or that functions
    within them name."""
    found: set[str] = set()
    for node in _walk(parts):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Nonlocal):
            found.update(node.names)
        elif isinstance(node, (*SCOPES, *COMPREHENSIONS)):
            found |= _find_free(node)
    return frozenset(found)


def find_captured(parts: Iterable[ast.AST], outside_of: ast.AST | None = None) -> Names:
    """The variables that functions within these name: who knows when they run."""
    found: set[str] = set()
    for node in _walk(parts, outside_of):
        if isinstance(node, SCOPES):
            found |= _find_free(node)
        elif isinstance(node, COMPREHENSIONS):
            inside, own = _look_into(node)
            found |= find_captured(inside) - own
    return frozenset(found)


def _find_free(scope: ast.AST) -> Names:
    """The variables of functions around it that it names."""
    inside, own = _look_into(scope)
    found = find_loads(inside) - own
    # What a class names, the functions in it do not see.
    inner = (*SCOPES, *COMPREHENSIONS) if isinstance(scope, ast.ClassDef) else ()
    return found.union(*(_find_free(node) for node in _walk(inside) if isinstance(node, inner)))


def _look_into(scope: Any) -> tuple[list[ast.AST], Names]:
    """What is computed in a function, class or comprehension, and the variables of its own."""
    if isinstance(scope, COMPREHENSIONS):
        first, *more = scope.generators
        found = [n for n in ast.iter_child_nodes(scope) if not isinstance(n, ast.comprehension)]
        found += [first.target, *first.ifs, *more]
        return found, frozenset(find_stored([each.target for each in scope.generators]))
    inside = [scope.body] if isinstance(scope, ast.Lambda) else scope.body
    own = {*find_stored(inside)}
    if not isinstance(scope, ast.ClassDef):
        own |= {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
    for node in _walk(inside):
        if isinstance(node, ast.Nonlocal):
            own.difference_update(node.names)
        elif isinstance(node, ast.Global):
            own.update(node.names)
    return inside, frozenset(own)


def _walk(parts: Iterable[ast.AST], outside_of: ast.AST | None = None) -> Iterator[ast.AST]:
    """The nodes whose names are the function's: of what has variables of its own those parts that
    are computed before it begins."""
    left = list(parts)
    while left:
        node: Any = left.pop()
        if node is outside_of:
            continue
        yield node
        if isinstance(node, COMPREHENSIONS):
            left.append(node.generators[0].iter)
        elif isinstance(node, ast.ClassDef):
            left += [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, SCOPES):
            given: Any = node.args  # type: ignore[union-attr]
            left += [*given.defaults, *filter(None, given.kw_defaults)]
            if isinstance(node, FUNCTIONS):
                said = [n.annotation for n in ast.walk(given) if isinstance(n, ast.arg)]
                left += [*node.decorator_list, *filter(None, (*said, node.returns))]
        else:
            left += ast.iter_child_nodes(node)
