"""How much a file tells of the user's source: `save(..., metadata=...)`.

`"full"` has the whole stack trace of each node, with the paths of this machine. `"lines"` has the
innermost line, its file without the names of folders that are this machine's. `"none"` has no
lines. The texts that the user wrote (messages, annotations) are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lostwax.errors import SaveError
from lostwax.ir.text import shorten_trace
from lostwax.location import NOWHERE, Location, shorten_path, shorten_places, strip_places

Text = TypeVar("Text", str, str | None)
AMOUNTS = ("none", "lines", "full")


class Lines:
    """Writes lines of the user's source, as many as are wanted."""

    def __init__(self, amount: Any) -> None:
        if not isinstance(amount, str) or amount not in AMOUNTS:
            raise SaveError(
                f"metadata is {amount!r:.80}, and says how much of your source the file tells\n"
                '  instead: "lines", the innermost line of each node, without absolute paths; '
                '"full", whole stack traces; "none", no lines'
            )
        self.amount = amount
        self._traces: dict[str, str] = {}

    def write_trace(self, trace: str) -> str:
        """A stack trace; many nodes have the same one."""
        if self.amount == "full":
            return trace
        if self.amount == "none":
            return ""
        found = self._traces.get(trace)
        if found is None:
            found = self._traces[trace] = shorten_trace(trace)
        return found

    def write_place(self, where: Location) -> dict[str, Any]:
        """A location, which `read_place` reads."""
        where = NOWHERE if self.amount == "none" else where
        file = where.file if self.amount == "full" else shorten_path(where.file)
        return {"file": file, "line": where.line, "function": where.function, "text": where.text}

    def write_text(self, text: Text) -> Text:
        """A text of ours, if there is one, that may name locations."""
        if text is None or self.amount == "full":
            return text
        return strip_places(text) if self.amount == "none" else shorten_places(text)


WHOLE = Lines("full")
"""For programs that stay in this process."""


def read_place(given: Mapping[str, Any]) -> Location:
    """The location that `write_place` wrote. No file is opened for it."""
    place = Location(str(given["file"]), int(given["line"]), str(given["function"]))
    place.__dict__["text"] = str(given["text"])  # else asking for it would open a file of that name
    return place
