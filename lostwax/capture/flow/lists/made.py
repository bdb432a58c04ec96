"""Lists that Python makes of something whose length only the program knows: `list(range(n))`,
`list(x)`, `[0] * n`. Must not know of loops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lostwax.capture import threads
from lostwax.capture.flow.items import Count
from lostwax.capture.flow.keys.keyed import as_list
from lostwax.capture.flow.lists.columns import join_elements
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.spans import Rows, Scalars
from lostwax.capture.flow.truths import is_open_number
from lostwax.capture.flow.written_out.endings import take_part
from lostwax.capture.flow.written_out.iteration import collect
from lostwax.capture.python.cursors import Ending
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, user_location

PASSING_ON.add(__file__)


def list_elements(values: Any) -> list[Any] | None:
    """`list(values)`; None, if Python knows how many they are."""
    values = as_list(values)
    if isinstance(values, ListOfUnknownLength):
        return ListOfUnknownLength(values.list_parts())
    if type(values) is Ending:
        return collect(values)
    if isinstance(values, Count):
        return ListOfUnknownLength([Scalars(values.as_tensor(), user_location())])
    if type(values) is FakeTensor and values.ndim and is_open_number(values.shape[0]):
        return ListOfUnknownLength([Rows(_note_views(values), user_location())])
    return None


def _note_views(tensor: FakeTensor) -> torch.Tensor:
    """The tensor. In eager the elements are views of it: nobody may write to them."""
    found = join_elements([Rows(tensor, user_location())], threads.running[-1], user_location())
    assert isinstance(found, Rows)
    return found.tensor


def cut_elements(values: Any, start: Any, stop: Any) -> Any:
    """`values[start:stop]`, of a list or of modules; None, if Python has to do it."""
    if type(values) not in (list, tuple, nn.ModuleList, nn.Sequential):
        return None
    span = None
    if type(values) is list and values:
        span = join_elements(values, threads.running[-1], user_location(), "a list that is cut")
    if span is not None:
        return ListOfUnknownLength([span.cut(start, stop)])
    if any(isinstance(each, torch.Tensor) for each in values):  # who joins them wants a list
        return None
    return take_part(values, start, stop)


def repeat_elements(values: Any, count: Any, is_turned: bool = False) -> Any:
    """`values * count` of a list. (`is_turned`: `count * values`.)"""
    if isinstance(count, torch.SymInt) and is_open_number(count) and values:
        span = join_elements(values, threads.running[-1], user_location(), "a list that repeats it")
        if span is not None:
            return ListOfUnknownLength([span.repeat(torch.sym_max(count, 0))])
    return count * values if is_turned else values * count
