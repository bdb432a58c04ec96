"""The nodes of a tree, as `ast` finds them, in a third of its time: most of what a rewriting does
is to go through trees."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import Any


def children(node: ast.AST) -> list[ast.AST]:
    """What stands in a node directly, in the order of its fields (`ast.iter_child_nodes`)."""
    found: list[ast.AST] = []
    held = node.__dict__
    for name in node._fields:
        value = held.get(name)
        if isinstance(value, ast.AST):
            found.append(value)
        elif type(value) is list:
            found += [each for each in value if isinstance(each, ast.AST)]
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that stand in it, the outer ones first (`ast.walk`)."""
    left = deque([node])
    while left:
        node = left.popleft()
        left.extend(children(node))
        yield node


def fill_places(tree: Any, place: tuple[int, int, int, int] = (1, 0, 1, 0)) -> None:
    """Where a node does not say where it stands, it stands where the one around it does
    (`ast.fix_missing_locations`)."""
    left = [(tree, place)]
    while left:
        node, place = left.pop()
        if "lineno" in node._attributes:
            held = node.__dict__
            place = (
                held.setdefault("lineno", place[0]),
                held.setdefault("col_offset", place[1]),
                held.get("end_lineno") or place[2],
                held["end_col_offset"] if held.get("end_col_offset") is not None else place[3],
            )
            held["end_lineno"], held["end_col_offset"] = place[2:]
        left += [(each, place) for each in children(node)]
