"""Around one integer, those at which a condition holds: found by trying, for conditions that cannot
be solved.

Knows nothing of expressions.
"""

from __future__ import annotations

from collections.abc import Callable

_FARTHEST = 1 << 40  # beyond, a condition is taken to hold for ever
_MOST_TRIED = 1 << 12


def interval(
    holds: Callable[[int], bool], start: int, lo: int | None, hi: int | None
) -> tuple[int | None, int | None, bool]:
    """The ends of the range around `start`, within `lo` and `hi`, in which `holds` is true; None
    for an end that was not found. And whether each integer in it was tried."""
    first = _edge(holds, start, -1, lo)
    last = _edge(holds, start, 1, hi)
    if first is None or last is None or last - first >= _MOST_TRIED:
        return first, last, False
    while start > first and holds(start - 1):
        start -= 1
    first, end = start, start
    while end < last and holds(end + 1):
        end += 1
    return first, end, True


def _edge(holds: Callable[[int], bool], start: int, sign: int, limit: int | None) -> int | None:
    """The last integer in one direction: by steps that double, then by halving the last one."""
    inside, step = start, 1
    while True:
        there = start + sign * step
        if limit is not None and (there - limit) * sign >= 0:
            there = limit
        if not holds(there):
            break
        if there == limit:
            return limit
        if step > _FARTHEST:
            return None
        inside, step = there, step * 2
    outside = there
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
