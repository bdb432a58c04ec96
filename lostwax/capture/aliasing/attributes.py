"""What users put on tensors, `mask.is_causal = True`, where a tensor may be one of several.

After `y = a if c else b` a program has a third tensor, and eager one of the two, with what is on
it. Where both have the same on them, or what can become one, the third has it, too; else it is
refused when it is asked for. And what is put on one of them later would have to show on the other.
Must not record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import Held, read_attributes, select_attributes
from lostwax.identity import ByIdentity
from lostwax.location import NOWHERE, Location

Attributes = list[tuple[str, Any]]


class _Joined(NamedTuple):
    """What is on a tensor of the program, and on those of which it is one in eager."""

    held: Sequence[Held]
    found: list[Attributes]
    """As it was when they were joined."""
    names: set[str]
    """What is not on the first, and may be in eager."""
    by: Any
    """In which `if` of Python's they join, if it is one."""


class JoinedAttributes:
    """The tensors of one capture of which data decide what is on them."""

    def __init__(self) -> None:
        self._joined: ByIdentity[Held, _Joined] = ByIdentity()
        self._new: list[_Joined] = []

    def __bool__(self) -> bool:
        return bool(self._joined)

    def note(self, held: Held, others: Iterable[Any], names: set[str], by: Any = None) -> None:
        """What is on a tensor, which is in eager one of the others, if there are any; `names` are
        those of what may be on it, too."""
        tensors = [each for each in others if isinstance(each, torch.Tensor)]
        joined = _Joined([held, *map(read_attributes, tensors)], [], names, by)
        self._joined[held] = joined
        self._new.append(joined)

    def settle(self) -> None:
        """All is put on them that is there where the ways join."""
        for joined in self._new:
            joined.found[:] = map(select_attributes, joined.held)
        self._new.clear()

    def find_names(self, tensor: torch.Tensor) -> set[str]:
        """What may be on a tensor, and is not."""
        joined = self._joined.get(read_attributes(tensor)) if self._joined else None
        return set() if joined is None else joined.names

    def check_read(self, tensor: torch.Tensor, name: str = "") -> None:
        """Python asks for an attribute that is not there, or for all that are."""
        names = self.find_names(tensor)
        if name in names or (names and not name):
            error = CaptureError.here(
                f"{name or 'the attributes'} of a tensor was asked for, and data decide what is "
                "on it",
                why="it was put on a tensor in Python, and not on all that this one may be, or "
                "not the same",
                instead="keep it in a variable beside the tensor, and give that a value on both "
                "sides",
            )
            error.joined = self._joined[read_attributes(tensor)].by  # type: ignore[attr-defined]
            raise error

    def check_kept(self, find_line: Callable[[str], Location | None]) -> None:
        """Refuse what was put on one of several tensors after they were joined; `find_line` finds
        the line that sets an attribute."""
        for joined in map(self._joined.__getitem__, self._joined):
            for held, before in zip(joined.held, joined.found, strict=True):
                old, new = dict(before), dict(select_attributes(held))
                for name in {**old, **new} if len(joined.held) > 1 else ():
                    if old.get(name, joined) is not new.get(name, joined):
                        raise _refuse_set(name, find_line(name), joined.by)


def _refuse_set(name: str, line: Location | None, by: Any) -> CaptureError:
    error = CaptureError(
        f"{name} is set on a tensor, and data decide which tensor it is.\n  at {line or NOWHERE}\n"
        "  why: it would be on one of those that it may be, too, and a program has another tensor\n"
        "  instead: keep it in a variable beside the tensor; or set it on a copy, y = y.clone()"
    )
    error.joined = by  # type: ignore[attr-defined]
    return error


def list_attributes(tensor: torch.Tensor) -> Attributes:
    """What users have put on a tensor."""
    return select_attributes(read_attributes(tensor))
