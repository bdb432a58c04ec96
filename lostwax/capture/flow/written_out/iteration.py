"""Functions that go over values as long as data say so. Must not know of hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import call
from typing import Any

from lostwax.capture.flow.items import is_plain_source
from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)


def collect(values: Any) -> list[Any]:
    """`list(values)`."""
    found = []
    for each in values:
        found.append(each)
    return found


def drop_first(original: Any, function: Any, values: Any, /) -> Any:
    """`itertools.dropwhile`, of which somebody takes all at once."""
    if not is_plain_source(values):
        return call(original, function, values)
    left, count = list(values), 0
    for each in left:
        if not function(each):
            break
        count = count + 1
    return left[count:]


def give_each(values: Any, give: Callable[[Any], Any]) -> Any:
    """Give them to a function, until that returns true; returns whether it did."""
    for each in values:  # noqa: SIM110
        if give(each):
            return True
    return False


def ask_on(iterator: Any) -> Iterator[Any]:
    """What the user's iterator gives."""
    while True:
        try:
            value = iterator.__next__()
        except StopIteration:
            return
        yield value


# --------------------------------------------------- of generators that may be written out


def number(values: Any, start: Any = 0) -> Iterator[Any]:
    """`enumerate(values, start)`."""
    at = start
    for each in values:
        yield at, each
        at = at + 1


def cut(values: Any, start: int, stop: int | None, step: int) -> Iterator[Any]:
    """`islice(values, start, stop, step)`, where the stop is not before the start."""
    at = 0
    if stop == 0:
        return
    for each in values:
        if at >= start and (at - start) % step == 0:
            yield each
        at = at + 1
        if at == stop:
            return


def take_until(function: Any, values: Any) -> Iterator[Any]:
    """`takewhile(function, values)`."""
    for each in values:
        if not function(each):
            return
        yield each


def group(values: list[Any], key: Any, take: Callable[..., Any]) -> Iterator[Any]:
    """`groupby(values, key)`; `take(values, start, stop)`: what has these."""
    start = 0
    first = values[0] if key is None else key(values[0])
    for at in range(1, len(values)):
        one = values[at] if key is None else key(values[at])
        if not first == one:  # noqa: SIM201
            found = take(values, start, at)
            yield first, found
            found.take_all()  # it has nothing more once the next one is asked for
            first, start = one, at
    yield first, take(values, start, len(values))
