"""Functions that look for a place in an order which data decide: `bisect`, `heapq.nlargest`.
Must not know of hooks.
"""

from __future__ import annotations

import bisect
from itertools import pairwise
from operator import call
from typing import Any

import torch

from lostwax.capture.flow.stand_ins import order_values
from lostwax.capture.flow.truths import is_open_number, make_tensor
from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)


def find_first_place(values: Any, one: Any, *bounds: Any, **options: Any) -> Any:
    """`bisect.bisect_left`."""
    if bounds or options or not _is_of_data(values, one):
        return call(bisect.bisect_left, values, one, *bounds, **options)
    return _count_before(values, [make_tensor(each < one) for each in values])


def find_last_place(values: Any, one: Any, *bounds: Any, **options: Any) -> Any:
    """`bisect.bisect_right`."""
    if bounds or options or not _is_of_data(values, one):
        return call(bisect.bisect_right, values, one, *bounds, **options)
    return _count_before(values, [make_tensor(one < each).logical_not() for each in values])


def _is_of_data(values: Any, one: Any) -> bool:
    is_list = isinstance(values, (list, tuple)) and len(values) > 0
    return is_list and any(is_open_number(each) for each in (one, *values))


def _count_before(values: Any, truths: list[torch.Tensor]) -> Any:
    """How many of these are true: those of the first values, as long as the values are sorted."""
    for one, other in pairwise(values):
        torch._check_with(ValueError, one <= other, lambda: "bisect: the values are not sorted")
    found = torch.stack([each.reshape(()) for each in truths]).sum().item()
    torch._check(found >= 0)
    torch._check(found <= len(values))
    return found


def take_some_largest(count: int, values: Any, key: Any = None) -> list[Any]:
    """`heapq.nlargest`, of which Python says that it is this."""
    return order_values(values, key=key, reverse=True)[:count]


def take_some_smallest(count: int, values: Any, key: Any = None) -> list[Any]:
    """`heapq.nsmallest`."""
    return order_values(values, key=key)[:count]
