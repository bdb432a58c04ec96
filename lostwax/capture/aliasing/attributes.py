"""What users put on tensors, `mask.is_causal = True`, where a tensor may be one of several.

After `y = a if c else b` a program has a third tensor, and eager one of the two, with what is on
it. Where both have the same on them, or what can become one, the third has it, too; else it is
refused when it is asked for. And what is put on one of them later would have to show on the other:
it is refused where it is put. Must not record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from lostwax.branches import MergeSite
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import Held, is_user_attribute, read_attributes, select_attributes
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.location import PASSING_ON
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)


class MergedAttributes:
    """The tensors of one capture whose attributes depend on data."""

    def __init__(self) -> None:
        self._names: ByIdentity[Held, list[tuple[set[str], MergeSite | None]]] = ByIdentity()
        """What is not on a tensor, and may be in eager; in which `if` of Python's that came about,
        if it is one. A later one takes nothing back."""
        self._several: ByIdentity[Held, MergeSite | None] = ByIdentity()
        """Those that may be others, too, and these; in which `if` their ways have merged."""

    def __bool__(self) -> bool:
        return bool(self._names)

    def note(
        self, held: Held, others: Iterable[Any], names: set[str], by: MergeSite | None = None
    ) -> None:
        """What is on a tensor, which is in eager one of the others, if there are any; `names` are
        those of what may be on it, too."""
        if names:
            self._names.setdefault(held, []).append((names, by))
        tensors = [each for each in others if isinstance(each, torch.Tensor)]
        for each in (held, *map(read_attributes, tensors)) if tensors else ():
            self._several.setdefault(each, by)

    def is_one_of_several(self, tensor: torch.Tensor) -> bool:
        """May it be another tensor in eager?"""
        return bool(self._several) and read_attributes(tensor) in self._several

    def find_names(self, tensor: torch.Tensor) -> set[str]:
        """The attributes that a tensor may have in eager, and does not have here."""
        held = read_attributes(tensor) if self._names else {}
        return {name for names, _ in self._names.get(held) or () for name in names - held.keys()}

    def check_read(self, tensor: torch.Tensor, name: str = "") -> None:
        """Python asks for an attribute that is not there; or for all that are, to read them or to
        put one there."""
        asked = self.find_names(tensor)
        if name in asked or (not name and (asked or self.is_one_of_several(tensor))):
            error = CaptureError.here(
                f"{name or 'the attributes'} of a tensor was asked for, and data decide what is "
                "on it",
                why="it was put on a tensor in Python, and not on all that this one may be, or "
                "not the same",
                instead="keep it in a variable beside the tensor, and give that a value on both "
                "sides",
            )
            held = read_attributes(tensor)
            ways = [by for names, by in self._names.get(held) or () if not name or name in names]
            error.joined = ways[0] if ways else self._several[held]  # type: ignore[attr-defined]
            raise error

    def check_put(self, tensor: torch.Tensor, name: str) -> None:
        """Python sets an attribute of a tensor, or deletes it."""
        if self.is_one_of_several(tensor):
            error = CaptureError.here(
                f"{name} is set on a tensor, and data decide which tensor it is",
                why="it would be on one of those that it may be, too, and a program has another "
                "tensor",
                instead="keep it in a variable beside the tensor; or set it on a copy, y = "
                "y.clone()",
            )
            error.joined = self._several[read_attributes(tensor)]  # type: ignore[attr-defined]
            raise error


def watch_tensors(undo: Undo) -> None:
    """From here on fakes report which attributes Python sets on them, and deletes."""
    for name, telling in (("__setattr__", _put), ("__delattr__", _take)):
        undo.add(partial(setattr, FakeTensor, name, getattr(FakeTensor, name)))
        setattr(FakeTensor, name, telling)


def _put(self: FakeTensor, name: str, value: Any) -> None:
    is_other = is_user_attribute(name) and read_attributes(self).get(name, self) is not value
    object.__setattr__(self, name, value)
    if is_other and name in read_attributes(self):
        self.fake_mode.observer.note_put(self, name)


def _take(self: FakeTensor, name: str) -> None:
    if name in read_attributes(self):
        self.fake_mode.observer.note_put(self, name)
    object.__delattr__(self, name)


def list_attributes(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    """The attributes that users have set on a tensor."""
    return select_attributes(read_attributes(tensor))
