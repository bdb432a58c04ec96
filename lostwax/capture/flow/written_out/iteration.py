"""Functions that go over values as long as data say so. Must not know of hooks."""

from __future__ import annotations

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
