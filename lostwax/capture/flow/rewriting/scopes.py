"""Whose variable a name is: the function's itself, or that of a function, class or comprehension
within it, which may give the same name to something else. And what names mean, as far as that is
certain before a function runs: of `max` it is not where it is an argument, or where something sets
a global of this name.

Where it is not certain, a variable is the function's. Must not change the tree, nor run anything:
globals are looked up as they are.
"""

from __future__ import annotations

import ast
import builtins
import sys
from abc import ABCMeta
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any, NamedTuple

from lostwax.capture.python.trees import children, walk

Names = frozenset[str]
NONE: Names = frozenset()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def walk_own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions within it."""
    left = children(function)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, SCOPES):
            left += children(node)


def find_stored(parts: Iterable[ast.AST], outside: Names = NONE) -> list[str]:
    """The variables of the function that these may set, also by `nonlocal` in functions within
    them, `outside` aside."""
    parts = [*parts]
    found = _find_set(parts).union(
        *(_find_set_around(node) for node in _walk(parts) if isinstance(node, FUNCTIONS))
    )
    return sorted(found - outside)


def _find_set(parts: Iterable[ast.AST]) -> set[str]:
    """The variables of the function that these set themselves."""
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
    return {name for name in found if name is not None}


def _find_set_around(function: Any) -> set[str]:
    """The variables of functions around one that this, or one in it, sets by `nonlocal`."""
    inside = [*walk_own(function)]
    said = {name for node in inside if isinstance(node, ast.Nonlocal) for name in node.names}
    inner = [_find_set_around(node) for node in inside if isinstance(node, FUNCTIONS)]
    passed = set().union(*inner)
    return said | (passed - _look_into(function)[1]) if passed else said


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
        found = [n for n in children(scope) if not isinstance(n, ast.comprehension)]
        found += [first.target, *first.ifs, *more]
        return found, frozenset(_find_set([each.target for each in scope.generators]))
    inside = [scope.body] if isinstance(scope, ast.Lambda) else scope.body
    own = _find_set(inside)
    if not isinstance(scope, ast.ClassDef):
        own |= {node.arg for node in walk(scope.args) if isinstance(node, ast.arg)}
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
                said = [n.annotation for n in walk(given) if isinstance(n, ast.arg)]
                left += [*node.decorator_list, *filter(None, (*said, node.returns))]
        else:
            left += children(node)


# ----------------------------------------------------------------------------------- what they mean

_Place = tuple[int, int]
"""Where a function stands in its file: copies of it stand there, too."""
UNKNOWN: Any = object()


class Meanings(NamedTuple):
    """What names mean in one function."""

    bound: frozenset[str]
    """The names that it, or one around or within it, gives to something."""
    aliases: Mapping[str, ast.expr]
    """What those of these are that are set once, to something that has a name: `m = max`."""
    globals: Globals

    def find(self, each: ast.AST) -> Any:
        """What a name is, or an attribute of a module that has a name; else `UNKNOWN`."""
        path = self._spell(each)
        return UNKNOWN if path is None else self.globals.find(path)

    def _spell(self, each: ast.AST) -> Path | None:
        if isinstance(each, ast.Attribute):
            owner = self._spell(each.value)
            return None if owner is None else (*owner, each.attr)
        if not isinstance(each, ast.Name):
            return None
        if each.id in self.bound:
            return self._spell(self.aliases[each.id]) if each.id in self.aliases else None
        return (each.id,)

    def find_one_of(self, each: ast.AST, functions: Iterable[Any]) -> Any:
        """Which of these functions it is; None, if it is none of them or not known."""
        found = self.find(each)
        return next((function for function in functions if function is found), None)

    def stays(self, name: str) -> bool:
        """Is it certain that a name is Python's own?"""
        known = getattr(builtins, name, UNKNOWN)
        return known is not UNKNOWN and self.find(ast.Name(name, ast.Load())) is known


Path = tuple[str, ...]
"""A name, and attributes of what it is: `("torch", "split")`."""


class Globals:
    """What the functions of a file see outside of them, and what was asked of that."""

    def __init__(self, of_functions: Iterable[Mapping[str, Any]]) -> None:
        """`of_functions`: their globals; a file may have been run more than once."""
        self._globals = [*{id(each): each for each in of_functions}.values()]
        self.answers: dict[Path, Any] = {}

    def find(self, path: Path) -> Any:
        found = self._find(path)
        self.answers[path] = _show(found)
        return found

    def answer_as(self, answers: Mapping[Path, Any]) -> bool:
        """Do they have the same answers to the same questions?"""
        return all(_show(self._find(path)) is answer for path, answer in answers.items())

    def _find(self, path: Path) -> Any:
        name, *attributes = path
        of_python = getattr(builtins, name, UNKNOWN)
        found = [known.get(name, of_python) for known in self._globals] or [of_python]
        value = found[0] if all(each is found[0] for each in found) else UNKNOWN
        for each in attributes:
            value = vars(value).get(each, UNKNOWN) if type(value) is ModuleType else UNKNOWN
        return value


_OTHER: Any = object()


def _show(value: Any) -> Any:
    """What an answer says to code that asks for functions of libraries; no object of the user's,
    which would live as long as the answer."""
    if type(value) is BuiltinFunctionType:
        is_free = isinstance(value.__self__, (ModuleType, type, NoneType))
        return value if is_free else _OTHER
    if type(value) in (FunctionType, type, ABCMeta):
        package = str(value.__module__).partition(".")[0]
        return value if package == "torch" or package in sys.stdlib_module_names else _OTHER
    return UNKNOWN if value is UNKNOWN else _OTHER


class Shadows:
    """What is named in a file."""

    def __init__(self, tree: ast.AST, globals_: Globals) -> None:
        said = [n for n in walk(tree) if isinstance(n, ast.Global)]
        outside = {name for each in said for name in each.names}
        self._inside: dict[_Place, Meanings] = {}
        for outermost in _find_outermost(tree):
            bound = _find_bound(outermost)
            is_lambda = isinstance(outermost, ast.Lambda)
            aliases = {} if is_lambda else _find_aliases(outermost, [*bound, *outside])
            names = Meanings(frozenset({*outside, *bound}), aliases, globals_)
            for node in walk(outermost):
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
            left += children(node)


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
    for node in walk(function):
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
