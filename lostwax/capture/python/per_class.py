"""A table of what we find out about classes, once for each.

Must not keep every class alive that was ever seen: users make classes as they go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")
_MOST = 1000


class PerClass(dict[Any, Found]):
    """A function's answer for each class."""

    def __init__(self, find: Callable[[Any], Found]) -> None:
        self._find = find

    def __missing__(self, cls: Any) -> Found:
        found = self._find(cls)
        if len(self) >= _MOST:
            self.clear()
        self[cls] = found
        return found
