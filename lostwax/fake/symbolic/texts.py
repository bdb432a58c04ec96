"""Whether the text that Python makes of a number or tensor decides what is done, read off the
source of the code that makes it.

`print(f"{n}")` may show the symbol. `experts.get(f"expert_{n}")` and `str(n) == "3"` ask for the
number itself. Must not know what is made into text.
"""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any

from lostwax.branches import OUTERMOST
from lostwax.cache import cached
from lostwax.location import is_user_code

_MAKING = frozenset(("str", "repr", "format", "ascii"))
"""Functions that return a text which they make of what they are given."""
_READING = frozenset(
    ("getattr", "hasattr", "setattr", "delattr", "len", "int", "float", "bool", "hash", "ord")
)
_FINDING = frozenset(
    (
        "get", "pop", "setdefault", "index", "count", "find", "add", "remove", "discard",
        "__getitem__", "__contains__", "get_submodule", "get_parameter", "get_buffer",
    )
)  # fmt: skip
"""Methods that look for what they are given."""
_PARTS = (
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.Starred,
    ast.keyword, ast.NamedExpr, ast.Tuple, ast.List, ast.Attribute,
)  # fmt: skip
"""What has a text in it is a text, too, or has it to give."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def decides(frame: FrameType | None) -> bool:
    """Does a text that this frame makes now decide what the user's program does? False, if it
    cannot be told, and where nothing is captured."""
    if frame is None or not is_user_code(frame.f_code) or not _is_captured(frame):
        return False
    return _is_read_in(frame)


def _is_captured(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in OUTERMOST:
        frame = frame.f_back
    return frame is not None


def _is_read_in(frame: FrameType) -> bool:
    found = _find_node(frame)
    if found is None:
        return False
    node, parents = found
    return _Use(parents, frame).is_read(node)


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


class _Use:
    """What becomes of the values of a frame's expressions."""

    def __init__(self, parents: dict[ast.AST, ast.AST], frame: FrameType) -> None:
        self._parents, self._frame = parents, frame
        self._seen: set[str] = set()

    def is_read(self, node: ast.AST) -> bool:
        """Does a text decide something that is the value of this expression?"""
        around: Any = self._parents.get(node)
        if isinstance(around, (ast.Compare, ast.Subscript, ast.Match)):
            return True
        if isinstance(around, (ast.If, ast.While, ast.IfExp, ast.Assert)) and node is around.test:
            return True
        if isinstance(around, ast.Dict):
            return node in around.keys
        if isinstance(around, ast.Call):
            return self._is_read_by(around, node)
        if isinstance(around, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return self._is_variable_read(around)
        if isinstance(around, (ast.Return, ast.Lambda)):
            return self._is_result_read()
        return isinstance(around, _PARTS) and self.is_read(around)

    def _is_read_by(self, call: ast.Call, node: ast.AST) -> bool:
        """The same for a call that is given the text, or whose function is a method of it."""
        function: Any = call.func
        name = getattr(function, "id", None) or getattr(function, "attr", "")
        if isinstance(function, ast.Attribute) and (node is function or name in ("format", "join")):
            return self.is_read(call)
        if isinstance(function, ast.Name) and name in _MAKING:
            return self.is_read(call)
        return name in (_READING if isinstance(function, ast.Name) else _FINDING)

    def _is_variable_read(self, statement: Any) -> bool:
        targets = getattr(statement, "targets", None) or [statement.target]
        names = {each.id for each in targets if isinstance(each, ast.Name)} - self._seen
        self._seen |= names
        around: Any = statement
        while around in self._parents and not isinstance(around, _FUNCTIONS):
            around = self._parents[around]
        reads = (n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id in names)
        return any(self.is_read(each) for each in reads if isinstance(each.ctx, ast.Load))

    def _is_result_read(self) -> bool:
        """The same for what the function returns: to other code of the user's, or out of the
        program."""
        above = self._frame.f_back
        if above is not None and is_user_code(above.f_code):
            return _is_read_in(above)
        while above is not None and not is_user_code(above.f_code):
            if above.f_code in OUTERMOST:
                return True
            above = above.f_back
        return False
