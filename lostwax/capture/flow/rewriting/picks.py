"""Statements in which data pick an element: `self.experts[i](x)`, `self[f"expert_{i}"](x)`,
`getattr(self, f"expert_{i}")(x)`, `layers.get(i, other)(x)`.

Such a statement is written once for each element that there may be, under an `if` that halves what
the index may be until it is known:

    part 1 = i
    if hooks.is_outside(part 1, self.experts): raise …
    index 1 = hooks.find_place(part 1, self.experts)
    if hooks.is_before(index 1, 1): y = self.experts[hooks.spell(part 1, index 1)](x)
    else: y = self.experts[hooks.spell(part 1, index 1)](x)

Must not know what an index depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lostwax.capture.flow.rewriting.exits import hook_value, load, locate, map_blocks
from lostwax.capture.flow.rewriting.scopes import SCOPES
from lostwax.capture.python.trees import walk

Place = tuple[int, int, int, int]
"""Where an expression begins and ends: lines and columns, as `ast` counts them."""
_NO_INDEX = (ast.Constant, ast.Slice, ast.Tuple)


class Pick(NamedTuple):
    """What is to be done with an element that data pick."""

    place: Place
    most: int
    """How many elements there are at most."""


def place_of(each: Any) -> Place:
    return each.lineno, each.col_offset, each.end_lineno, each.end_col_offset


def find_element(function: ast.AST, asked: Place) -> Any:
    """The element that an expression picks which asks for a number."""
    found = None
    for each in walk(function):
        if isinstance(each, (ast.Subscript, ast.Call)) and find_index(each) is not None:
            begin, end = place_of(each)[:2], place_of(each)[2:]
            if begin <= asked[:2] and asked[2:] <= end:
                found = each  # those inside come later
    return found


def find_stored_element(function: ast.AST, asked: Place) -> Any:
    """The element that a statement sets which asks for a number: `xs[i] = y`, `xs[i] += y`."""
    found = None
    for each in walk(function):
        is_stored = isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)
        if is_stored and not isinstance(each.slice, _NO_INDEX):  # type: ignore[attr-defined]
            begin, end = place_of(each)[:2], place_of(each)[2:]
            if begin <= asked[:2] and asked[2:] <= end:
                found = each
    return found


def mark_elements(function: ast.AST, picks: Mapping[Place, int]) -> None:
    """Note in the tree which elements are picked by data, and of how many."""
    for asked, count in picks.items():
        element = find_element(function, asked)
        if element is not None:
            element.pick = Pick(asked, count)


def find_index(element: Any) -> ast.expr | None:
    """What data decide of an element: its index, or what is written into its key or name."""
    if is_get(element):
        index = element.args[0]
        return None if isinstance(index, (*_NO_INDEX, ast.JoinedStr)) else index
    if isinstance(element, ast.Call):
        is_named = isinstance(element.func, ast.Name) and element.func.id == "getattr"
        if not is_named or len(element.args) != 2 or element.keywords:
            return None
        text = _find_text(element.args[1])
        return None if text is None else text.value
    if not isinstance(element.ctx, ast.Load) or isinstance(element.slice, _NO_INDEX):
        return None
    text = _find_text(element.slice)
    if text is not None:
        return text.value
    return None if isinstance(element.slice, ast.JoinedStr) else element.slice


def is_get(element: ast.AST) -> bool:
    """Is it `d.get(key)` or `d.get(key, default)`?"""
    return (
        isinstance(element, ast.Call)
        and isinstance(element.func, ast.Attribute)
        and element.func.attr == "get"
        and len(element.args) in (1, 2)
        and not element.keywords
        and not any(isinstance(each, ast.Starred) for each in element.args)
    )


def _find_text(text: ast.expr) -> ast.FormattedValue | None:
    """The only gap of a text."""
    if not isinstance(text, ast.JoinedStr):
        return None
    values = [each for each in text.values if isinstance(each, ast.FormattedValue)]
    is_plain = len(values) == 1 and values[0].conversion == -1 and not values[0].format_spec
    return values[0] if is_plain else None


def find_gap(element: Any) -> str | None:
    """The key or name with a gap for the number, `"expert_{}"`, if it is written into one."""
    text: Any = element.args[1] if isinstance(element, ast.Call) else element.slice
    gap = _find_text(text)
    if gap is None:
        return None
    parts = [str(each.value) for each in text.values if isinstance(each, ast.Constant)]
    before = text.values.index(gap)
    texts = [each.replace("{", "{{").replace("}", "}}") for each in parts]
    return "".join([*texts[:before], "{}", *texts[before:]])


def put_index(element: Any, holder: ast.expr, index: ast.expr) -> None:
    """Put other expressions in the places of what has the element, and of the index."""
    is_attribute = isinstance(element, ast.Call)
    gap = _find_text(element.args[1] if is_attribute else element.slice)
    if gap is None:
        element.slice = index
    else:
        gap.value = index
    if is_attribute:
        element.args[0] = holder
    else:
        element.value = holder


def write_for_each(block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a block, those that pick an element once for each."""
    return [_write_one(each) for each in block]


def _write_one(each: Any) -> ast.stmt:
    is_simple = not map_blocks(each, write_for_each) and not isinstance(each, SCOPES)
    for element in _find_picked(each) if is_simple else ():
        each = halve(each, element.picked_by, 0, element.pick.most)
    return each  # type: ignore[no-any-return]


def _find_picked(statement: ast.AST) -> Iterator[Any]:
    return (node for node in walk(statement) if hasattr(node, "picked_by"))


def halve(statement: ast.stmt, index: str, least: int, end: int) -> ast.stmt:
    """A statement once for each of these indices."""
    if end - least == 1:
        return copy.deepcopy(statement)
    middle = (least + end) // 2
    test = ast.Call(hook_value("is_before"), [load(index), ast.Constant(middle)], [])
    sides = [halve(statement, index, *each) for each in ((least, middle), (middle, end))]
    return locate(ast.If(test, [sides[0]], [sides[1]]), statement)  # type: ignore[no-any-return]


def holds_pick(each: ast.AST) -> bool:
    return any(map(bool, _find_picked(each)))
