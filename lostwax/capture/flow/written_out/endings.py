"""What has an end before the values that it is made of, where data may say so: `takewhile(f, xs)`,
`islice(xs, n)`, `layers[:n]`, `iter(f, last)`.

A loop that goes over one asks, for each value, whether it has come to the end
(`rewriting/appends.py`). To all others it is an iterator, which asks by itself. Must not record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from lostwax.capture.flow.items import (
    Elements,
    Items,
    find_open,
    is_plain_source,
    join_items,
    list_items,
)
from lostwax.capture.flow.retry import LoopEnds
from lostwax.capture.flow.rewriting.picks import Place
from lostwax.capture.flow.truths import combine, is_open_number, negate, read_truth, take_number
from lostwax.capture.python.cursors import Ending
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)
_FAR = 2**62


def _list_pairs(ending: Ending) -> Items | Elements:
    """All values, with their places, for a loop that asks for the end."""
    if not ending.take_all():
        raise CaptureError.here(
            "data decide where an iterator ends, and a loop goes over what is left of it",
            instead="go over all of it in one loop, or over a list, values[:n]",
        )
    found = list_items(ending.values)
    if isinstance(found, Items):
        return Items(enumerate(found.values), found.is_plain)
    elements = find_open(found)
    if elements is None:
        raise refuse(ending)
    return Elements(elements.stop, lambda at: (at, elements.pick(at)))


def refuse(ending: Ending) -> CaptureError:
    return CaptureError.here(
        "data decide where an iterator ends, and where what it goes over is",
        instead="go over a list, for x in values[:n]",
    )


# ------------------------------------------------------------------------------ what makes them


def take_while(function: Any, values: Any, /) -> Any:
    """`itertools.takewhile`."""
    return Ending(itertools.takewhile, values, lambda at, value: negate(function(value)))


def slice_iterator(values: Any, /, *bounds: Any) -> Any:
    """`itertools.islice`."""
    numbers = [take_number(each) if is_open_number(each) else each for each in bounds]
    start, stop, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    is_open = any(map(is_open_number, numbers))
    if not is_open or step not in (None, 1) or not (is_plain_source(values) or find_open(values)):
        return itertools.islice(values, *bounds)
    for each in numbers:
        torch._check_with(ValueError, each >= 0, lambda: "a bound of islice() is negative")
    return Ending(itertools.islice, values, _end_at(stop), 0 if start is None else start)


def take_part(values: Any, start: Any, stop: Any) -> Ending:
    """`values[start:stop]`, of a list or of modules, which data cut."""
    count = len(values)
    start, stop = (None if each is None else _from_begin(each, count) for each in (start, stop))
    return Ending(type(values), values, _end_at(stop), 0 if start is None else start)


def take_group(values: list[Any], start: Any, stop: Any) -> Ending:
    """An iterator over `values[start:stop]`."""
    return Ending(itertools.islice, values, _end_at(stop), start)


def _from_begin(bound: Any, count: int) -> Any:
    number = take_number(bound) if is_open_number(bound) else bound
    if isinstance(number, int):
        return number + count if number < 0 else number
    is_negative = torch.full((), number < 0)
    return (number + count * is_negative.long()).item()


def _end_at(stop: Any) -> Callable[[Any, Any], Any]:
    return lambda at, _: False if stop is None else at >= stop


def call_until(function: Any, last: Any, /) -> Any:
    """`iter(function, last)`."""
    values = Elements(_FAR, lambda _: function())
    return Ending(type(iter(int, 1)), values, lambda _, value: _is_equal(value, last))


def _is_equal(one: Any, other: Any) -> Any:
    return one is other or read_truth(one == other)


def join_endings(function: Any, /, *args: Any, **options: Any) -> Any:
    """`enumerate` and `zip`, of which one may have an end; and `reversed`."""
    parts = args[:1] if function is enumerate else args
    if function is reversed or not any(type(each) is Ending for each in parts):
        return join_items(function, *args, **options)
    inside = [each.values if type(each) is Ending else each for each in args]
    if any(type(each) is Ending and not is_from_first(each) for each in parts):
        raise refuse(next(each for each in parts if type(each) is Ending))

    def ends(at: Any, row: Any) -> Any:
        found: Any = False
        for part, value in zip(parts, row[-len(parts) :], strict=True):
            more = part.ends(at, value) if type(part) is Ending else False
            found = combine(found, more, is_and=False)
        return found

    return Ending(function, join_items(function, *inside, **options), ends)


def is_from_first(ending: Ending) -> bool:
    return isinstance(ending.first, int) and ending.first == 0


# ------------------------------------------------------------------------------------ for loops


def check_asked(values: Any, frame: FrameType) -> None:
    """A loop goes over values: one that does not ask for the end is to do so."""
    if type(values) is Ending:
        raise LoopEnds(*find_place(frame), refuse(values))


def find_place(frame: FrameType) -> tuple[CodeType, Place]:
    """What a frame runs, and where it is in it."""
    line, last, column, end = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    return frame.f_code, (line, column, last, end)  # type: ignore[return-value]


def list_pairs(values: Any) -> Any:
    """What a loop goes over that asks for the end."""
    return _list_pairs(values) if type(values) is Ending else list_items(values)


def is_over(values: Any, item: Any) -> Any:
    return values.ends(*item) if type(values) is Ending else False


def passes(values: Any, item: Any) -> Any:
    """Does it come before the first value?"""
    return item[0] < values.first if type(values) is Ending else False


def show_item(values: Any, item: Any) -> Any:
    return item[1] if type(values) is Ending else item
