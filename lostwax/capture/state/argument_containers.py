"""Warns if the module changes a list or dict of the caller's: a program leaves them as they are.

Must not look into other classes registered with pytree: each call makes their objects again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from lostwax.capture.heap.contents import find_change
from lostwax.capture.heap.holders import Content, items
from lostwax.capture.python.assignments import line_that_puts
from lostwax.capture.state.unkept_changes import warn_of_change
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor


class ArgumentContainer(NamedTuple):
    """A container among the arguments, and its content before the call."""

    path: str
    container: Any
    content: Content


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


def warn_of_changes(before: Sequence[ArgumentContainer], ran: Sequence[FunctionType]) -> None:
    """Warn of containers that hold something else; refuse those of which the program keeps a part.
    `ran` are the user's functions that ran."""
    for each in before:
        path, container, content = each
        if find_change(container, content) is not None:
            _refuse_kept_in_part(each, before, ran)
            warn_of_change(
                f"the module changes what is in {path}, a {type(container).__name__} of the "
                "caller's; the program leaves it as it is. Return what is to be seen.",
            )


def _refuse_kept_in_part(
    changed: ArgumentContainer,
    all_of_them: Sequence[ArgumentContainer],
    ran: Sequence[FunctionType],
) -> None:
    """Refuse a container (a cache, `cache["k"]`) in which a tensor is written to, which the caller
    finds there, and another value is put in the place of one, which he would not find."""
    path, now = changed.path, dict(items(changed.container))
    replaced = [key for key, value in changed.content if now.get(key, value) is not value]
    written = [
        f"{each.path}[{key!r}]"
        for each in all_of_them
        for key, value in each.content
        if each.path.partition("[")[0] == path.partition("[")[0]
        and type(value) is FakeTensor
        and value.tracked.root.version
    ]
    if replaced and written:
        line = line_that_puts(replaced[0], ran)
        at = "" if line is None else f"\n  at {line}"
        raise CaptureError(
            f"the module puts another value into {path}[{replaced[0]!r}], a "
            f"{type(changed.container).__name__} of the caller's, and writes to the tensor in "
            f"{written[0]}.{at}\n"
            "  why: the next call of the original finds both there; a program writes to tensors, "
            "and leaves containers as they are\n"
            f"  instead: write into the tensor that is there, {path}[{replaced[0]!r}].copy_(...); "
            "and keep a number in a tensor, torch.tensor(0)"
        )


_CONTAINERS = frozenset((list, dict, tuple, OrderedDict, defaultdict, deque))
