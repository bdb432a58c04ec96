"""What the program's modules hold, compared before and after each recorded function.

There are hundreds of modules, and nearly always nothing changes: so the walks run in C. Must not
know why it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, NamedTuple

from torch import nn

from lostwax.capture.control.places import HAS_MORE, PLAIN, Change, Place, Places
from lostwax.capture.python.containers import GONE, OBJECTS, is_object, items, key_of
from lostwax.capture.state.snapshot import Snapshot
from lostwax.identity import Seen


class ModulesMoment(NamedTuple):
    """What modules hold at one moment."""

    snapshot: Snapshot
    held: list[dict[str, Any]]
    """Their attributes, parameters, buffers and submodules."""
    places: Places
    """What snapshots do not know of: arrays, attributes of tensors, what C keeps in an object, and
    the classes of the modules themselves."""


class HeldByModules:
    """What some modules hold."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        for module in modules:
            if isinstance(module, nn.RNNBase):  # which notes its weights when next called
                module._update_flat_weights()
        held = list(map(vars, modules))
        self._held = [*held, *filter(None, chain.from_iterable(map(_REGISTRIES, held)))]
        self.buffers = [m._buffers for m in modules if m._buffers]
        """The registries of buffers."""
        self._last: ModulesMoment | None = None

    def look(self) -> ModulesMoment:
        """This moment."""
        if self._last is not None and self._is_untouched(self._last):
            return self._last
        snapshot, held = Snapshot(self._modules), list(map(dict.copy, self._held))
        self._last = ModulesMoment(snapshot, held, _find_more(self._modules, held, snapshot))
        return self._last

    def _is_untouched(self, since: ModulesMoment) -> bool:
        return (
            _hold_same(self._held, since.held)
            and since.snapshot.has_same_values()
            and not since.snapshot.has_more_hooks()
            and since.snapshot.has_same_contents()
            and since.places.find_change({}) is None
        )

    def find_change(self, since: ModulesMoment) -> Change | None:
        """What has changed."""
        if not self._is_untouched(since):
            self._put_back_renewed(since.snapshot)
            if not self._is_untouched(since):
                return since.places.find_change({}) or self._find_attribute(since.snapshot)
        self._last = since
        return None

    def list_changes(self, since: ModulesMoment) -> Iterator[tuple[Any, Place]]:
        """Yield all that has changed since, with what was there."""
        for held, before in zip(self._held, since.held, strict=True):
            if len(held) != len(before) or any(
                held.get(k, GONE) is not v for k, v in before.items()
            ):
                yield id(held), Place(_find_owner(held), held, before)
        for container, content in since.snapshot.list_changes():
            yield key_of(container), Place("a module", container, items(content))
        for moved in since.snapshot.list_moved():
            yield id(moved), Place(type(moved).__name__, moved, None)
        yield from since.places.list_changes({})

    def forget(self) -> None:
        """What was last seen holds no more."""
        self._last = None

    def _put_back_renewed(self, snapshot: Snapshot) -> None:
        """A container that was made again with the very same content, as `nn.RNN` does with the
        list of its weights, is no other one."""
        for module, before in zip(self._modules, snapshot.attributes, strict=True):
            held = vars(module)
            for name in before.keys() & held.keys():
                was, now = before[name], held[name]
                if was is now or type(was) is not type(now) or type(now) not in PLAIN:
                    continue
                known = snapshot.content_before(was)
                if _are_same(items(now), [] if known is None else items(known)):
                    held[name] = was

    def _find_attribute(self, snapshot: Snapshot) -> Change:
        for module, before in zip(self._modules, snapshot.attributes, strict=True):
            for name in {**before, **vars(module)}:
                was, now = before.get(name, GONE), vars(module).get(name, GONE)
                if was is not now:
                    return Change(name)
                is_known = is_object(now) or type(now) in PLAIN
                known = snapshot.content_before(now) if is_known else None
                if known is not None and not _are_same(items(known), items(now)):
                    return Change(name)
        return Change(_SOMETHING)


def _find_owner(held: dict[str, Any]) -> str:
    return "self" if "training" in held else "a module"


def _find_more(
    modules: Sequence[nn.Module], held: list[dict[str, Any]], snapshot: Snapshot
) -> Places:
    found = Places(Seen())
    for module in modules:
        found.note_class("self", module)
    for each in held:
        for name, value in each.items():
            if HAS_MORE[type(value)]:
                found.add(name, value)
            elif OBJECTS[type(value)]:
                found.note_class(name, value)
    for value in snapshot.contents():
        if HAS_MORE[type(value)]:
            found.add(_SOMETHING, value)
        elif OBJECTS[type(value)]:
            found.note_class(_SOMETHING, value)
    found.open_fakes()
    return found


def _hold_same(now: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> bool:
    """Do these dicts hold the very same objects? They are not asked whether they are
    equal: tensors would record a step."""
    values = (chain.from_iterable(map(dict.values, each)) for each in (now, before))
    if list(map(dict.keys, now)) != list(map(dict.keys, before)):
        return False
    if all(map(is_, *values)):
        return True
    pairs = zip(now, before, strict=True)
    return all(was[name] is value for held, was in pairs for name, value in held.items())


_SOMETHING = "something that a module holds"
_REGISTRIES = itemgetter("_parameters", "_buffers", "_modules")


def _are_same(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    """Are there the same objects under the same keys?"""
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(a is c and b is d for (a, b), (c, d) in pairs)
