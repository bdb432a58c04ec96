"""Reads the results in the cache of a function (`functools.lru_cache`). Eager code finds them there
even if what they were computed from has changed since; so a capture must, too.

Python shows the content of such a cache only to its garbage collector. Must not call the functions,
nor the user's `__eq__` and `__hash__`.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from lostwax.capture.heap.edges import CACHED
from lostwax.classes import SYMBOLIC

CachedResults = dict[int, tuple[Any, Any]]
"""Keys and results, by the key's identity."""


def cached_results(function: Any) -> CachedResults | None:
    """The content of a function's cache, or None if we cannot read it."""
    info, held = function.cache_info(), gc.get_referents(function)
    start = 1 if held and held[0] is CACHED else 0
    if info.maxsize is None:
        found = held[start] if len(held) > start else None
        pairs = list(found.items()) if type(found) is dict else None
    else:
        end = start + 3 * info.currsize  # a key, its result, and the class of what holds them
        is_so = len(held) > end and type(held[end]) is dict and len(held[end]) == info.currsize
        pairs = list(zip(held[start:end:3], held[start + 1 : end : 3], strict=True))
        pairs = pairs if is_so else None
    return None if pairs is None else {id(key): (key, result) for key, result in pairs}


def are_still_there(before: CachedResults, now: CachedResults) -> bool:
    """Does the cache still hold all results that it had before? It may hold more."""
    return all(now.get(key, _NONE)[1] is held[1] for key, held in before.items())


_NONE = (None, object())


def is_plain(value: Any) -> bool:
    """Does it consist only of numbers, text, dtypes, devices and layouts?"""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return type(value) in _PLAIN


_PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
)


def is_plain_since(before: CachedResults | None, function: Any) -> bool:
    """Are all results added to the cache since then plain? Their keys may be any objects but
    tensors and symbolic sizes."""
    now = cached_results(function)
    if before is None or now is None:
        return False
    new = [held for key, held in now.items() if before.get(key, _NONE)[1] is not held[1]]
    return all(is_plain(result) and not _has_sizes(key) for key, result in new)


def _has_sizes(key: Any) -> bool:
    """Is one of the arguments a symbolic number or a tensor?"""
    parts = list(key) if isinstance(key, (list, tuple)) else [key]
    return any(isinstance(each, _SIZES) for each in parts)


_SIZES = (*SYMBOLIC, torch.Tensor)
