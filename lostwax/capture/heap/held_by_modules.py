"""What the program's modules hold, compared before and after each recorded function.

There are hundreds of modules, and nearly always nothing changes: so the walks run in C. Must not
know why it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.heap.contents import find_change, key_of, list_items
from lostwax.capture.heap.edges import CLASSES, HAS_UNSNAPSHOTTED_STATE, OBJECTS, is_object
from lostwax.capture.heap.hidden import CLASS, Fixed
from lostwax.capture.heap.holders import CONTAINERS, MISSING, ModuleAttributes
from lostwax.capture.heap.places import Place, PlaceChange, Places
from lostwax.capture.heap.snapshot import Snapshot
from lostwax.identity import Seen


class ModulesMoment(NamedTuple):
    """What modules hold at one moment."""

    snapshot: Snapshot
    places: Places
    """What snapshots do not know of: arrays, attributes of tensors, what C keeps in an object, and
    the classes of the modules themselves."""

    def is_untouched(self) -> bool:
        return self.snapshot.is_untouched() and self.places.find_change({}) is None


class HeldByModules:
    """What some modules hold."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        for module in modules:
            if isinstance(module, nn.RNNBase):  # which notes its weights when next called
                module._update_flat_weights()
        self.buffers = [m._buffers for m in modules if m._buffers]
        """The registries of buffers."""
        self._last: ModulesMoment | None = None

    def look(self) -> ModulesMoment:
        """What the modules hold now."""
        if self._last is None or not self._last.is_untouched():
            snapshot = Snapshot(ModuleAttributes(self._modules))
            self._last = ModulesMoment(snapshot, _find_unsnapshotted(self._modules, snapshot))
        return self._last

    def find_change(self, since: ModulesMoment) -> PlaceChange | None:
        """What has changed since then; None if nothing has."""
        if since.snapshot.is_cut:
            return PlaceChange(f"one of very many objects in {_SOMETHING}")
        if not since.is_untouched():
            self._restore_recreated_containers(since.snapshot)
            if any(True for _ in self.list_changes(since)):
                found = self._find_attribute(since.snapshot) or since.places.find_change({})
                return found or PlaceChange(_SOMETHING)
        self._last = since
        return None

    def list_changes(self, since: ModulesMoment) -> Iterator[tuple[Any, Place]]:
        """Yield all that has changed since, with what was there."""
        for container, content in since.snapshot.list_changes():
            name = "self" if isinstance(container, dict) and "training" in container else "a module"
            yield key_of(container), Place(name, container, list_items(content))
        for tensor in since.snapshot.list_changed_tensors():
            yield id(tensor), Place(type(tensor).__name__, tensor, None)
        yield from since.places.list_changes({})

    def forget(self) -> None:
        """Forget the last look: it may be out of date."""
        self._last = None

    def _restore_recreated_containers(self, snapshot: Snapshot) -> None:
        """A container that was made again with the very same content, as `nn.RNN` does with the
        list of its weights, is no other one."""
        for module, before in zip(self._modules, snapshot.attributes, strict=True):
            held = vars(module)
            for name in before.keys() & held.keys():
                was, now = before[name], held[name]
                if was is now or type(was) is not type(now) or type(now) not in CONTAINERS:
                    continue
                if find_change(now, snapshot.content_before(was) or []) is None:
                    held[name] = was

    def _find_attribute(self, snapshot: Snapshot) -> PlaceChange | None:
        for module, before in zip(self._modules, snapshot.attributes, strict=True):
            for name in {**before, **vars(module)}:
                was, now = before.get(name, MISSING), vars(module).get(name, MISSING)
                if was is not now:
                    return PlaceChange(name)
                is_known = is_object(now) or type(now) in CONTAINERS
                known = snapshot.content_before(now) if is_known else None
                if known is not None and find_change(now, known) is not None:
                    return PlaceChange(name)
        return None


def _find_unsnapshotted(modules: Sequence[nn.Module], snapshot: Snapshot) -> Places:
    found = Places(Seen())
    for module in modules:
        found.note("self", Fixed(module, CLASS))
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            found.add(name, value)
    open_unsnapshotted(found, snapshot)
    found.open_fakes()
    return found


def open_unsnapshotted(places: Places, snapshot: Snapshot) -> None:
    """Add what modules hold, in attributes and deeper, and snapshots do not know all of: what C
    keeps in an object, what a wrapper wraps, which class an object is of, and what is in that."""
    found = [*snapshot.looked_at.select_named(_is_opened)]
    deeper = [*snapshot.list_values()]
    containers = (*snapshot.looked_at.filled, *deeper)
    deeper += chain.from_iterable([each for each in containers if type(each) is tuple])
    classes = {cls for cls in {*map(type, deeper)} if _is_opened(cls)}
    found += [(_SOMETHING, each) for each in deeper if type(each) in classes] if classes else ()
    for name, value in found:
        if HAS_UNSNAPSHOTTED_STATE[type(value)]:
            places.add(name, value)
        else:
            places.note(name, Fixed(value, CLASS))
            places.add(name, type(value))


def _is_opened(cls: type) -> bool:
    is_users = OBJECTS[cls] or CLASSES[cls]
    return HAS_UNSNAPSHOTTED_STATE[cls] or (bool(is_users) and not issubclass(cls, _OPENED))


_OPENED = (nn.Module, torch.Tensor)
"""The walk opens these by itself."""
_SOMETHING = "something that a module holds"
