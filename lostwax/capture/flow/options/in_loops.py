"""Variables that are one thing before a loop on data, and may be another after a turn: the turns
hand on which it is, and what each would be. Must not record the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping
from typing import Any

import torch

from lostwax.capture.flow.merging import NOTHING, Path, is_same_number
from lostwax.capture.flow.numbers import find_kind
from lostwax.capture.flow.options.filling import can_be_filled
from lostwax.capture.flow.options.kinds import (
    is_one_kind,
    list_options,
    number_option,
    read_option,
)
from lostwax.capture.python.one_of import OneOf
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError

Refuse = Callable[[], CaptureError]


class OptionsInLoop:
    def __init__(self, asked: type[BaseException]) -> None:
        self._asked = asked
        self._options: dict[str, list[Any]] = {}
        self._first: dict[str, Any] = {}

    @property
    def names(self) -> KeysView[str]:
        return self._options.keys()

    def add(self, name: str, first: Any, before: Any, after: Any) -> bool:
        """Is it another thing after a turn than before it? `first`: before the loop."""
        is_apart = OneOf in (type(before), type(after))
        if before is after or not (is_apart or not is_one_kind(before, after)):
            return False
        options = [*list_options(first)]
        for each in list_options(after):
            if not any(is_one_kind(each, other) for other in options):
                options.append(each)
        self._options[name], self._first[name] = options, first
        return True

    def find_start(self, name: str) -> tuple[Any, tuple[int, int]]:
        """Which option it is before the loop, and the limits of that number."""
        first, last = self._first[name], len(self._options[name]) - 1
        return first._lw_index if type(first) is OneOf else 0, (0, last)

    def list_starts(
        self, name: str, knows: Callable[[Any], bool], refuse: Refuse
    ) -> Iterator[tuple[Path, Any, Any]]:
        """What the turns are to hand on: where it is, what it is before the first one (`NOTHING`,
        if it is not there then), and something of its kind."""
        first, options = self._first[name], self._options[name]
        for i, each in enumerate(options):
            if isinstance(each, tuple) or not (can_be_filled(each) or knows(each)):
                raise refuse()
            if isinstance(each, (torch.Tensor, *SYMBOLIC)):
                own = list_options(first)
                value = own[i] if i < len(own) else NOTHING
                yield ("variable", name, i), value, each

    def list_numbers(
        self, name: str, before: Any, after: Any
    ) -> Iterator[tuple[Path, tuple[str, Any, Any]]]:
        """The numbers that are others after a turn than before it, by where they are."""
        pairs = zip(before._lw_options, after._lw_options, strict=True)
        for i, (one, other) in enumerate(pairs):
            if find_kind(one) and not is_same_number(one, other):
                yield ("variable", name, i), (name, one, other)

    def sort(self, name: str, value: Any, given: Any, refuse: Refuse) -> OneOf:
        """What a turn leaves in a variable, in the places of what it may be. `given`: what the turn
        began with."""
        options = self._options[name]
        found, places = [*given._lw_options], dict[int, int]()
        for i, each in enumerate(list_options(value)):
            kinds = [k for k, other in enumerate(options) if is_one_kind(other, each)]
            if not kinds:
                raise refuse()
            found[kinds[0]], places[i] = each, kinds[0]
        number = read_option(number_option(value, places), len(options))
        return OneOf(number, found, given._lw_refuse, self._asked)

    def make(self, name: str, shown: Mapping[Path, Any], refuse: Refuse) -> OneOf:
        """The variable, of what is handed on."""
        options = self._options[name]
        found = [shown.get(("variable", name, i), each) for i, each in enumerate(options)]
        number = read_option(shown["variable", name, "index"], len(options))
        return OneOf(number, found, refuse, self._asked)
