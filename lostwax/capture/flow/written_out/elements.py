"""`values[i] = y` and `values[i] += y` of lists and dicts, where data decide which element it is.
Must not know of hooks.
"""

from __future__ import annotations

import sys
from typing import Any

from lostwax.capture.flow.keys.keyed import KINDS, ask_for_open, makes_plainly
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.truths import is_open_number, take_number
from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)
_MOST = 64


def get_item(holder: Any, index: Any) -> Any:
    """`holder[index]`."""
    keys = _list_keys(holder, index)
    if keys is None:
        if type(holder) in KINDS and is_open_number(index):
            ask_for_open(holder, sys._getframe(1))
        return holder[index]
    place = _find_place(holder, keys, index)
    found = holder[keys[0]]
    for key in keys[1:]:
        if place == key:
            found = holder[key]
    return found


def add_item(holder: Any, index: Any, value: Any) -> None:
    """The same, where a dict need not have the key yet."""
    frame = sys._getframe(1)
    if type(holder) is dict and is_open_number(index) and makes_plainly(holder, frame):
        ask_for_open(holder, frame)
    put_item(holder, index, value)


def put_item(holder: Any, index: Any, value: Any) -> None:
    """`holder[index] = value`."""
    keys = _list_keys(holder, index)
    if keys is None:
        if type(holder) in KINDS and is_open_number(index):
            ask_for_open(holder, sys._getframe(1))
        holder[index] = value
        return
    place = _find_place(holder, keys, index)
    for key in keys:
        if place == key:
            holder[key] = value


def _find_place(holder: Any, keys: list[int], index: Any) -> Any:
    """The key, which is there."""
    place, count = take_number(index), len(keys)
    if isinstance(holder, list):
        if place < -count or place >= count:
            raise IndexError("list assignment index out of range")
        return (place + count) % count
    is_there = False
    for key in keys:
        is_there = is_there or place == key
    if not is_there:
        raise KeyError("data decide a key that a dict does not have, and a program adds none")
    return place


def _list_keys(holder: Any, index: Any) -> list[int] | None:
    """The keys of elements of which data pick one; None, if Python does it."""
    if not is_open_number(index) or type(holder) not in (list, dict, ListOfUnknownLength):
        return None
    if isinstance(holder, ListOfUnknownLength) and holder.is_open:
        return None
    keys = [*range(len(holder))] if isinstance(holder, list) else [*holder]
    are_plain = all(type(key) is int for key in keys) and 0 < len(keys) <= _MOST
    return keys if are_plain else None
