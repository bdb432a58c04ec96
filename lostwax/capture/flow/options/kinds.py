"""Of what kind the values are of which a variable has one, and which of them are made one.

Must not know how they are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lostwax.capture.flow.numbers import find_kind
from lostwax.capture.python.one_of import OneOf
from lostwax.classes import SYMBOLIC

MOST_OPTIONS = 8
ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, *SYMBOLIC,
)  # fmt: skip


def list_options(value: Any) -> Sequence[Any]:
    """What a value may be."""
    return value._lw_options if type(value) is OneOf else (value,)


def is_one_kind(one: Any, other: Any) -> bool:
    """Are they made one, if they are options of one variable?"""
    if isinstance(one, (torch.Tensor, tuple)):
        return isinstance(other, (torch.Tensor, tuple))
    kinds = find_kind(one), find_kind(other)
    if one is other or (kinds[0] == kinds[1] and all(kinds)):
        return True
    return isinstance(one, ATOMS) and are_alike(one, other)


def count_options(before: Any, after: Any) -> int:
    """How many things a variable may be that is this and then that; 0, if it is one that changes,
    or nobody has seen yet that it is not."""
    kinds = find_kind(before), find_kind(after)
    are_other_numbers = all(kinds) and kinds[0] is not kinds[1]
    if OneOf in (type(before), type(after)) or are_other_numbers:
        return len(list_options(before)) + len(list_options(after))
    return 0


def are_alike(one: Any, other: Any) -> bool:
    """Are two atoms the same to all who ask? Those of a class of the user's may have attributes."""
    is_plain = not (getattr(one, "__dict__", None) or getattr(other, "__dict__", None))
    return is_plain and type(one) is type(other) and one == other and repr(one) == repr(other)


def find_place(value: Any, places: Mapping[int, int]) -> Any:
    """Which option a value is, by what its own become, if that is the same number; else None."""
    if type(value) is not OneOf:
        return places[0]
    return value._lw_index if all(i == place for i, place in places.items()) else None


def number_option(value: Any, places: Mapping[int, int]) -> torch.Tensor:
    """Which option a value is, by what its own become."""
    if type(value) is not OneOf:
        return torch.full((), places[0])
    number = torch.full((), value._lw_index)
    found = torch.full((), places[0])
    for i, place in places.items():
        found = torch.where(number == i, place, found)
    return found


def read_option(number: Any, count: int) -> Any:
    """Which option it is, as a number that is less than this."""
    if isinstance(number, torch.Tensor):
        number = number.item()
    if isinstance(number, torch.SymInt):
        torch._check(number >= 0)
        torch._check(number < count)
    return number
