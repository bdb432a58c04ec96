"""What the program's Python can reach, at one moment; what has changed since is put back.

Looked at are the functions that have begun and what they name and hold, what the program's modules
hold, and what is added: the variables of a function, arguments. Variables of the function that
runs are not part of it: the code that runs the function sets them. Must not know what is done with
the changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType
from typing import Any, NamedTuple, Protocol

from torch import nn

from lostwax.branches import OUTERMOST
from lostwax.capture.heap.contents import list_items, read_items, write
from lostwax.capture.heap.edges import parts
from lostwax.capture.heap.ends import find_ended
from lostwax.capture.heap.held_by_modules import HeldByModules, ModulesMoment
from lostwax.capture.heap.hidden import TorchSettings
from lostwax.capture.heap.holders import MISSING, Content
from lostwax.capture.heap.places import Place, PlaceChange, Places
from lostwax.capture.heap.reach import Reach
from lostwax.capture.heap.recomputed import EndedRegion, RecomputedResults
from lostwax.identity import Seen


class NotRestorableError(Exception):
    """Something has changed that cannot be put back: `what`."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


class ChangedPlace(NamedTuple):
    """A container, an object's attributes, or a variable of another function or of a module."""

    name: str
    holder: Any
    before: Content
    after: Content
    is_lasting: bool
    """Was it there before the call? Then the next call finds what is left in it, which a program
    does not keep if it is no tensor."""

    def write(self, content: Content) -> None:
        write(self.holder, content)


Changes = dict[Any, ChangedPlace]


class ReachableState:
    """All places where the program's functions may keep something; one for each capture."""

    def __init__(self, modules: Sequence[nn.Module], reach: Reach, outside: OutsidePlaces) -> None:
        self.reach = reach
        self.held = HeldByModules(modules)
        self.watched, self.places = outside.watched, outside.places
        self.recomputed = RecomputedResults()
        self.places.note("a setting of torch's", TorchSettings())

    def look(self) -> dict[Any, Any]:
        """What is in the places now."""
        if self.places.sets_attributes:
            self.places.open_fakes()
        return self.places.look()


class OutsidePlaces(Protocol):
    """What functions reach outside of modules (`state/global_state.py`), as it is known here."""

    watched: Seen
    """The program's modules."""
    places: Places
    """What functions name and hold that have begun, as it was before they did."""


class Moment:
    """What is in some places at one moment."""

    def __init__(
        self, state: ReachableState, values: Iterable[tuple[str, Any]] = (), is_whole: bool = True
    ) -> None:
        """`values` are reached, too. What modules hold is looked at only if that may be, unless the
        moment is whole."""
        self.state = state
        self._kept = state.look()
        self.own = Places(state.watched)
        """What these values lead to."""
        self._held: ModulesMoment | None = None
        if is_whole:
            self._held = state.held.look()
        for name, value in values:
            self.own.add(name, value)
        self.extend_to_modules()

    def extend_to_modules(self) -> None:
        """Look at the modules, too, if what was added may reach them."""
        if self.own.reaches_unknown and self._held is None:
            self._held = self.state.held.look()
        is_set = self.own.sets_attributes or self.state.places.sets_attributes
        if is_set or self._held is not None:
            self.own.open_fakes()

    @property
    def buffers(self) -> list[dict[str, Any]]:
        """The registries of buffers that are reached."""
        return self.own.buffers if self._held is None else self.state.held.buffers

    def knows(self, value: Any) -> bool:
        """Was this object there at that moment?"""
        held = self._held
        is_held = held is not None and (held.places.has_seen(value) or held.snapshot.holds(value))
        return is_held or self.own.has_seen(value) or self.state.places.has_seen(value)

    def find_change(self) -> PlaceChange | None:
        """What has changed since, if anything has. Of functions that began since, we know what was
        there before they did."""
        changed = self.state.places.find_change(self._kept)
        if changed is None and self._held is not None:
            changed = self.state.held.find_change(self._held)
        return changed or self.own.find_change({})

    def list_changes(self) -> Iterator[tuple[Any, Place, bool]]:
        """Yield the places that hold something else than they did, with their keys, what was in
        them, and whether they are lasting."""
        for key, place in self.state.places.list_changes(self._kept):
            yield key, place, _is_outside(place.name, place.value)
        for key, place in self.own.list_changes({}):
            yield key, place, False
        if self._held is not None:
            for key, place in self.state.held.list_changes(self._held):
                yield key, place, True

    def list_contents(self) -> Iterator[tuple[Place, Content, Content]]:
        """Yield the places that hold other items than they did, with these and those."""
        for _, place, _ in self.list_changes():
            before, after = list_items(place.content), read_items(place.value)
            if before is not None and after is not None:
                yield place, before, after

    def take_recomputed(self, region: EndedRegion) -> None:
        """Take results out of caches again that a region has put there, and that make no
        difference."""
        held = () if self._held is None else (self._held.places,)
        looks = ((self.state.places, self._kept), *((each, {}) for each in (self.own, *held)))
        asked = [
            name for places, since in looks if places.caches for name in places.list_asked(since)
        ]
        if asked:
            recomputed = self.state.recomputed
            recomputed.note_asked(asked, region)
            recomputed.take_out(((key, place) for key, place, _ in self.list_changes()), region)

    def take_changes(
        self, region: EndedRegion, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Changes:
        """What has changed since this moment; it is put back. The variables of the function that
        runs were those, and are these."""
        found: Changes = {}
        self.take_recomputed(region)
        if self.find_change() is None:
            self._check_ended(before, after, found)
            return found
        for key, (name, holder, content), is_lasting in self.list_changes():
            old, new = list_items(content), read_items(holder)
            if old is None or new is None:
                raise NotRestorableError(name)
            lasts = is_lasting or (key in found and found[key].is_lasting)
            found[key] = ChangedPlace(name, holder, old, new, lasts)
        self._check_ended(before, after, found)
        for place in found.values():
            place.write(place.before)
        self.state.held.forget()
        left = self.find_change()
        if left is not None:
            raise NotRestorableError(left.name)
        return found

    def _check_ended(
        self, before: Mapping[str, Any], after: Mapping[str, Any], found: Changes
    ) -> None:
        changed = [(place.name, place.before, place.after) for place in found.values()]
        ended = find_ended(before, after, changed, self._is_held)
        if ended is not None:
            raise NotRestorableError(f"{ended}, and the object that was there ends")

    def _is_held(self, value: Any) -> bool:
        """Do others than variables lead to an object?"""
        if value in self.state.watched or self.state.places.has_seen(value):
            return True
        held = self._held
        return held is not None and (
            held.places.has_seen(value) or any(map(held.snapshot.holds, parts(value)))
        )

    def list_changed_scalars(self) -> list[str]:
        """The names of what holds other numbers or words than it did, among globals, closures and
        what they lead to. (The capture itself puts back tensors and modules.)"""
        found: list[str] = []
        for _, (name, holder, content) in self.state.places.list_changes(self._kept):
            before, after = list_items(content), read_items(holder)
            if before is None or after is None:
                continue
            old, new = dict(before), dict(after)
            for key in [*old, *(new.keys() - old.keys())]:
                pair = old.get(key, MISSING), new.get(key, MISSING)
                if all(each is MISSING or isinstance(each, _NUMBERS) for each in pair):
                    found += [name] if pair[0] != pair[1] else []
        return list(dict.fromkeys(found))


_NUMBERS = (bool, int, float, complex, str, bytes, type(None))


def _is_outside(name: str, holder: Any) -> bool:
    """Is it something other than a variable of a running function?"""
    if not isinstance(holder, CellType):
        return True
    frame = sys._getframe()
    while frame is not None and frame.f_code not in OUTERMOST:
        if name in frame.f_code.co_cellvars:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True
