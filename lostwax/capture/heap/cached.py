"""The caches of functions (`functools.lru_cache`): what is in one, and how that is put back.

C keeps them, and shows nothing but counts. The garbage collector is told of all that is in one: so
it can be read. One without a bound is a dictionary. To put results back into one with a bound, the
function is called while its code gives these. Must not know what a result is for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from gc import get_referents
from threading import get_ident
from types import FunctionType
from typing import Any, NamedTuple

import torch

from lostwax.classes import SYMBOLIC

CACHED: Any = type(functools.cache(len))
"""The class of functions with a cache."""


CALL_BEFORE = (
    "call the function before, so that its cache has the result in any case; or without the cache, "
    "function.__wrapped__(…)"
)
"""What to write, if data decide whether a cache has a result."""


class Counts(NamedTuple):
    """How often a cache had the result, and had it not."""

    hits: int
    misses: int


class Results(list[tuple[Any, Any]]):
    """The keys and results in a cache; if it has a bound, what was asked for last is last."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]], counts: Counts) -> None:
        super().__init__(pairs)
        self.counts = counts


class ResultCache(NamedTuple):
    """A place: the cache of a function."""

    owner: Any

    def read(self) -> Results | None:
        """None, if we cannot."""
        found, info = _open(self.owner), self.owner.cache_info()
        counts = Counts(info.hits, info.misses)
        return None if found.table is None else Results(found.pairs, counts)

    def write(self, content: Iterable[tuple[Any, Any]]) -> None:
        """Let these be in it, and nothing else; nothing at all, if that cannot be."""
        wanted = [*content]
        table, _, function, _ = _open(self.owner)
        if table is not None and self.owner.cache_info().maxsize is None:
            table.clear()
            table.update(wanted)
            return
        self.owner.cache_clear()
        if wanted and type(function) is FunctionType:
            _give_results(self.owner, function, wanted)

    def can_be_written(self) -> bool:
        """Can results be put into it?"""
        found = _open(self.owner)
        is_free = self.owner.cache_info().maxsize is None
        return found.table is not None and (is_free or type(found.function) is FunctionType)

    def find_function(self) -> Any:
        """The function whose results are in it."""
        return _open(self.owner).function

    def list_new(self, before: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """What is in it now, and was not."""
        known = {id(key): (key, result) for key, result in before}
        found = cached_results(self.owner) or {}
        return [pair for at, pair in found.items() if known.get(at, _NO_RESULT)[1] is not pair[1]]

    def is_full(self) -> bool:
        """May it have dropped a result?"""
        _, _, most, count = self.owner.cache_info()
        return most is not None and count >= most

    def describe(self, name: str) -> str:
        """Its name, given that of the function."""
        return f"the cache of {getattr(self.owner, '__name__', name)}"


class _Opened(NamedTuple):
    """What the garbage collector is told of a cache."""

    table: dict[Any, Any] | None
    """By key; None, if it is not as we know it."""
    pairs: list[tuple[Any, Any]]
    function: Any
    mark: Any
    """What stands in a key before arguments with names."""


def _open(owner: Any) -> _Opened:
    held, info = get_referents(owner), owner.cache_info()
    start = 1 if held and held[0] is CACHED else 0
    count = 0 if info.maxsize is None else info.currsize
    end = start + 3 * count  # a key, its result, and the class of what holds them
    table = held[end] if len(held) > end + 2 else None
    if type(table) is not dict or len(table) != info.currsize:
        return _Opened(None, [], None, None)
    links = zip(held[start:end:3], held[start + 1 : end : 3], strict=True)
    pairs = [*table.items()] if info.maxsize is None else [*links]
    return _Opened(table, pairs, held[end + 1], held[end + 2])


def split_key(owner: Any, key: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for which a key stands: behind those without a name is a mark, behind all
    their classes, if these count."""
    if type(key) is not tuple:  # one int or str stands for itself
        return (key,), {}
    mark = _open(owner).mark
    at = next((i for i, each in enumerate(key) if each is mark), None)
    is_typed = owner.cache_parameters()["typed"]
    if at is None:
        return key[: len(key) // 2] if is_typed else key, {}
    end = at + 1 + 2 * ((len(key) - 2 * at - 1) // 3) if is_typed else len(key)
    named = key[at + 1 : end]
    return key[:at], dict(zip(named[::2], named[1::2], strict=True))


# ------------------------------------------------------------------------------- comparisons

CachedResults = dict[int, tuple[Any, Any]]
"""Keys and results, by the key's identity."""


def cached_results(function: Any) -> CachedResults | None:
    """The content of a function's cache, or None if we cannot read it."""
    found = _open(function)
    return None if found.table is None else {id(pair[0]): pair for pair in found.pairs}


def contains_all_results(before: CachedResults, now: CachedResults) -> bool:
    """Does the cache still hold all results that it had before? It may hold more."""
    return all(now.get(key, _NO_RESULT)[1] is held[1] for key, held in before.items())


_NO_RESULT = (None, object())


def is_plain(value: Any) -> bool:
    """Does it consist only of numbers, text, dtypes, devices and layouts?"""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return type(value) in _PLAIN_VALUES


_PLAIN_VALUES = frozenset(
    (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
)


def is_fixed(value: Any) -> bool:
    """Is it a number, text or the like, which nobody can change?"""
    return type(value) in _PLAIN_VALUES


def is_deeply_fixed(value: Any) -> bool:
    """Is it such, or a tuple of such? Tensors are looked at by others."""
    if isinstance(value, tuple):
        return all(map(is_deeply_fixed, value))
    return is_fixed(value) or isinstance(value, torch.Tensor)


def is_plain_since(before: Iterable[tuple[Any, Any]] | None, function: Any) -> bool:
    """Are all results added to the cache since then plain? Their keys may be any objects but
    tensors and symbolic sizes."""
    if before is None or cached_results(function) is None:
        return False
    new = ResultCache(function).list_new(before)
    return all(is_plain(result) and not _has_sizes(key) for key, result in new)


def _has_sizes(key: Any) -> bool:
    """Is one of the arguments a symbolic number or a tensor?"""
    parts = list(key) if isinstance(key, (list, tuple)) else [key]
    return any(isinstance(each, _SIZES) for each in parts)


_SIZES = (*SYMBOLIC, torch.Tensor)


# ------------------------------------------------------------------------------ putting back


def _give_results(owner: Any, function: FunctionType, wanted: list[tuple[Any, Any]]) -> None:
    """Call the function for each key, while its code gives the result."""
    before, own, given = function.__code__, get_ident(), list[Any]()
    plain = FunctionType(
        before, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    plain.__kwdefaults__ = function.__kwdefaults__

    def give(*args: Any, **options: Any) -> Any:
        return given[-1] if get_ident() == own else plain(*args, **options)

    try:
        function.__code__ = _TEMPLATE.replace(
            co_freevars=before.co_freevars,
            co_consts=tuple(give if each == _GIVES else each for each in _TEMPLATE.co_consts),
        )
        for key, result in wanted:
            args, options = split_key(owner, key)
            given.append(result)
            owner(*args, **options)
    finally:
        function.__code__ = before


_GIVES = "what gives a result"


def _give(*args: Any, **options: Any) -> Any:
    function: Any = "what gives a result"  # _GIVES
    return function(*args, **options)


_TEMPLATE = _give.__code__
