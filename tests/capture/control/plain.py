"""Control flow as plain Python: what the operators mean, without torch's compiler.

Eager's own `torch.cond` compiles itself first, refuses what it cannot compile, and takes seconds; a
few tests compare with it, most with this.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._higher_order_ops as operators
import torch.utils._pytree as pytree


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def map_over(f: Any, xs: Any, *args: Any) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    rows = [f(pytree.tree_unflatten(r, spec), *args) for r in zip(*leaves, strict=True)]
    return _stack(rows, 0)


def _stack(rows: list[Any], dim: int) -> Any:
    flat = [pytree.tree_flatten(row) for row in rows]
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    return pytree.tree_unflatten([torch.stack(c, dim) for c in columns], flat[0][1])


def scan(f: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    rows = list(zip(*[x.unbind(dim) for x in leaves], strict=True))
    carry, out = init, []
    for row in reversed(rows) if reverse else rows:
        carry, y = f(carry, pytree.tree_unflatten(row, spec))
        out.append(y)
    ys = out[::-1] if reverse else out
    stacked = pytree.tree_map(lambda *each: torch.stack(each), *ys)
    if not _MOVES_BACK:
        return carry, stacked
    moved = pytree.tree_map(lambda y: y.movedim(0, dim) if dim < y.ndim else y, stacked)
    return carry, moved


_MOVES_BACK = "movedim(elem, 0, dim)" in inspect.getsource(operators.scan)
"""torch 2.11 leaves the rows of the results in front, whichever dimension `scan` goes over."""


def associative_scan(
    f: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    rows = [
        pytree.tree_unflatten(r, spec) for r in zip(*[x.unbind(dim) for x in leaves], strict=True)
    ]
    rows = rows[::-1] if reverse else rows
    done = rows[:1]
    for row in rows[1:]:
        done.append(f(done[-1], row))
    return _stack(done[::-1] if reverse else done, dim)


@contextmanager
def plain() -> Iterator[None]:
    """Inside, the functions of torch are those above."""
    with (
        patch.object(torch, "cond", cond),
        patch.object(operators, "while_loop", while_loop),
        patch.object(operators, "map", map_over),
        patch.object(operators, "scan", scan),
        patch.object(operators, "associative_scan", associative_scan),
    ):
        yield
