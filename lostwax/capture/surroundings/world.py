"""What a capture would read beside the arguments of the call, so that it can be told whether it is
still the same.

All is looked at in two ways. Each call asks whether the same objects are in the same places, which
C answers for thousands of them (`map`, `is_`). Only if some are not, all is described anew
(`look.py`) and compared by content. State is compared by its types: programs run on what is there.
Must not call anything of the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice, repeat
from operator import attrgetter, is_
from typing import Any

import torch

from lostwax.capture.aliasing.state_views import is_derived
from lostwax.capture.python.containers import GONE
from lostwax.capture.python.function_caches import (
    CachedResults,
    are_still_there,
    cached_results,
    is_plain_since,
)
from lostwax.capture.python.functions_run import FunctionKeys
from lostwax.capture.surroundings.look import FORWARD, Entry, Look, bytes_of
from lostwax.capture.surroundings.tensor_places import (
    TOLD,
    address,
    data_of,
    memory,
    place,
    storage,
    tensor_content,
)

_MEMORY = "what tensors in attributes share with parameters and buffers"
_SHARED = "what parameters and buffers share with each other"


class World:
    """What `subject`, a module or a function, reads beside its arguments, as it is now. `ran`: of
    its functions those that read."""

    def __init__(self, subject: Any, ran: FunctionKeys | None = None) -> None:
        self.key: Any = object()
        """The same for worlds that are equal."""
        found = Look(subject, ran)
        self.entries = found.entries
        self.unsure = found.unsure
        """What cannot be compared, in words."""
        self.random = found.random
        self._caches = found.caches
        self._tensors, self._read = found.tensors, found.read
        self._state = [each for each in found.state if each]
        if found.tensors:
            self.entries[_MEMORY] = Entry("memory", None, self._sharing())
        self._shared_before, self._addresses_before = self._shared(), self._addresses()
        if self._shared_before:
            self.entries[_SHARED] = Entry("memory", None, self._shared_before)
        self._kept = found.seen, list(map(memory, found.tensors))
        """So that ids, and addresses of memory, stay their own."""
        self._empty = [e for e in chain(found.maps, found.state, found.sets) if not e]
        self._dicts = [each for each in found.maps if each and isinstance(each, dict)]
        self._others = [each for each in found.maps if each and not isinstance(each, dict)]
        self._sets = [each for each in found.sets if each]
        self._sequences, self._arrays = found.sequences, found.arrays
        self._owners, self._module_classes = found.owners, list(found.module_classes)
        self._cells, self._functions = found.cells, found.functions
        self._places = tuple(zip(*found.named.values(), strict=True)) or ((), ())
        self._objects_before = list(self._objects())
        self._keys_before, self._content_before = self._keys(), self._content()

    def is_unchanged(self) -> bool:
        """Is everything in its place? If not, it may still be equal."""
        if any(self._empty):
            return False
        try:
            return (
                self._keys() == self._keys_before
                and all(map(is_, self._objects(), self._objects_before))
                and self._content() == self._content_before
                and self._is_shared_as_before()
                and all(map(_is_as_before, self._caches))
            )
        except ValueError:  # a variable that a function is closed over is deleted
            return False

    def captured(self) -> None:
        """A program was captured in it: what caches have got meanwhile, the program has read."""
        for function, known in self._caches:
            known.update(cached_results(function) or {})

    def _objects(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable([each.values() for each in self._others]),
            chain.from_iterable(self._sequences),
            map(dict.get, *self._places, repeat(GONE)),
            map(_CELL, self._cells),
            chain.from_iterable(map(_CODE, self._functions)),
        )

    def _keys(self) -> list[Any]:
        """By what names things are held, and how many there are."""
        lengths = map(len, chain(self._dicts, self._others, self._sequences, self._state))
        names = chain(self._dicts, self._others, self._state)
        return [*lengths, *chain.from_iterable(names)]

    def _content(self) -> list[Any]:
        """What objects cannot tell: types of state and which of it is one tensor, writes."""
        tensors = list(chain.from_iterable(map(dict.values, self._state)))
        first: dict[int, int] = {}
        ids = list(map(id, tensors))
        tied = list(map(first.setdefault, ids, count()))
        told = list(map(TOLD, [each for each in tensors if each is not None]))
        absent = [i for i, each in enumerate(tensors) if each is None]
        sets = [each.copy() for each in self._sets]
        arrays = list(map(bytes_of, self._arrays))
        others = [*map(tensor_content, self._tensors), *map(data_of, self._read)]
        classes = [*map(type, self._owners), *map(FORWARD, self._module_classes)]
        return [tied, told, absent, sets, arrays, others, self._sharing(), classes]

    def _is_shared_as_before(self) -> bool:
        """(Programs move state, too: they put results in its place.)"""
        addresses = self._addresses()
        if addresses != self._addresses_before:
            if self._shared() != self._shared_before:
                return False
            self._addresses_before = addresses
        return True

    def _addresses(self) -> list[int]:
        return list(map(address, chain.from_iterable(map(dict.values, self._state))))

    def _shared(self) -> list[Any]:
        """Which tensors of the state lie in one memory, and where in it."""
        found: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for i, each in enumerate(chain.from_iterable(map(dict.values, self._state))):
            if each is not None:
                found.setdefault(storage(each), []).append((i, each))
        several = [each for each in found.values() if any(t is not each[0][1] for _, t in each)]
        return [[(i, place(t)) for i, t in each] for each in several]

    def _sharing(self) -> list[Any]:
        """Which of the tensors that are no state show state, and how: a capture takes them for
        views of it."""
        if not self._tensors:
            return []
        storages = [storage(each) for each in self._tensors]
        wanted = set(storages)
        shown: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for i, each in enumerate(chain.from_iterable(map(dict.values, self._state))):
            if each is not None and (at := storage(each)) in wanted:
                shown.setdefault(at, []).append((i, each))
        return [
            [place(held), *((i, place(each), is_derived(held, each)) for i, each in shown[at])]
            for held, at in zip(self._tensors, storages, strict=True)
            if at in shown
        ]

    def difference(self, before: World) -> str:
        """What is otherwise than it was, in words; nothing if all is equal."""
        found = list(islice(self._differences(before), _MOST_TOLD + 1))
        return "; ".join([*found[:_MOST_TOLD], *["and more"] * (len(found) > _MOST_TOLD)])

    def _differences(self, before: World) -> Iterator[str]:
        for path, entry in self.entries.items():
            was = before.entries.get(path)
            if was is None:
                yield f"{path} is new, {entry}"
            elif not entry.is_same(was):
                yield f"{path} {entry.told_since(was)}"
        yield from (f"{path} is gone" for path in before.entries if path not in self.entries)


_CELL, _CODE = attrgetter("cell_contents"), attrgetter("__code__", "__defaults__", "__kwdefaults__")
_MOST_TOLD = 3  # of the differences


def _is_as_before(cache: tuple[Any, CachedResults]) -> bool:
    """Numbers may have come into it since; objects are to be looked at."""
    function, known = cache
    now = cached_results(function)
    if now is None or not are_still_there(known, now):
        return False
    return len(now) == len(known) or is_plain_since(known, function)
