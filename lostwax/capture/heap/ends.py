"""Objects with whose end something happens: `__del__`, the `finally` of a generator, and what
refers to them weakly.

A capture holds what a side of an `if` on data drops, since the other side goes on with it; so in it
such an object does not end where it would. Must not know what sides are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import GeneratorType
from typing import Any
from weakref import getweakrefcount, getweakrefs

from lostwax.capture.heap.edges import CLASSES
from lostwax.capture.heap.holders import Content
from lostwax.capture.heap.places import Places
from lostwax.identity import Seen


def find_ended(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    changed: Iterable[tuple[str, Content, Content]],
    is_held: Callable[[Any], bool],
) -> str | None:
    """The name of a variable, or of a place that has changed, which such an object was in that
    nothing leads to any more; None if there is none. `is_held` tells what others lead to."""
    dropped = [(n, v) for n, v in before.items() if v is not after.get(n) and _has_end(v)]
    for name, old, new in changed:
        dropped += [
            (name, v) for _, v in old if _has_end(v) and not any(v is each for _, each in new)
        ]
    dropped = [(name, value) for name, value in dropped if not is_held(value)]
    if not dropped:
        return None
    found = Places(Seen())
    found.leave_out(ref for _, value in dropped for ref in getweakrefs(value))
    for name, value in after.items():
        found.add(name, value)
    return next((name for name, value in dropped if not found.has_seen(value)), None)


def _has_end(value: Any) -> bool:
    """Does something happen when it ends, or does something see that?"""
    cls = type(value)
    if issubclass(cls, GeneratorType):
        return bool(value.gi_suspended) and value.gi_frame.f_lasti > _BEGIN
    return bool(CLASSES[cls]) and (hasattr(cls, "__del__") or getweakrefcount(value) > 0)


def _begin() -> Any:
    yield


_BEGIN = _begin().gi_frame.f_lasti
"""Where a generator is that was not asked yet."""
