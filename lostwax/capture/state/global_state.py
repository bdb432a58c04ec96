"""Puts back what a call has left outside of parameters, buffers and attributes of modules: in
globals, variables of enclosing functions, defaults, caches of `functools`, and in whatever these
and the modules lead to (`heap/places.py`). If a capture left its tensors there, eager code would
find them; and each later capture would find what the first one has left.

Each function is read before it begins. Must not decide what leads where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from lostwax.capture.heap.cached import CACHED, ResultCache, Results, is_plain_since
from lostwax.capture.heap.contents import (
    Stream,
    describe_consumed,
    find_change,
    list_items,
    original,
    read_items,
    stands_for,
    write,
)
from lostwax.capture.heap.edges import FILES, MUTABLE_ARRAYS
from lostwax.capture.heap.functions import ReadFunction
from lostwax.capture.heap.hidden import CALLS, Fixed, OpaqueState, TorchSettings
from lostwax.capture.heap.holders import MISSING, Content
from lostwax.capture.heap.places import Place, Places
from lostwax.capture.heap.reach import Reach
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.state.module_state import PLAIN
from lostwax.capture.state.unkept_changes import note_change, note_results, note_silent_change
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import Seen
from lostwax.undo.undo import Undo

if TYPE_CHECKING:
    from lostwax.capture.heap.paths import PathSearch


class SavedCache(NamedTuple):
    """A function with a cache (`functools.lru_cache`), and what was in that."""

    function: Any
    results: Results | None

    def is_other(self) -> bool:
        """Is something else in it than there was?"""
        return find_change(ResultCache(self.function), self.results) is not None

    def has_objects(self) -> bool:
        """Is more in it than there was, and not only numbers and words?"""
        return self.is_other() and not is_plain_since(self.results, self.function)

    def put_back(self) -> None:
        """What a capture has left there has no data, or was computed for one program alone."""
        place = ResultCache(self.function)
        if self.results is not None and place.can_be_written():
            if self.is_other():
                if not self.has_objects():
                    note_results(place, place.list_new(self.results))
                place.write(self.results)
        elif self.has_objects():
            self.function.cache_clear()


class OutsideState:
    """What functions reach outside of modules, each place as it was before one began that reaches
    it; and what modules hold that snapshots do not know of."""

    def __init__(self, reach: Reach, modules: Sequence[nn.Module], undo: Undo) -> None:
        """To be made before what modules hold is changed, so that this was put back when we
        look."""
        self.caches: dict[Any, SavedCache] = {}
        self.warns_of_values = False
        """Is the user warned of more than tensors? (A capture that fails is made again or
        raises.)"""
        self.watched = Seen()
        self.watched.update(modules)
        self.places = Places(self.watched, opens_watched=False, follows=False)
        self._reach, self._modules, self._undo = reach, modules, undo
        CALLS.begin(undo)
        undo.add(self._put_back)
        reach.add_look(self._look)

    def _look(self, found: ReadFunction) -> None:
        function = found.function
        if isinstance(function, CACHED):
            if function not in self.caches:
                self.caches[function] = SavedCache(function, ResultCache(function).read())
            self.places.add(function.__name__, function)
        else:
            self.places.begin(function)

    def _put_back(self) -> None:
        for cached in self.caches.values():
            if cached.has_objects():
                name = cached.function.__name__
                note_silent_change(f"{name}, which has a cache, keeps a tensor or an object in it")
            cached.put_back()
        for _, place in [*self.places.list_changes({})]:
            if isinstance(place.value, ResultCache):
                continue
            before, after = list_items(place.content), read_items(place.value)
            if before is None or after is None:
                self._warn_of_content(place)
                write(place.value, place.content)
            elif changed := [*_list_changed(before, after)]:
                self._warn_of_items(place, changed)
                write(place.value, [*_list_restored(before, after)])

    # ----------------------------------------------------------------------------------- the texts

    def _warn_of_content(self, place: Place) -> None:
        name, holder, content = place
        if isinstance(content, Stream) or isinstance(holder, (*MUTABLE_ARRAYS, *FILES)):
            if self.warns_of_values:
                self._warn(describe_consumed(holder, self._find_label(place)))
        elif isinstance(holder, OpaqueState) and any(map(leads_to_fake, holder.leads_to())):
            kind = type(holder.owner).__name__
            self._warn(
                f"the module keeps a tensor in {self._find_label(place)}, a {kind}; a program "
                "leaves nothing there. It has no data, and is still in it: take it out."
            )
        elif isinstance(holder, Fixed) and self.warns_of_values:
            self._warn(
                f"the module changes {name}; the program does not: every run of it computes with "
                "what it was at capture. A buffer would be kept."
            )
        elif not isinstance(holder, TorchSettings):  # which others put back
            self._note(name)

    def _warn_of_items(self, place: Place, changed: Sequence[tuple[Any, Any, Any]]) -> None:
        """Warn of the first tensor, or else of the first number or word, in a place."""
        for key, _, now in changed:
            if leads_to_fake(now):
                label = self._find_label(place, key if self._has_attributes(place) else None)
                said = f"{label}; a program leaves nothing there, and {label.partition(',')[0]} is"
                self._warn(f"the module keeps a tensor in {said} as it was before the export.")
                return
        if not self.warns_of_values:
            return
        from lostwax.capture.heap.values import describe

        for key, was, now in changed:
            if all(each is MISSING or isinstance(each, PLAIN) for each in (was, now)):
                called = key if self._has_attributes(place) else place.name
                line = line_that_sets(called, self._reach.functions)
                at = "" if line is None else f" ({line})"
                self._warn(
                    f"the module sets {self._find_label(place, key)}, from {describe(was)} to "
                    f"{describe(now)}{at}; the program does not: every run of it computes with "
                    "what it was at capture. A buffer would be kept."
                )
                return
        self._note(place.name)

    def _warn(self, text: str) -> None:
        if not note_change(text):
            self._undo.notes.append(text)

    def _note(self, name: str) -> None:
        if self.warns_of_values:
            note_silent_change(f"the module changes {name}")

    def _find_label(self, place: Place, key: Any = None) -> str:
        """How the user would write what is under a key in a place."""
        from lostwax.capture.heap.paths import join_path

        path = self._paths.find(place.value) or place.name
        path = path if key in (None, "", place.name) else join_path(path, key)
        return f"its attribute {path[5:]}" if path.startswith("self.") else path

    def _has_attributes(self, place: Place) -> bool:
        """Is it an object's attributes, and no container or variable?"""
        return self._paths.find(place.value).endswith(".")

    @cached_property
    def _paths(self) -> PathSearch:
        from lostwax.capture.heap.paths import PathSearch

        return PathSearch(self._modules, {}, self._reach.functions)


def leads_to_fake(value: Any) -> bool:
    """Is it a capture's tensor, or does it lead to one?"""
    found = Places(Seen(), follows=False)
    found.add("", value)
    return bool(found.fakes)


def _list_changed(before: Content, after: Content) -> Iterator[tuple[Any, Any, Any]]:
    """The keys under which something else is, with what was and what is there. Fakes that were
    there are the state's, which is put back by others; modules that were imported stay."""
    old, new = dict(before), dict(after)
    for key in {**old, **new}:
        was, now = old.get(key, MISSING), new.get(key, MISSING)
        if was is not now and not stands_for(now, was) and not _stays(was, now):
            yield key, was, now
    if old.keys() == new.keys() and [*old] != [*new]:
        yield None, None, [*new]


def _list_restored(before: Content, after: Content) -> Iterator[tuple[Any, Any]]:
    old, new = dict(before), dict(after)
    for key, was in before:
        now = new.get(key, MISSING)
        restored = now if _stays(was, now) else original(was)
        if restored is not MISSING:
            yield key, restored
    yield from [(key, now) for key, now in after if key not in old and _stays(MISSING, now)]


def _stays(was: Any, now: Any) -> bool:
    """Is it nothing that we put back?"""
    return type(was) is FakeTensor or isinstance(now, ModuleType) or _is_patch(was)


def _is_patch(value: Any) -> bool:
    """Is it a function of a capture's, which was taken out again?"""
    return type(value) is FunctionType and str(value.__module__).startswith("lostwax.capture.")
