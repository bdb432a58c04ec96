"""Tables of objects that are told apart by identity, and held.

An `id` names an object only while that object lives; then another object may get it. So code that
keeps ids must keep the objects, too, and these tables do both. They are for objects whose own
equality means something else (tensors, code, lists) or whose hash is slow (torch's overloads);
other objects are keys themselves. `tests/test_identity.py` has the reasons of the other uses of
`id`.

Layer 0: imports nothing of lostwax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


class ByIdentity(Generic[Key, Found]):
    """What is known of each of some objects."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[Key, Found]] = {}

    def get(self, key: Key) -> Found | None:
        found = self._held.get(id(key))
        return None if found is None else found[1]

    def __getitem__(self, key: Key) -> Found:
        return self._held[id(key)][1]

    def __setitem__(self, key: Key, found: Found) -> None:
        self._held[id(key)] = (key, found)

    def setdefault(self, key: Key, found: Found) -> Found:
        return self._held.setdefault(id(key), (key, found))[1]

    def __contains__(self, key: Any) -> bool:
        return id(key) in self._held

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        self._held.clear()


class Seen:
    """Some objects: those that a walk has come by."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def add(self, each: Any) -> None:
        self._held[id(each)] = each

    def update(self, several: Sequence[Any]) -> None:
        self._held.update(zip(map(id, several), several, strict=True))

    def __contains__(self, each: Any) -> bool:
        return id(each) in self._held
