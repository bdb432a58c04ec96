"""What the original takes beside the arguments of the captured call: parameters with defaults.

A call may leave them out, or say what the default says. Must not know of structures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lostwax.errors import InputValueError
from lostwax.ir.leaves import described, same_constant


class Parameters(NamedTuple):
    """The parameters of a function as they were written, where some have defaults."""

    positional: tuple[str, ...]
    """Those that may be given by position, in order."""
    defaults: Mapping[str, Any]
    """Of all that have one of a plain type (None, bool, int, float, str)."""

    def as_captured(
        self, names: Sequence[str], count: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in the form of the captured one, which had `count` arguments by position, and
        these names. What cannot be brought into it stays as it is."""
        further = self.positional[count : len(args)]
        if len(args) > count + len(further) or not kwargs.keys().isdisjoint(further):
            return args, kwargs
        given = {**dict(zip(further, args[count:], strict=True)), **kwargs}
        for name in given.keys() - set(names):
            if name in self.defaults:
                self._check(name, given.pop(name))
        missing = [name for name in names[min(len(args), count) :] if name not in given]
        given |= {name: self.defaults[name] for name in missing if name in self.defaults}
        return args[:count], given

    def _check(self, name: str, value: Any) -> None:
        default = self.defaults[name]
        if not same_constant(value, default):
            raise InputValueError(
                f"{name} is {described(value)}, but it was left out at capture, and its default, "
                f"{default!r}, is baked into the program\n"
                f"  fix: leave {name} out, or capture again with it",
                name,
            )
