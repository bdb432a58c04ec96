"""What to write where Python asks for a number that data decide, and neither a branch nor a pick
can answer: `d.get(i)`, `xs[i] = y`, `del xs[i]`.

It is read off the source of the line that asks. Must not change what is refused.
"""

from __future__ import annotations

import ast
import linecache
from types import TracebackType
from typing import Any


def advise(error: Exception, asking: TracebackType) -> None:
    """Let an error say what to write instead in the place where it comes from."""
    code = asking.tb_frame.f_code
    line, last_line, column, last_column = [*code.co_positions()][asking.tb_lasti // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return
    found = _find_advice(code.co_filename, (line, column), (last_line, last_column))
    text = str(error)
    if found is not None and "\n  instead: " in text:
        before, _, _ = text.partition("\n  instead: ")
        why = "Python has to know the number itself, to find what it stands for"
        error.args = (f"{before}\n  why: {why}\n  instead: {found}",)


def _find_advice(file: str, begin: tuple[int, int], end: tuple[int, int]) -> str | None:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    advice = None
    for node in ast.walk(tree):
        at: Any = node
        if not isinstance(node, (ast.Call, ast.Subscript)):
            continue
        if (at.lineno, at.col_offset) <= begin and end <= (at.end_lineno, at.end_col_offset):
            advice = _advise_on(node) or advice  # those inside come later
    return advice


def _advise_on(node: ast.Call | ast.Subscript) -> str | None:
    if isinstance(node, ast.Subscript):
        values, index = ast.unparse(node.value), ast.unparse(node.slice)
        if isinstance(node.ctx, ast.Store):
            return (
                f"build a new one, {values} = [new if k == {index} else v for k, v in "
                f"enumerate({values})]; of a dict, {{k: … for k, v in {values}.items()}}; or write "
                "to a tensor"
            )
        return _drop(values, index) if isinstance(node.ctx, ast.Del) else None
    if isinstance(node.func, ast.Name):
        if node.func.id != "getattr" or len(node.args) < 3:
            return None
        owner, name, default = map(ast.unparse, node.args[:3])
        return f"ask first, getattr({owner}, {name}) if 0 <= i < n else {default}"
    if not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    values, index = ast.unparse(node.func.value), ast.unparse(node.args[0])
    if node.func.attr == "get":
        default = ast.unparse(node.args[1]) if len(node.args) > 1 else "other"
        return f"number the keys from 0 on, {values}[i] if 0 <= i < len({values}) else {default}"
    if node.func.attr == "pop":
        return f"take it, {values}[{index}], and {_drop(values, index)}"
    if node.func.attr == "insert":
        return (
            f"build a new one, {values} = [new if k == {index} else {values}[k] if k < {index} "
            f"else {values}[k - 1] for k in range(len({values}) + 1)]"
        )
    return None


def _drop(values: str, index: str) -> str:
    return (
        f"build a new one, {values} = [{values}[k] if k < {index} else {values}[k + 1] for k in "
        f"range(len({values}) - 1)]"
    )
