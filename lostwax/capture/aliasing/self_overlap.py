"""Writes to elements that share memory: which value would be left there is not said, so they are
refused.

Eager refuses some of them (`expand`), and does others element by element (overlapping `unfold` or
`as_strided`), which a functional program cannot follow. Must not change anything.
"""

from __future__ import annotations

from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.ir.trace.views import Tracked
from lostwax.memory import expanded_sizes, repeats
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import expect


def check(func: OpOverload, target: Tracked) -> None:
    """Is every element that is written to, and that the value is scattered into on its way to the
    storage, a place of its own?"""
    each: Tracked | None = target
    while each is not None:
        is_contiguous = each.type._contiguous  # if that is known already
        if not is_contiguous and _shows_twice(each) and not _writes_one_value(func, target, each):
            part = "" if each is target else "part of a "
            raise CaptureError.here(
                f"{func} writes to a {part}tensor of size {tuple(each.type.size)} whose elements "
                f"share memory ({_cause(each)})",
                why="several values would be written to one place",
                instead="write to a copy, x.clone()",
            )
        each = each.base


def _writes_one_value(func: OpOverload, target: Tracked, each: Tracked) -> bool:
    """Does the write leave one value in all of a tensor that shows elements twice?"""
    return has_trait(func, Trait.WRITES_ALIKE) and target.type.numel() == each.type.numel()


def _cause(each: Tracked) -> str:
    if 0 in each.type.stride:
        return "expand"
    return "its memory as it came" if each.view is None else each.view.func._schema.name[6:]


def _shows_twice(each: Tracked) -> bool:
    """Does one place in memory stand for two elements? Where sizes are symbolic, only what
    `expand` and `unfold` do is seen."""
    t = each.type
    if t.is_contiguous:
        return False
    if not t.is_symbolic:
        return repeats(t)
    if expanded := expanded_sizes(t):
        return not all(expect(size <= 1) for size in expanded)
    if each.view is None or not has_trait(each.view.func, Trait.SHOWS_TWICE):
        return False
    dim, size, step = each.view.args
    return bool(size > step) and not expect(t.size[dim] <= 1)
