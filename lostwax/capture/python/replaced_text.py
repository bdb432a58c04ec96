"""Files whose text is another one while a report goes on after a refusal: in the place of an
expression stands a call, `_lw(3)`, of a name that nothing defines (`problems/continuing.py`).

In the code the object that is called stands itself, as a constant, so no module and no `builtins`
shows it. Whoever compiles such a text does it here. Must not know what the object does.
"""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any, NamedTuple


class ReplacedText(NamedTuple):
    """What a file's text calls: with a number `called.give`, with a value, too, `called.keep`."""

    name: str
    called: Any


replaced: dict[str, ReplacedText] = {}
"""By file. One report goes on at a time."""
_CALLED = "what a report on refusals calls"
"""Stands for it in the tree."""


def name_calls(file: str, tree: ast.Module) -> ast.Module:
    """The tree of a file, in which its calls are marked for `compile_tree`."""
    found = replaced.get(file)
    return tree if found is None else _Naming(found.name).visit(tree)


def compile_tree(file: str, tree: ast.Module) -> CodeType:
    code, found = compile(tree, file, "exec", dont_inherit=True), replaced.get(file)
    return code if found is None else _put(code, found.called)


class _Naming(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == self._name:
            method = "give" if len(node.args) == 1 else "keep"
            called = ast.copy_location(ast.Constant(_CALLED), node.func)
            node.func = ast.copy_location(ast.Attribute(called, method, ast.Load()), node.func)
        return node


def _put(code: CodeType, called: Any) -> CodeType:
    constants = [
        _put(each, called)
        if isinstance(each, CodeType)
        else called
        if each == _CALLED and isinstance(each, str)
        else each
        for each in code.co_consts
    ]
    return code.replace(co_consts=tuple(constants))
