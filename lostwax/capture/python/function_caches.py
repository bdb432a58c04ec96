"""What functions with a cache (`functools.lru_cache`) have in it: eager code finds it there, also
when what it was computed from has changed since; so a capture must.

Python shows what is in such a cache to its garbage collector alone. Must not call the functions,
nor the user's `__eq__` and `__hash__`.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from lostwax.capture.python.reachable import CACHED

Results = dict[int, tuple[Any, Any]]
"""Keys and results, by the key's identity."""


def results(function: Any) -> Results | None:
    """What is in the cache of a function; None: it cannot be told."""
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


def are_still_there(before: Results, now: Results) -> bool:
    """There may be more."""
    return all(now.get(key, _NONE)[1] is held[1] for key, held in before.items())


_NONE = (None, object())


def is_plain(value: Any) -> bool:
    """Is it made of numbers and text alone?"""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return type(value) in _PLAIN


_PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
)


def is_plain_since(before: Results | None, function: Any) -> bool:
    """Is what has got into the cache since made of numbers and text? Keys may be objects, which
    have no data."""
    now = results(function)
    if before is None or now is None:
        return False
    new = [held for key, held in now.items() if before.get(key, _NONE)[1] is not held[1]]
    return all(is_plain(result) and not _has_sizes(key) for key, result in new)


def _has_sizes(key: Any) -> bool:
    """Is one of the arguments a size that is not known, or a fake?"""
    parts = list(key) if isinstance(key, (list, tuple)) else [key]
    return any(isinstance(each, _SIZES) for each in parts)


_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Tensor)
