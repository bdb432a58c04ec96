"""Warns if the module changes a list or dict of the caller's: a program leaves them as they are.

Must not look into other classes registered with pytree: each call makes their objects anew.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lostwax.capture.python.containers import items
from lostwax.capture.state.unkept_changes import tell_of_change


class ArgumentContainer(NamedTuple):
    """A container among the arguments, and its content before the call."""

    path: str
    container: Any
    content: list[tuple[Any, Any]]


def find_containers(named: Iterable[tuple[str, Any]]) -> list[ArgumentContainer]:
    """The containers in these arguments, at any depth."""
    left = [(path, value) for path, value in named if type(value) in _CONTAINERS]
    found: list[ArgumentContainer] = []
    while left:
        path, value = left.pop()
        content = items(value)
        if type(value) is not tuple:
            found.append(ArgumentContainer(path, value, content))
        left += [(f"{path}[{k!r}]", each) for k, each in content if type(each) in _CONTAINERS]
    return found


def tell_of_changes(before: Sequence[ArgumentContainer]) -> None:
    for path, container, content in before:
        now = items(container)
        pairs = zip(now, content, strict=False)
        if len(now) != len(content) or any(a[0] != b[0] or a[1] is not b[1] for a, b in pairs):
            tell_of_change(
                f"the module changes what is in {path}, a {type(container).__name__} of the "
                "caller's; the program leaves it as it is. Return what is to be seen.",
            )


_CONTAINERS = frozenset((list, dict, tuple, OrderedDict, defaultdict, deque))
