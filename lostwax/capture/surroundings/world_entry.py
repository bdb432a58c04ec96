"""What a look finds in one place, compared with what an earlier look found there.

Must not look at anything itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from lostwax.capture.heap.cached import contains_all_results


class WorldEntry(NamedTuple):
    """The object in one place, or its content. `kind` says which of them must stay the same."""

    kind: str
    held: Any
    content: Any = None

    def is_same(self, other: WorldEntry) -> bool:
        if self.kind == other.kind == "cache":
            return self.held is other.held and contains_all_results(other.content, self.content)
        if self.kind == other.kind == "order" and set(self.content) != set(other.content):
            return True  # new keys, and keys that are gone, have entries of their own
        if self.kind != other.kind:
            return False
        if self.kind in _BY_IDENTITY and self.held is not other.held:
            return False
        return bool(self.content == other.content)

    def describe_change(self, before: WorldEntry) -> str:
        """The difference between this entry and an earlier one of the same place, in words."""
        kind, is_same = self.kind, self.held is before.held
        if kind != before.kind:
            return f"was {before}, is {self}"
        if kind in _CHANGES:
            return _CHANGES[kind]
        if kind == "state" and self.held is not None and before.held is not None:
            return self._describe_state_change(before)
        if kind == "tensor" and is_same:
            return "was written to, or has another type or memory now"
        if kind == "kind" and is_same:
            is_module = isinstance(self.held, nn.Module) and self.content[0] is before.content[0]
            return "has other submodules" if is_module else "is of another class now"
        if kind == "kind" and type(self.held) is type(before.held):
            return "has other submodules"
        return "is another object now" if kind in _BY_IDENTITY else f"was {before}, is {self}"

    def _describe_state_change(self, before: WorldEntry) -> str:
        if self.content[0] != before.content[0]:
            return f"is one of the {self.content[0].strip('_')} now"
        if self.content[1] != before.content[1]:
            return f"was one tensor with {before.content[1]}, is one with {self.content[1]}"
        return "has another dtype or size now, or requires gradients otherwise"

    def __str__(self) -> str:
        is_shown = self.kind == "value" or self.held is None
        text = repr(self.held) if is_shown else f"a {type(self.held).__name__}"
        return text if len(text) < 80 else f"{text[:80]}..."


_BY_IDENTITY = ("object", "tensor", "module")
_CHANGES = {
    "memory": "is other memory now",
    "cache": "has lost something",
    "order": "are in another order",
}
