"""What passes did to a program: before, after, and how long it took.

Programs share their weights, so keeping them costs little; text is made when somebody asks for it.
Must not run anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import unified_diff

from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import graph_text


@dataclass(frozen=True)
class Entry:
    """One pass: its name, its options, the program before and after it."""

    name: str
    options: str
    before: ExportedProgram
    after: ExportedProgram
    seconds: float

    @property
    def nodes(self) -> tuple[int, int]:
        """The number of nodes before and after."""
        return len(self.before.graph.nodes), len(self.after.graph.nodes)

    @property
    def changed(self) -> bool:
        """Did the pass change the graph?"""
        return graph_text(self.before.graph) != graph_text(self.after.graph)

    def diff(self, context: int = 2) -> str:
        """The lines of the graph that were removed and added."""
        lines = unified_diff(
            graph_text(self.before.graph).splitlines(),
            graph_text(self.after.graph).splitlines(),
            f"before {self.name}",
            f"after {self.name}",
            lineterm="",
            n=context,
        )
        return "\n".join(lines)


@dataclass
class Journal:
    """The passes that were run, in order: `pipeline(program, journal=journal)`."""

    entries: list[Entry] = field(default_factory=list)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, which: int | str) -> Entry:
        """The entry at an index, or the last one of a name."""
        if isinstance(which, int):
            return self.entries[which]
        for entry in reversed(self.entries):
            if entry.name == which:
                return entry
        ran = ", ".join(entry.name for entry in self.entries) or "none"
        raise KeyError(f"no pass {which!r} was run; there were: {ran}")

    def __str__(self) -> str:
        width = max([len(e.name) for e in self.entries], default=0)
        return "\n".join(
            f"{e.name:<{width}}  {e.nodes[0]:>5} → {e.nodes[1]:>5} nodes  {e.seconds * 1e3:8.1f} ms"
            for e in self.entries
        )
