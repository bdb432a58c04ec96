"""How lostwax keeps what it has found: every cache of the process, each with a name and a bound.

A cache that is full is emptied, and fills again. So whatever is in one must be found again when it
is asked for, and it must be right to empty it at any time, in the middle of a capture too. What may
never go (the records of operators, whose identities stand in keys) is no cache.

Who looks something up for every operator takes the plain `table`, as nothing is faster; so only
misses are counted there. `lostwax.logs` tells how full they are. Layer 0: imports nothing of the
house.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")
Object = TypeVar("Object")
Function = TypeVar("Function", bound=Callable[..., Any])


class CacheState(NamedTuple):
    """How full a cache is, and what it was good for."""

    name: str
    size: int
    bound: int
    hits: int | None
    """None where nobody counts them."""
    misses: int


class _Registered(Protocol):
    def state(self) -> CacheState: ...

    def clear(self) -> None: ...


CACHES: dict[str, _Registered] = {}
"""All of them, by name."""


def list_caches() -> list[CacheState]:
    """The state of every cache, by name."""
    return [CACHES[name].state() for name in sorted(CACHES)]


def empty_caches() -> None:
    """Forget everything. What is asked next takes longer; nothing else changes."""
    for each in CACHES.values():
        each.clear()


def _register(home: str, name: str, cache: _Registered) -> None:
    """A module has one cache of a name. (Its loading may have been interrupted; then it is loaded
    again, as another object.)"""
    module = sys.modules.get(home)
    if name in CACHES and _homes[name] is module:
        raise AssertionError(f"two caches are called {name!r}")
    CACHES[name], _homes[name] = cache, module


_homes: dict[str, ModuleType | None] = {}


class Cache(Generic[Key, Found]):
    """What was found, by key. `home` is the module that has it (`__name__`)."""

    __slots__ = ("bound", "misses", "name", "table")

    def __init__(
        self, home: str, name: str, bound: int, table: dict[Key, Found] | None = None
    ) -> None:
        self.name = _full_name(home, name)
        self.bound = bound
        self.misses = 0
        self.table: dict[Key, Found] = {} if table is None else table
        """Always the same object: others hold it. Only `keep` writes to it."""
        _register(home, self.name, self)

    def keep(self, key: Key, found: Found) -> Found:
        """Keep what was found for a key; a full cache is emptied first."""
        table = self.table
        if len(table) >= self.bound:
            import logging  # the face loads this module, before it is known what is asked for

            told = "%r is full with %d entries, and is emptied"
            logging.getLogger("lostwax.caches").info(told, self.name, len(table))
            table.clear()
        self.misses += 1
        table[key] = found
        return found

    def clear(self) -> None:
        self.table.clear()

    def state(self) -> CacheState:
        return CacheState(self.name, len(self.table), self.bound, None, self.misses)


class PerClass(dict[Any, Found]):
    """What a function says of each class: a table that asks it about a class that is new. Bounded,
    as users make classes as they go."""

    __slots__ = ("_cache", "_find")

    def __init__(self, home: str, name: str, find: Callable[[Any], Found]) -> None:
        self._find = find
        self._cache = Cache[Any, Found](home, name, 1000, self)

    def __missing__(self, cls: Any) -> Found:
        return self._cache.keep(cls, self._find(cls))


def cached_by_identity(
    bound: int,
) -> Callable[[Callable[[Object], Found]], Callable[[Object], Found]]:
    """For a function of one object whose own equality is another one, or whose hash is slow: code,
    operators. An `id` names an object only as long as that lives, so each entry holds its own."""

    def decorate(find: Callable[[Object], Found]) -> Callable[[Object], Found]:
        cache = Cache[int, tuple[Object, Found]](find.__module__, find.__qualname__, bound)
        get = cache.table.get

        @wraps(find)
        def look_up(key: Object) -> Found:
            entry = get(id(key))
            if entry is None:
                entry = cache.keep(id(key), (key, find(key)))
            return entry[1]

        return look_up

    return decorate


def cached(bound: int = 1) -> Callable[[Function], Function]:
    """For a function whose arguments are small and hash fast; what was asked for longest ago goes
    first. Without a bound: for a function that has only one answer."""

    def decorate(find: Function) -> Function:
        kept: Any = lru_cache(maxsize=bound)(find)
        name = _full_name(find.__module__, find.__qualname__)
        _register(find.__module__, name, _Counted(name, kept))
        return kept  # type: ignore[no-any-return]

    return decorate


class _Counted:
    """A cache of `functools`, which counts by itself."""

    def __init__(self, name: str, kept: Any) -> None:
        self.name = name
        self.clear = kept.cache_clear
        self._info = kept.cache_info

    def state(self) -> CacheState:
        hits, misses, bound, size = self._info()
        return CacheState(self.name, size, bound, hits, misses)


def _full_name(home: str, name: str) -> str:
    return f"{home}.{name}".removeprefix("lostwax.")
