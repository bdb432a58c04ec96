"""The source of the package, read by tests that hold it to rules."""

from __future__ import annotations

import ast


def walk(tree: ast.AST) -> list[ast.AST]:
    """What `ast.walk` yields, in a third of the time: these tests walk the whole package."""
    found = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
    return found
