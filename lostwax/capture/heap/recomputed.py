"""Results in caches that make no difference: computing them again gives the same.

Eager computes a result once for a key, wherever that is; a program would have to know in each side
of an `if` on data whether another one has computed it. So what a side or a loop's body leaves in a
cache is taken out again, if it is a constant and the function can get at nothing that has changed:
who asks next computes it again. If the function has got at something else by then, that is refused.
Must not know what the regions are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple

import torch

from lostwax.bytecode import outline
from lostwax.capture.heap.cached import CALL_BEFORE, ResultCache, Results, is_fixed, split_key
from lostwax.capture.heap.functions import reachable_functions
from lostwax.capture.heap.hidden import Fixed
from lostwax.capture.heap.holders import NamedAttributes
from lostwax.capture.heap.places import Place, Places
from lostwax.errors import CaptureError
from lostwax.identity import Seen
from lostwax.location import NOWHERE, Location, user_location

IsOfTensor = Callable[[torch.Tensor], bool]


class EndedRegion(NamedTuple):
    """Where operators were recorded, as it ends."""

    what: str
    """What it is to the user."""
    has_written: IsOfTensor
    """Has it written to this tensor from outside?"""
    share_constant: IsOfTensor
    """Is a tensor made of numbers alone, and not written to? From here on nobody may do that."""


class _Taken(NamedTuple):
    """A result that was taken out of a cache."""

    place: ResultCache
    key: Any
    result: Any
    reach: Places
    """What the function can get at, as it was."""
    region: EndedRegion


class RecomputedResults:
    """Those of one capture."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []
        self._counted: dict[str, str] = {}
        """The caches that were asked in regions, with these."""

    def take_out(self, changed: Iterable[tuple[Any, Place]], region: EndedRegion) -> None:
        """Take what makes no difference out of the caches that a region has changed."""
        self.check()
        changes = dict(changed)
        found = {
            key: self._find_new(place.value, place.content, region)
            for key, place in changes.items()
            if isinstance(place.value, ResultCache)
        }
        others = {key for key in changes if found.get(key) is None}
        while kept := [
            key for key in found.keys() - others if _gets_at(found[key], others, region)
        ]:
            others.update(kept)
        for key, taken in found.items():
            if key not in others:
                changes[key].value.write(changes[key].content)
                self._taken += taken or ()

    def _find_new(
        self, place: ResultCache, before: Results | None, region: EndedRegion
    ) -> list[_Taken] | None:
        """What is new in a cache; None, if it is more than constants, or something is gone."""
        now = place.read()
        if before is None or now is None or place.is_full() or not place.can_be_written():
            return None
        new = place.list_new(before)
        if len(now) - len(new) != len(before):
            return None
        if not all(_is_constant(result, region) for _, result in new):
            return None
        reach = find_reach(place, [key for key, _ in new])
        return [_Taken(place, key, result, reach, region) for key, result in new]

    def note_asked(self, names: Iterable[str], region: EndedRegion) -> None:
        """Note the caches that a region has asked."""
        for name in names:
            self._counted.setdefault(name, region.what)

    def check(self) -> None:
        """Refuse what was taken out, and is not the same where it was computed again."""
        for each in self._taken:
            now = dict(each.place.read() or ())
            if each.key not in now:
                continue
            is_same = _is_constant(now[each.key], each.region)
            if not is_same or not _are_same(each.result, now[each.key]):
                raise _refuse(each, "it may be another result")
            changes = [place for _, place in each.reach.list_changes({})]
            others = [place for place in changes if not isinstance(place.value, ResultCache)]
            if others:
                raise _refuse(each, f"the function gets at {others[0].name}, which has changed")
            if each.place.is_full():
                raise _refuse(each, "the cache is full, and drops results")

    def check_counts(self, functions: Iterable[FunctionType]) -> None:
        """Refuse code that asks how often a cache had a result, where data decide that."""
        if not self._counted:
            return
        asking = [each for each in functions if "cache_info" in outline(each.__code__).names]
        if asking:
            name, what = next(iter(self._counted.items()))
            raise CaptureError(
                f"how often {name} had a result is asked, and {what} asks that cache.\n"
                f"  at {locate_function(asking[0])}\n"
                "  why: how often depends on data, and is known only when the program runs\n"
                "  instead: count in a tensor what is to be counted"
            )


class ComputedResults:
    """What functions with a cache give for numbers that data decide: a program computes that. Eager
    may find what was computed earlier; so nothing may change that such a function gets at."""

    def __init__(self, list_changed: Callable[[], Iterable[tuple[Any, Any]]]) -> None:
        """`list_changed` yields what holds something else than when the call began, by its key."""
        self._list_changed = list_changed
        self._noted: list[tuple[str, Location, Places]] = []

    def note(self, function: Any, values: Iterable[Any]) -> None:
        """The program computes what a function gives for these values."""
        name, where = getattr(function, "__name__", "a function"), user_location()
        reach = _find_reach((function.__wrapped__, *values))
        self._noted.append((name, where, reach))
        self.check()
        places = [type(each.value) for each in reach.list_places()]
        has_state = reach.reaches_unknown or not {Fixed, ResultCache}.issuperset(places)
        for key, result in ResultCache(function).read() or ():
            if is_fixed(result):
                args, options = split_key(function, key)
                is_same = _are_same(result, function.__wrapped__(*args, **options))
            else:
                is_same = not has_state
            if not is_same:
                raise _refuse_cache(name, where)

    def check(self) -> None:
        """Refuse what one of the functions gets at and has changed."""
        changed = dict(self._list_changed()) if self._noted else {}
        keys = {key for key, place in changed.items() if not isinstance(place, ResultCache)}
        has_variables = any(isinstance(changed[key], NamedAttributes) for key in keys)
        for name, where, reach in self._noted:
            after = [p for _, p in reach.list_changes({}) if not isinstance(p.value, ResultCache)]
            is_unknown = reach.reaches_unknown and bool(keys)
            if after or has_variables or is_unknown or reach.has_any(keys):
                raise _refuse_cache(name, where)


def _refuse_cache(name: str, where: Location) -> CaptureError:
    return CaptureError(
        f"{name} has a cache, and is given a number that data decide.\n  at {where}\n"
        "  why: it can get at something that changes, so that it matters whether it is called or "
        "the cache has its result\n"
        f"  instead: call it without the cache, {name}.__wrapped__(n), or give it all that it reads"
    )


def find_reach(place: ResultCache, keys: Iterable[Any]) -> Places:
    """What the function can get at that computes these results."""
    starts = [place.find_function()]
    for key in keys:
        args, options = split_key(place.owner, key)
        starts += [*args, *options.values()]
    return _find_reach(starts)


def _find_reach(values: Iterable[Any]) -> Places:
    found, starts = Places(Seen()), [*values]
    for each in (*starts, *reachable_functions(starts, None)):
        found.add("", each)
    return found


def _gets_at(taken: list[_Taken] | None, changed: set[Any], region: EndedRegion) -> bool:
    """Can the function of a cache get at something that has changed?"""
    return any(
        each.reach.has_any(changed) or any(map(region.has_written, each.reach.list_tensors()))
        for each in (taken or ())[:1]  # the others get at the same
    )


def _is_constant(result: Any, region: EndedRegion) -> bool:
    if type(result) is tuple:
        return all(_is_constant(each, region) for each in result)
    return region.share_constant(result) if isinstance(result, torch.Tensor) else is_fixed(result)


def _are_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, torch.Tensor):
        return bool(one.fake_type == other.fake_type)  # type: ignore[attr-defined]
    return one is other or repr(one) == repr(other)


def _refuse(taken: _Taken, why: str) -> CaptureError:
    name = taken.place.describe("")
    return CaptureError(
        f"whether {name} has a result depends on data: {taken.region.what} computes it, and so "
        f"does what comes after, but {why}.\n  at {locate_function(taken.place.find_function())}\n"
        "  why: eager would find it in the cache, if it goes this way, and else compute it\n"
        f"  instead: {CALL_BEFORE}"
    )


def locate_function(function: Any) -> Location:
    code = getattr(function, "__code__", None)
    return (
        NOWHERE if code is None else Location(code.co_filename, code.co_firstlineno, code.co_name)
    )
