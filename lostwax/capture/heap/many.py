"""Many places at one moment, compared in C (`map`, `is_`): nearly always nothing has changed.

Must not know what they are places of.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import chain, compress, filterfalse
from operator import is_, not_
from types import CellType
from typing import Any

from lostwax.capture.heap.contents import find_change, read, read_cell
from lostwax.capture.heap.hidden import Fixed
from lostwax.capture.heap.holders import CONTAINERS, ClassAttributes


class ManyPlaces:
    """What is in some places, as it was."""

    def __init__(self, places: Sequence[Any], empty: Sequence[Any] = ()) -> None:
        """`empty` are containers in which there is nothing: modules have many."""
        are_plain = [*map(CONTAINERS.__contains__, map(type, places))]
        plain = [*compress(places, are_plain)]
        self._empty = [*empty, *filterfalse(None, plain)]
        filled = [*filter(None, plain)]
        classes = [*map(type, filled)]
        self._dicts = [*compress(filled, map(_DICTS.__contains__, classes))]
        self._sequences = [*compress(filled, map(_SEQUENCES.__contains__, classes))]
        others: list[Any] = [each for each in filled if type(each) is set]
        others += compress(places, map(not_, are_plain))
        self._cells = [each for each in others if type(each) is CellType]
        self._classes = [vars(e.owner) for e in others if type(e) is ClassAttributes]
        self._owners = [each.owner for each in others if type(each) is Fixed]
        """Someone may give them another class."""
        self._others = [(each, read(each)) for each in others if type(each) not in _FAST]
        self._objects_before = [*self._objects()]
        self._keys_before = self._keys()

    def is_same(self) -> bool:
        """Are the same objects in the same places?"""
        return (
            not any(self._empty)
            and self._keys() == self._keys_before
            and all(map(is_, self._objects(), self._objects_before))
            and all(find_change(each, before) is None for each, before in self._others)
        )

    def _objects(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable([each.values() for each in self._classes]),
            chain.from_iterable(self._sequences),
            map(read_cell, self._cells),
            map(type, self._owners),
        )

    def _keys(self) -> list[Any]:
        """The lengths of all containers, and the names in them."""
        lengths = map(len, chain(self._dicts, self._classes, self._sequences))
        return [*lengths, *chain.from_iterable(self._dicts), *chain.from_iterable(self._classes)]


_DICTS = frozenset((dict, OrderedDict, defaultdict))
_SEQUENCES = frozenset((list, deque))
_FAST = (CellType, ClassAttributes, Fixed)
