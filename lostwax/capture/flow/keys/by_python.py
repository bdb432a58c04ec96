"""What is done with a dict of which data decide the keys, in Python: what it asks is captured as
what the user's functions ask. Must not know how the dict keeps its keys.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)


def contains(values: Any, key: Any, /) -> Any:
    return values.has(key)


def get_item(values: Any, key: Any, /) -> Any:
    if values.has(key):
        return values.take(key)
    return values.__missing__(key)


def get(values: Any, key: Any, default: Any = None, /) -> Any:
    if values.has(key):
        return values.take(key)
    return default


def set_default(values: Any, key: Any, default: Any = None, /) -> Any:
    if not values.has(key):
        values.put(key, default)
    return values.take(key)


def delete(values: Any, key: Any, /) -> None:
    if values.has(key):
        values.drop(key)
    elif not values.is_counter:
        raise KeyError(key)


def discard(values: Any, key: Any, /) -> None:
    if values.has(key):
        values.drop(key)


_NO_DEFAULT = object()


def pop(values: Any, key: Any, default: Any = _NO_DEFAULT, /) -> Any:
    if values.has(key):
        found = values.take(key)
        values.drop(key)
        return found
    if default is _NO_DEFAULT:
        raise KeyError(key)
    return default


def pop_item(values: Any, last: bool = True) -> Any:
    if not values:
        raise KeyError("popitem(): dictionary is empty")
    return values.take_out(-1 if last else 0)


def move_to_end(values: Any, key: Any, last: bool = True) -> None:
    if not values.has(key):
        raise KeyError(key)
    values.move(key, last)


def update(values: Any, other: Any = (), /, **more: Any) -> None:
    is_counter = values.is_counter
    if is_counter and not hasattr(other, "keys"):
        for key in other:
            values[key] += 1
    else:
        pairs = other.items() if hasattr(other, "keys") else other
        for key, value in pairs:
            values.put(key, value + values[key] if is_counter else value)
    for key in more:
        values.put(key, more[key] + values[key] if is_counter else more[key])


def update_in_place(values: Any, other: Any, /) -> Any:
    values.check_no_counter("|=")
    update(values, other)
    return values


def unite(values: Any, other: Any, /) -> Any:
    values.check_no_counter("|")
    found = values.copy()
    update(found, other)
    return found


def equal(values: Any, other: Any, /) -> Any:
    if not isinstance(other, dict):
        return False
    values.check_no_counter("==")
    if values.is_ordered and isinstance(other, OrderedDict):
        return values.make_plain() == other
    if len(values) != len(other):
        return False
    for key in other:
        if not values.has(key):
            return False
        if values.take(key) != other[key]:
            return False
    return True


def differ(values: Any, other: Any, /) -> Any:
    return not equal(values, other)


def add_up(values: Any, /) -> Any:
    return sum(values.values())
