"""Whether the text that Python makes of a number or tensor decides what is done, read off the
source of the code that makes it.

`print(f"{n}")`, a log and the message of an error may show the symbol. All else asks for the number
itself: a text that is compared, is a key, is kept, or is handed to a function of which it is not
known that it only shows it (`hashlib.md5(str(n).encode())`). What other functions of the user's do
with it is read off their source. Must not know what is made into text.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.branches import OUTERMOST, is_run_by_capture
from lostwax.cache import cached
from lostwax.location import is_of_python, is_user_code

_MAKING = (str, repr, format, ascii)
"""Functions that return a text which they make of what they are given."""
_SHOWING = (print, warnings.warn, warnings.warn_explicit)
"""Functions that show a text, or raise it. So do torch's checks, ..."""
_CHECKS = ("_assert", "_check")
"""... whose names begin with these. (A capture has others in their places.)"""
_ASKING_ITS_CLASS = (callable, isinstance, issubclass)
_LOGS = (logging.Logger, logging.LoggerAdapter)
_LEVELS = ("debug", "info", "warning", "error")
"""The methods by which the log of a library is known."""
_PROFILING = frozenset(("profiler", "nvtx", "itt"))
"""In these modules of torch's are functions that name what runs, for who looks at it later."""
_PARTS = (
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.Starred,
    ast.keyword, ast.NamedExpr, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Attribute,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
"""What has a text in it is a text, too, or has it to give."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def decides(frame: FrameType | None) -> bool:
    """Does a text that this frame makes now decide what the user's program does? False, if it
    cannot be told, and where nothing is captured."""
    if frame is None or not is_run_by_capture(frame):
        return False
    if not is_user_code(frame.f_code):
        return _decides_in_library(frame)
    return _is_read_in(frame)


def _decides_in_library(frame: FrameType) -> bool:
    """Does it, if one of Python's own libraries makes it? It may show it (a log), or return it
    (`pprint.pformat`)."""
    if not is_of_python(frame.f_code.co_filename) or _is_raised(frame):
        return False
    while frame.f_back is not None and is_of_python(frame.f_code.co_filename):
        frame = frame.f_back
    return is_user_code(frame.f_code) and _is_read_in(frame)


def _is_raised(frame: FrameType) -> bool:
    """Is what the frame computes now for an exception?"""
    found = _find_node(frame)
    if found is None:
        return False
    node: Any = found[0]
    while node is not None and not isinstance(node, ast.stmt):
        node = found[1].get(node)
    return isinstance(node, ast.Raise)


def _is_read_in(frame: FrameType) -> bool:
    found = _find_node(frame)
    if found is None:
        return False
    node, parents = found
    return _Use(parents, _Known(frame.f_locals, frame.f_globals), _Returned(frame).is_read).is_read(
        node
    )


def _find_node(frame: FrameType) -> tuple[ast.AST, dict[ast.AST, ast.AST]] | None:
    """The expression that the frame computes now, and what each node of the file is part of."""
    first, last, begin, end = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    parents = _parse("".join(linecache.getlines(frame.f_code.co_filename)))
    if first is None or last is None or begin is None or end is None:
        return None
    found = None
    for node in parents:
        at: Any = node
        if (
            isinstance(node, ast.expr)
            and (at.lineno, at.col_offset) <= (first, begin)
            and (last, end) <= (at.end_lineno, at.end_col_offset)
        ):
            found = node  # those inside come later
    return None if found is None else (found, parents)


@cached(20)
def _parse(text: str) -> dict[ast.AST, ast.AST]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    return {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}


class _Returned(NamedTuple):
    """What a function that runs returns."""

    frame: FrameType

    def is_read(self) -> bool:
        """Does it decide something in other code of the user's, or does it leave the program?"""
        above = self.frame.f_back
        if above is not None and is_user_code(above.f_code):
            return _is_read_in(above)
        while above is not None and not is_user_code(above.f_code):
            if above.f_code in OUTERMOST:
                return True
            above = above.f_back
        return False


class _Known(NamedTuple):
    """The names that code knows."""

    own: Mapping[str, Any]
    outside: Mapping[str, Any]

    def find(self, each: ast.AST) -> Any:
        """What a name, or an attribute of what has a name, is; None if it cannot be told without
        running code of the user's."""
        if isinstance(each, ast.Name):
            of_python = getattr(builtins, each.id, None)
            known = self.own.get(each.id, self.outside.get(each.id, of_python))
            return getattr(known, "stands_for", known)  # while a capture has one in its place
        if isinstance(each, ast.Call) and self.find(each.func) is logging.getLogger:
            return logging.root  # or its like
        if not isinstance(each, ast.Attribute):
            return None
        owner = self.find(each.value)
        if owner is None:
            return None
        modules = getattr(owner, "_modules", {}) if isinstance(owner, nn.Module) else {}
        if each.attr in modules:
            return modules[each.attr]
        try:
            found = inspect.getattr_static(owner, each.attr)
        except AttributeError:
            return None
        is_method = isinstance(found, FunctionType) and not isinstance(owner, (type, ModuleType))
        return MethodType(found, owner) if is_method else getattr(found, "__func__", found)


class _Use:
    """What becomes of the values of a function's expressions."""

    def __init__(
        self,
        parents: dict[ast.AST, ast.AST],
        known: _Known,
        is_result_read: Callable[[], bool],
        depth: int = 0,
    ) -> None:
        self._parents, self._known, self._is_result_read = parents, known, is_result_read
        self._depth = depth
        """How many functions it was handed through."""
        self._seen: set[str] = set()

    def is_read(self, node: ast.AST) -> bool:
        """Does a text decide something that is the value of this expression?"""
        around: Any = self._parents.get(node)
        if isinstance(node, ast.Call) and self._is_printed_elsewhere(node):
            return True
        if isinstance(around, (ast.Expr, ast.Raise)) or (
            isinstance(around, ast.Assert) and node is around.msg
        ):
            return False
        if isinstance(around, (ast.Dict, ast.DictComp)) and node in _list_keys(around):
            return True
        if isinstance(around, ast.IfExp) and node is around.test:
            return True
        if isinstance(around, ast.Call):
            return self._is_read_by(around, node, node)
        if isinstance(around, ast.keyword) and isinstance(self._parents.get(around), ast.Call):
            return self._is_read_by(self._parents[around], node, around)  # type: ignore[arg-type]
        if isinstance(around, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return self._is_variable_read(around)
        if isinstance(around, (ast.Return, ast.Lambda)):
            return self._is_result_read()
        return not isinstance(around, _PARTS) or self.is_read(around)

    def _is_read_by(self, call: ast.Call, node: ast.AST, given: ast.AST) -> bool:
        """The same for a call that is given the text, or whose function is a method of it."""
        function: Any = call.func
        is_method = isinstance(function, ast.Attribute)
        if is_method and (node is function or function.attr in ("format", "join")):
            return self.is_read(call)
        called = self._known.find(function)
        if any(called is each for each in _MAKING):
            return self.is_read(call)
        owner = self._known.find(function.value) if is_method else None
        if owner is torch and function.attr.startswith(_CHECKS):
            return False
        if _is_screen(owner) or isinstance(owner, _LOGS) or _is_log(owner, called):
            return False
        if any(called is each for each in (*_SHOWING, *_ASKING_ITS_CLASS)):
            return self._is_printed_elsewhere(call)
        return not _is_profiling(called) and self._is_read_inside(call, given)

    def _is_printed_elsewhere(self, call: ast.Call) -> bool:
        """Is it `print(n, file=it)`? Others may read there what was printed."""
        files = [self._known.find(each.value) for each in call.keywords if each.arg == "file"]
        return not all(map(_is_screen, files)) and self._known.find(call.func) is print

    def _is_read_inside(self, call: ast.Call, given: ast.AST) -> bool:
        """The same for a function of the user's, and for a class, that is given the text."""
        called = self._known.find(call.func)
        if isinstance(called, type):
            return not issubclass(called, (BaseException, str))
        if isinstance(called, nn.Module):
            called = MethodType(type(called).forward, called)
        function = getattr(called, "__func__", called)
        if not isinstance(function, FunctionType) or not is_user_code(function.__code__):
            return True
        found = _find_function(function.__code__)
        name = _find_parameter(function.__code__, call, given, isinstance(called, MethodType))
        if found is None or name is None or self._depth > _DEEPEST:
            return True
        node, parents = found
        known = _Known(_find_imported(node), function.__globals__)
        inside = _Use(parents, known, lambda: self.is_read(call), self._depth + 1)
        return inside.is_name_read({name}, node)

    def _is_variable_read(self, statement: Any) -> bool:
        targets = getattr(statement, "targets", None) or [statement.target]
        if not all(isinstance(each, ast.Name) for each in targets):
            return True  # it is kept where others find it
        names = {each.id for each in targets} - self._seen
        self._seen |= names
        around: Any = statement
        while around in self._parents and not isinstance(around, _FUNCTIONS):
            around = self._parents[around]
        return self.is_name_read(names, around)

    def is_name_read(self, names: set[str], where: ast.AST) -> bool:
        """The same for the value of a variable."""
        reads = (n for n in ast.walk(where) if isinstance(n, ast.Name) and n.id in names)
        return any(self.is_read(each) for each in reads if isinstance(each.ctx, ast.Load))


def _is_screen(value: Any) -> bool:
    return value is not None and (value is sys.stdout or value is sys.stderr)


def _is_log(owner: Any, method: Any) -> bool:
    """Is it that of a library (`logging` itself, for one)? What the user's keep, they may read."""
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    is_users = code is not None and is_user_code(code) and "-packages/" not in code.co_filename
    return not is_users and all(inspect.getattr_static(owner, name, None) for name in _LEVELS)


def _is_profiling(function: Any) -> bool:
    package, *names = str(getattr(function, "__module__", "")).replace("_", "").split(".")
    return package == "torch" and not _PROFILING.isdisjoint(names)


def _find_imported(where: ast.AST) -> dict[str, Any]:
    """The modules that a function imports, under their names in it."""
    found = [alias for n in ast.walk(where) if isinstance(n, ast.Import) for alias in n.names]
    names = {each.asname or each.name.partition(".")[0]: each for each in found}
    return {own: sys.modules.get(each.name if each.asname else own) for own, each in names.items()}


def _list_keys(each: Any) -> list[Any]:
    return each.keys if isinstance(each, ast.Dict) else [each.key]


def _find_function(code: CodeType) -> tuple[ast.AST, dict[ast.AST, ast.AST]] | None:
    """Where a function is written."""
    parents = _parse("".join(linecache.getlines(code.co_filename)))
    for node in parents:
        if isinstance(node, _FUNCTIONS) and getattr(node, "name", "<lambda>") == code.co_name:
            lines = [node.lineno, *[each.lineno for each in getattr(node, "decorator_list", ())]]
            if min(lines) == code.co_firstlineno:
                return node, parents
    return None


def _find_parameter(code: CodeType, call: ast.Call, given: ast.AST, is_method: bool) -> str | None:
    """The name of the parameter to which a call gives an argument; None if it cannot be told."""
    names = code.co_varnames[: code.co_argcount]
    if isinstance(given, ast.keyword):
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return given.arg if given.arg in known else None
    if given not in call.args or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    at = call.args.index(given) + is_method
    return names[at] if at < len(names) else None


_DEEPEST = 5
