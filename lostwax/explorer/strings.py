"""Texts that stand once in the data of a page, and are referred to by number; source lines."""

from __future__ import annotations

import linecache
from collections.abc import Hashable
from typing import Any

from lostwax.ir.text import list_frames
from lostwax.location import show_path

AROUND = 4
"""How many lines before and after a line of the user are shown."""


class Numbered:
    """Numbers things as they are met; equal ones have one number. What they are is in `items`."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, item: Any, key: Hashable = None) -> int:
        """The number of a thing, which is told from others by its key, or by itself."""
        key = item if key is None else key
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.items)
            self.items.append(item)
        return found


class Sources:
    """Where nodes come from: stacks of frames, and the text of the lines that they name."""

    def __init__(self, lines: bool) -> None:
        self.files = Numbered()
        self.frames = Numbered()
        self.stacks = Numbered()
        self._known: dict[str, int] = {}
        self._lines = lines

    def number(self, trace: str) -> int:
        """The number of a stack trace; -1 if it has no frame."""
        found = self._known.get(trace)
        if found is None:
            frames = tuple(self._frame(*frame) for frame in list_frames(trace))
            found = self._known[trace] = self.stacks.number(frames) if frames else -1
        return found

    def _frame(self, file: str, line: str, function: str, code: str) -> int:
        shown = {"path": show_path(file), "lines": {}}
        at = self.files.number(shown, file)
        frame = self.frames.number((at, int(line), function, code))
        lines = self.files.items[at]["lines"]
        if self._lines:
            for each in range(max(int(line) - AROUND, 1), int(line) + AROUND + 1):
                if each not in lines and (text := linecache.getline(file, each)):
                    lines[each] = text.rstrip("\n")[:300]
        return frame

    def to_json(self) -> dict[str, Any]:
        return {
            "files": self.files.items,
            "frames": self.frames.items,
            "stacks": self.stacks.items,
        }
