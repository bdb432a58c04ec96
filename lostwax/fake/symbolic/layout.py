"""Questions about strides as conditions over sizes: what C++ asks a node of a symbolic tensor.

Each function takes sizes and strides (`int | Expr`) and returns the condition that eager computes,
which is right for sizes 0 and 1, too. Must not decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

from lostwax.sym import BoolExpr, Size, eq, known, maximum, ne
from lostwax.types import product

Condition: TypeAlias = "bool | BoolExpr"
Layout: TypeAlias = "Callable[[Sequence[Size], Sequence[Size]], Condition]"

_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def is_contiguous(size: Sequence[Size], stride: Sequence[Size]) -> Condition:
    return eq(product(size), 0) | _is_dense_in(range(len(size) - 1, -1, -1), size, stride)


def is_never_contiguous(size: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Does C++ find, without a guard, that it is not contiguous? C++ asks from the innermost
    dimension on, until the example's stride differs; up to there every answer must be certain."""
    step: Size = 1
    for n, given in zip(reversed(size), reversed(stride), strict=True):
        if (_example(n) or 0) < 2:  # C++ takes it for larger, whatever the example says
            return False
        if given is not step and known(eq(given, step)) is not True:
            found, wanted = _example(given), _example(step)
            return found is not None and wanted is not None and found != wanted
        step = step * n
    return False


def _example(n: Size) -> int | None:
    return n if isinstance(n, int) else n.hint


def is_channels_last(ndim: int) -> Layout:
    """Is it dense with the channels innermost? `ndim` is 4 or 5."""

    def ask(size: Sequence[Size], stride: Sequence[Size]) -> Condition:
        return len(size) == ndim and _is_dense_in(_CHANNELS_LAST[ndim], size, stride)

    return ask


def has_channels_last_strides(ndim: int) -> Layout:
    """Do the strides grow in the order of channels-last? Gaps are allowed; ambiguous strides count
    as contiguous."""

    def ask(size: Sequence[Size], stride: Sequence[Size]) -> Condition:
        if len(size) != ndim:
            return False
        parts = [ne(stride[1], 0)]
        least: Size = 0
        for d in _CHANNELS_LAST[ndim]:
            parts += [ne(size[d], 0), stride[d] >= least]
            if d == 0:
                parts.append(ne(least, stride[1]))
            least = stride[d] * maximum(size[d], 1)
        return reduce(lambda a, b: a & b, parts)

    return ask


def is_non_overlapping_and_dense(size: Sequence[Size], stride: Sequence[Size]) -> Condition:
    """Is it dense in the order of the example's strides? The condition is sufficient, and exact for
    the example."""

    def place(d: int) -> tuple[bool, int, int]:
        n, step = (x if isinstance(x, int) else x.hint for x in (size[d], stride[d]))
        return n is not None and n < 2, -1 if step is None else step, -d

    order = sorted(range(len(size)), key=place)
    return eq(product(size), 0) | _is_dense_in(order, size, stride)


def _is_dense_in(order: Sequence[int], size: Sequence[Size], stride: Sequence[Size]) -> Condition:
    """Is it dense with the dimensions in this order, innermost first?"""
    dense: Condition = True
    step: Size = 1
    for d in order:
        dense = dense & (eq(size[d], 1) | eq(stride[d], step))
        step = step * size[d]
    return dense
