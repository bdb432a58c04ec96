"""What a call has left otherwise than it was, in Python objects that were there before it: where,
what it was, what it is.

Objects that the call makes are its own, and what it puts back has not changed. Parameters and
buffers are no Python objects here: a program writes to them. Must not know how it is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch

from lostwax.capture.example_call import argument_names
from lostwax.capture.heap.cached import ResultCache, cached_results, is_plain
from lostwax.capture.heap.contents import list_items, read_items, stands_for, write
from lostwax.capture.heap.edges import GENERATORS, STREAMS
from lostwax.capture.heap.hidden import Fixed, OpaqueState
from lostwax.capture.heap.holders import MISSING, ClassAttributes, SlotAttributes
from lostwax.capture.heap.moment import Moment
from lostwax.capture.heap.paths import PathSearch, join_path
from lostwax.capture.heap.values import describe, describe_all
from lostwax.capture.state.root_module import forward_of
from lostwax.capture.trace.tracer import Tracer


class SideEffect(NamedTuple):
    """One value that the call has changed."""

    path: str
    """How the user would write it."""
    name: str
    """The attribute or variable in whose place something else is."""
    old: str
    new: str
    place: str
    """The path of ..."""
    holder: Any
    """... what has it in it."""

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


class Before:
    """All that Python keeps, when the call begins."""

    def __init__(self, tracer: Tracer, arguments: Mapping[str, Any]) -> None:
        self._modules = tracer.python.modules
        self._moment = Moment(tracer.python.reachable, arguments.items())
        self._reach = tracer.python.reach
        self._outside = tracer.python.outside
        self._arguments = arguments

    @property
    def functions(self) -> list[FunctionType]:
        """The user's functions that have run."""
        return self._reach.functions

    def list_changes(self) -> list[SideEffect]:
        """All that the call has changed, each once."""
        found: dict[str, SideEffect] = {}
        paths = PathSearch(self._modules, self._arguments, self.functions)
        for change in (*self._changed_caches(), *self._changed_places(paths)):
            found.setdefault(change.path, change)
        return list(found.values())

    def put_back(self) -> None:
        """Put everything back that can be. (An iterator cannot.)"""
        if self._moment.find_change() is None:
            return
        for _, (_, holder, content), _ in [*self._moment.list_changes()]:
            if not self._is_state(holder):
                write(holder, content)

    def _is_state(self, holder: Any) -> bool:
        """Are these the parameters or buffers of a module?"""
        return any(holder is m._buffers or holder is m._parameters for m in self._modules)

    def _changed_caches(self) -> Iterator[SideEffect]:
        for each in self._outside.caches.values():
            if each.has_objects():
                counts = len(each.results or ()), len(cached_results(each.function) or ())
                old, new = (f"{n} result{'s' * (n != 1)}" for n in counts)
                kept = f"{new}, with tensors or objects among them"
                name = each.function.__name__
                yield SideEffect(f"the cache of {name}", name, old, kept, "", each.function)

    def _changed_places(self, paths: PathSearch) -> Iterator[SideEffect]:
        if self._moment.find_change() is None:
            return
        for _, (name, holder, content), _ in self._moment.list_changes():
            if isinstance(holder, (OpaqueState, ResultCache)):  # others may wait by it; see above
                continue
            before, after = list_items(content), read_items(holder)
            has_attributes = isinstance(holder, (ClassAttributes, SlotAttributes))
            path = paths.find(holder) or (f"{name}." if has_attributes else name)
            if before is None or after is None:
                texts = _describe_moved(holder)
                yield SideEffect(path, _last_name(path, name), *texts, path, holder)
            elif isinstance(holder, (list, deque, set)):
                if not _are_same(before, after):
                    old, new = ([v for _, v in content] for content in (before, after))
                    is_set = isinstance(holder, set)
                    was, now = describe_all(old, is_set), describe_all(new, is_set)
                    yield SideEffect(path, _last_name(path, name), was, now, path, holder)
            else:
                yield from self._changed_keys(path, name, holder, dict(before), dict(after))

    def _changed_keys(
        self, path: str, name: str, holder: Any, before: dict[Any, Any], after: dict[Any, Any]
    ) -> Iterator[SideEffect]:
        is_state = self._is_state(holder)
        for key in dict.fromkeys((*before, *after)):
            was, now = before.get(key, MISSING), after.get(key, MISSING)
            is_written = is_state and isinstance(was, torch.Tensor)
            if _is_same(was, now) or (is_written and isinstance(now, torch.Tensor)):
                continue
            if len(after) == 1 and key in ("", name):  # a variable
                where, called = path, name
            else:
                where = join_path(path, key)
                called = str(key) if path.endswith(".") else _last_name(path, name)
            yield SideEffect(where, called, describe(was), describe(now), path, holder)
        if isinstance(holder, dict) and before.keys() == after.keys() and [*before] != [*after]:
            old, new = (f"the order {describe_all([*each])}" for each in (before, after))
            yield SideEffect(path.rstrip("."), _last_name(path, name), old, new, path, holder)


def name_arguments(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by their names."""
    names = [*argument_names(forward_of(function), len(args), {**kwargs}), *kwargs]
    return dict(zip(names, (*args, *kwargs.values()), strict=False))


def _describe_moved(holder: Any) -> tuple[str, str]:
    """What has no items: an array, an iterator, a random generator."""
    if isinstance(holder, Fixed):
        return "what it was", "another"
    kind = f"a {type(holder).__name__}"
    if GENERATORS[type(holder)]:
        return kind, "drawn from"
    return kind, "further on" if STREAMS[type(holder)] else "other content"


def _last_name(path: str, name: str) -> str:
    """The name by which the user's code gets at a container."""
    last = path.partition("[")[0].rpartition(".")[2].partition(",")[0]
    return last if last.isidentifier() else name


def _are_same(before: list[tuple[Any, Any]], after: list[tuple[Any, Any]]) -> bool:
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(_is_same(a, b) for (_, a), (_, b) in pairs)


def _is_same(was: Any, now: Any) -> bool:
    """Is it the same object, or an equal number or text?"""
    if was is now or stands_for(now, was):
        return True
    if type(was) is not type(now) or isinstance(was, list) or not is_plain(was):
        return False
    return is_plain(now) and repr(was) == repr(now)
