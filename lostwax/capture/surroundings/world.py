"""Remembers what a capture would read beside the arguments of the call, and tells whether it is
still the same.

It compares in two ways. Each call asks whether the same objects are in the same places, which C
answers for thousands of them (`map`, `is_`). Only if some are not, we look at everything again
(`look.py`) and compare the content. Of parameters and buffers only the types count: programs read
their current data. Must not call anything of the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice, repeat
from operator import attrgetter, is_
from typing import Any

import torch

from lostwax.capture.aliasing.state_views import is_derived
from lostwax.capture.heap.cached import (
    CachedResults,
    cached_results,
    contains_all_results,
    is_plain_since,
)
from lostwax.capture.heap.contents import ManyPlaces
from lostwax.capture.heap.holders import MISSING
from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.surroundings.look import FORWARD, StateLook, bytes_of
from lostwax.capture.surroundings.tensor_places import (
    TYPE_BUT_CLASS,
    address,
    data_of,
    layout_of,
    storage_key,
    storage_of,
    tensor_content,
)
from lostwax.capture.surroundings.world_entry import WorldEntry

_CONSTANTS_SHARE = "what tensors in attributes share with parameters and buffers"
_STATE_SHARES = "what parameters and buffers share with each other"


class Surroundings:
    """What `subject`, a module or a function, reads beside its arguments, as it is now. With `ran`,
    only what those functions read."""

    def __init__(self, subject: Any, ran: FunctionKeys | None = None) -> None:
        self.key: Any = object()
        """Equal worlds have the same key."""
        found = StateLook(subject, ran)
        self.entries = found.entries
        self.unsure = found.unsure
        """What we cannot compare, in words."""
        self.random = found.random
        self.functions, self.tensors = found.functions, found.tensors
        """The functions that were read, and the tensors that are no parameters or buffers."""
        self._caches = found.caches
        self._read = found.data_read
        self._state = [each for each in found.state if each]
        if found.tensors:
            self.entries[_CONSTANTS_SHARE] = WorldEntry("memory", None, self._constant_sharing())
        self._shared_before, self._addresses_before = self._state_sharing(), self._addresses()
        if self._shared_before:
            self.entries[_STATE_SHARES] = WorldEntry("memory", None, self._shared_before)
        self._kept = found.seen, list(map(storage_of, found.tensors))
        """Held so that no other object gets their ids or addresses."""
        self._places = ManyPlaces([*found.places, *(each for each in found.state if not each)])
        self._buffers, self._module_classes = found.buffers, list(found.module_classes)
        self._weak = found.weak
        self._globals = tuple(zip(*found.globals_read.values(), strict=True)) or ((), ())
        self._objects_before = list(self._objects())
        self._names_before = self._names()
        self._content_before = self._content()

    def is_unchanged(self) -> bool:
        """Are the same objects in the same places? If not, the worlds may still be equal."""
        return (
            self._places.is_same()
            and self._names() == self._names_before
            and all(map(is_, self._objects(), self._objects_before))
            and self._content() == self._content_before
            and self._is_shared_as_before()
            and all(map(_is_cache_unchanged, self._caches))
        )

    def note_caches(self) -> None:
        """Take over what functions' caches got during a capture: the program has read it."""
        for function, known in self._caches:
            known.update(cached_results(function) or {})

    def _objects(self) -> Iterator[Any]:
        return chain(
            map(dict.get, *self._globals, repeat(MISSING)),
            chain.from_iterable(map(_CODE, self.functions)),
        )

    def _names(self) -> list[Any]:
        """Of parameters and buffers, which may be others than they were."""
        return [*map(len, self._state), *chain.from_iterable(self._state)]

    def list_state(self) -> list[torch.Tensor]:
        """The parameters and buffers, as they are now."""
        return [t for t in chain.from_iterable(map(dict.values, self._state)) if t is not None]

    def _content(self) -> list[Any]:
        """What identity does not show: the types of state, which of it is tied, writes."""
        tensors = list(chain.from_iterable(map(dict.values, self._state)))
        first: dict[int, int] = {}
        ids = list(map(id, tensors))
        tied = list(map(first.setdefault, ids, count()))
        told = list(map(TYPE_BUT_CLASS, [each for each in tensors if each is not None]))
        absent = [i for i, each in enumerate(tensors) if each is None]
        gone = [get() is None for _, get in self._weak]
        arrays = list(map(bytes_of, self._buffers))
        others = [*map(tensor_content, self.tensors), *map(data_of, self._read)]
        classes = [*map(FORWARD, self._module_classes)]
        return [tied, told, absent, gone, arrays, others, self._constant_sharing(), classes]

    def _is_shared_as_before(self) -> bool:
        """Does state share memory as before? Compared only if an address has changed. (Programs
        change addresses, too: they put results in the place of state.)"""
        addresses = self._addresses()
        if addresses != self._addresses_before:
            if self._state_sharing() != self._shared_before:
                return False
            self._addresses_before = addresses
        return True

    def _addresses(self) -> list[int]:
        return list(map(address, chain.from_iterable(map(dict.values, self._state))))

    def _state_sharing(self) -> list[Any]:
        """Which tensors of the state lie in one memory, and where in it."""
        found: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for i, each in enumerate(chain.from_iterable(map(dict.values, self._state))):
            if each is not None:
                found.setdefault(storage_key(each), []).append((i, each))
        several = [each for each in found.values() if any(t is not each[0][1] for _, t in each)]
        return [[(i, layout_of(t)) for i, t in each] for each in several]

    def _constant_sharing(self) -> list[Any]:
        """Which of the tensors that are no state share memory with state, and how: a capture takes
        them for views of it."""
        if not self.tensors:
            return []
        storages = [storage_key(each) for each in self.tensors]
        wanted = set(storages)
        shown: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for i, each in enumerate(chain.from_iterable(map(dict.values, self._state))):
            if each is not None and (at := storage_key(each)) in wanted:
                shown.setdefault(at, []).append((i, each))
        return [
            [layout_of(held), *((i, layout_of(t), is_derived(held, t)) for i, t in shown[at])]
            for held, at in zip(self.tensors, storages, strict=True)
            if at in shown
        ]

    def difference(self, before: Surroundings) -> str:
        """The differences to an earlier world, in words; "" if there are none."""
        found = list(islice(self._differences(before), _MOST_TOLD + 1))
        return "; ".join([*found[:_MOST_TOLD], *["and more"] * (len(found) > _MOST_TOLD)])

    def _differences(self, before: Surroundings) -> Iterator[str]:
        for path, entry in self.entries.items():
            was = before.entries.get(path)
            if was is None:
                yield f"{path} is new, {entry}"
            elif not entry.is_same(was):
                yield f"{path} {entry.describe_change(was)}"
        yield from (f"{path} is gone" for path in before.entries if path not in self.entries)


_CODE = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_MOST_TOLD = 3  # of the differences


def _is_cache_unchanged(cache: tuple[Any, CachedResults]) -> bool:
    """Has the cache lost nothing, and got only plain values? (Objects must be looked at.)"""
    function, known = cache
    now = cached_results(function)
    if now is None or not contains_all_results(known, now):
        return False
    return len(now) == len(known) or is_plain_since(known.values(), function)
