"""Something of the structure of a value, computed where the value is not: it is there for the type,
and nobody reads it.

Must not know why it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any

import torch

from lostwax.capture.aliasing.attributes import list_attributes
from lostwax.capture.flow.lists.own_containers import is_small_object
from lostwax.capture.flow.options.kinds import ATOMS
from lostwax.capture.python.one_of import OneOf
from lostwax.capture.trace.tracer import Tracer
from lostwax.fake.asked_tensor import read_attributes
from lostwax.fake.symbolic.node import wrap
from lostwax.identity import ByIdentity, Seen
from lostwax.sym import Expr

_NUMBERS: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}


def can_be_filled(value: Any) -> bool:
    """Can something like it be computed anywhere?"""
    if type(value) is tuple:
        return all(map(can_be_filled, value))
    return isinstance(value, (torch.Tensor, Enum, *ATOMS))


def is_made_of_such(value: Any, around: Sequence[Any] = ()) -> bool:
    """Is it a tuple, a list, a dict or a small object, in which there are only such things, and not
    itself?"""
    inside = list_inside(value)
    if inside is None:
        return can_be_filled(value)
    is_in_itself = any(value is each for each in around)
    return not is_in_itself and all(is_made_of_such(each, (*around, value)) for each in inside)


def list_inside(value: Any) -> Collection[Any] | None:
    if type(value) is list or _is_tuple(value):
        return value  # type: ignore[no-any-return]
    if type(value) is dict:
        return value.values()
    return vars(value).values() if is_small_object(value) else None


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


def fill_like(tracer: Tracer, value: Any, knows: Callable[[Any], bool]) -> Any:
    """Something of the structure of a value, computed here. Objects that were there before stay as
    they are."""
    return Filling(tracer, knows).fill(value)


class Filling:
    """Fills each object once: where one is in two places, so is what stands for it."""

    def __init__(self, tracer: Tracer, knows: Callable[[Any], bool]) -> None:
        self._tracer, self._knows = tracer, knows
        self._known = ByIdentity[Any, Any]()
        self._made = Seen()

    def has_made(self, value: Any) -> bool:
        return value in self._made

    def fill(self, value: Any) -> Any:
        if value not in self._known:
            self._known[value] = self._fill(value)
            self._made.add(self._known[value])
        return self._known[value]

    def _fill(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._fill_tensor(value)
        if type(value) is OneOf:
            options = [self.fill(each) for each in value._lw_options]
            return OneOf(0, options, value._lw_refuse, value._lw_asked)
        if _is_tuple(value):
            made = map(self.fill, value)
            return tuple(made) if type(value) is tuple else type(value)(*made)
        if type(value) in _NUMBERS:
            return _NUMBERS[type(value)]
        if self._knows(value):
            return value
        if type(value) is list:
            return [*map(self.fill, value)]
        if type(value) is dict:
            return {key: self.fill(each) for key, each in value.items()}
        if not is_small_object(value):
            return value
        made = object.__new__(type(value))
        vars(made).update((key, self.fill(each)) for key, each in vars(value).items())
        return made

    def _fill_tensor(self, value: torch.Tensor) -> torch.Tensor:
        t = self._tracer.adopt(value).fake_type
        size = [self._fill_size(n) for n in t.size]
        made = torch.zeros(size, dtype=t.dtype, device=t.device)
        read_attributes(made).update(list_attributes(value))
        return made

    def _fill_size(self, size: Any) -> Any:
        """A size that is known only where the value is may be any."""
        if not isinstance(size, Expr):
            return size
        is_there = not any(s in self._tracer.regions.ended for s in size.symbols())
        return wrap(size) if is_there else 0
