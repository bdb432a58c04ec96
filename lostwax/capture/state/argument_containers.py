"""The containers of a call, lists and dictionaries of the caller's: a program takes them apart, and
leaves them as they are. What the module puts into them is told of.

Must not look at what is registered otherwise: such classes are made anew.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lostwax.capture.python.containers import items
from lostwax.capture.state.unkept_changes import tell


class Lent(NamedTuple):
    """A container, and what was in it before the call."""

    path: str
    container: Any
    content: list[tuple[Any, Any]]


def lent(named: Iterable[tuple[str, Any]]) -> list[Lent]:
    """The containers in these arguments, however deep."""
    left = [(path, value) for path, value in named if type(value) in _CONTAINERS]
    found: list[Lent] = []
    while left:
        path, value = left.pop()
        content = items(value)
        if type(value) is not tuple:
            found.append(Lent(path, value, content))
        left += [(f"{path}[{k!r}]", each) for k, each in content if type(each) in _CONTAINERS]
    return found


def tell_of_changes(before: Sequence[Lent]) -> None:
    for path, container, content in before:
        now = items(container)
        pairs = zip(now, content, strict=False)
        if len(now) != len(content) or any(a[0] != b[0] or a[1] is not b[1] for a, b in pairs):
            tell(
                f"the module changes what is in {path}, a {type(container).__name__} of the "
                "caller's; the program leaves it as it is. Return what is to be seen.",
            )


_CONTAINERS = frozenset((list, dict, tuple, OrderedDict, defaultdict, deque))
