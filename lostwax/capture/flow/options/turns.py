"""What a variable is of which the turns of a loop hand on parts, and which is not there before the
loop: what is no tensor and no number in it is the same after each turn. Must not record.
"""

from __future__ import annotations

from typing import Any

import torch

from lostwax.capture.flow.merging import NOTHING, Path, list_leaves
from lostwax.capture.flow.numbers import find_kind
from lostwax.capture.heap.holders import MISSING

Found = dict[Path, tuple[str, Any, Any]]


class Parts:
    """The parts of variables, by where they are."""

    def __init__(self) -> None:
        self._constants: dict[Path, Any] = {}

    def begin(self, path: Path, name: str, after: Any, found: Found) -> None:
        """Let the turns hand on what is in this after the first."""
        for at, part, value in list_leaves(path, name, after):
            if at == path or isinstance(value, torch.Tensor) or find_kind(value):
                found[at] = part, NOTHING, value
            else:
                self._constants[at] = value

    def put(self, path: Path, value: Any, shown: dict[Path, Any], made: list[Any]) -> Any:
        """A value with other parts in it; `made`: notes the containers that are made."""
        known = {**self._constants, **shown}
        return self._put(path, value, known, made)

    def _put(self, path: Path, value: Any, known: dict[Path, Any], made: list[Any]) -> Any:
        if path in known:
            return known[path]
        inner = [each for each in known if each[: len(path)] == path]
        if not inner:
            return value
        if value is MISSING or value is NOTHING:  # a tuple of what was not there before the loop
            keys = sorted({each[len(path)] for each in inner})
            return tuple(self._put((*path, k), MISSING, known, made) for k in keys)
        if isinstance(value, dict):
            made.append({k: self._put((*path, k), v, known, made) for k, v in value.items()})
        else:
            new = [self._put((*path, k), v, known, made) for k, v in enumerate(value)]
            is_named = hasattr(value, "_fields")
            made.append(type(value)(*new) if is_named else type(value)(new))
        return made[-1]
