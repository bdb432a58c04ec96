"""What a recorded function leaves behind in Python: in attributes, lists, variables of others.

A capture runs both branches of a condition, and the body of a loop once; eager runs one of them, or
runs it many times. So what stays in Python would be another thing than eager's, and is refused; but
a buffer that is replaced is a value like one that is written to, and the operator carries it out.
Must not look at tensors' values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from lostwax.capture.control.held_by_modules import HeldByModules, ModulesMoment
from lostwax.capture.control.places import Change, Place, Places
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.python.hidden_state import TorchSettings
from lostwax.capture.python.iterators import Stream
from lostwax.capture.python.reach import Reach
from lostwax.capture.state.global_state import KeptBefore, read_keeper
from lostwax.errors import CaptureError
from lostwax.identity import Seen
from lostwax.location import is_user_code, user_location


class ReplacedBuffer(NamedTuple):
    """A buffer of a module in whose place a function has put another tensor."""

    buffers: dict[str, Any]
    name: str
    tensor: torch.Tensor
    value: Any = None
    """The tensor's value when the function ended."""

    def is_same_place(self, other: ReplacedBuffer) -> bool:
        return self.buffers is other.buffers and self.name == other.name


class PythonMoment(NamedTuple):
    """What was kept outside of modules at one moment."""

    kept: dict[Any, Any]
    """In globals and variables that functions set."""
    places: dict[Any, Any]
    """In what the functions that have run so far name and hold."""


class PythonState:
    """All that the program's functions may keep something in."""

    def __init__(self, modules: Sequence[nn.Module], reach: Reach, kept: KeptBefore) -> None:
        self.reach = reach
        self.held = HeldByModules(modules)
        self.watched = Seen()
        for each in modules:
            self.watched.add(each)
        self._kept = kept
        self.places = Places(self.watched, opens_watched=False)
        """What functions name and hold that have begun, as it was before they did."""
        self.places.note("a setting of torch's", TorchSettings(), "settings")
        for function in reach.functions:
            self.places.add(function.__name__, function)
        reach.add_look(lambda found: self.places.add("a function", found.function))

    def look(self) -> PythonMoment:
        """This moment."""
        kept = {key: read_keeper(keeper) for key, (keeper, _) in self._kept.items()}
        if self.places.sets_attributes:
            self.places.open_fakes()
        return PythonMoment(kept, self.places.look())

    def find_change(self, since: PythonMoment) -> Change | None:
        """What has changed. Of functions that began since, we know what was there before they
        did."""
        for key, (keeper, found) in self._kept.items():
            was = since.kept.get(key, found)
            if hasattr(keeper, "name") and not _is_same(was, read_keeper(keeper)):
                return Change(str(keeper.name))
        return self.places.find_change(since.places)

    def list_changes(self, since: PythonMoment) -> Iterator[tuple[Any, Place]]:
        """Yield all that has changed since, with what was there."""
        for key, (keeper, found) in self._kept.items():
            if hasattr(keeper, "name"):
                before: Any = since.kept.get(key, found)
                was, now = before[0], read_keeper(keeper)[0]
                if was is not now:
                    yield key, Place(str(keeper.name), keeper, [("", was)])
        yield from self.places.list_changes(since.places)


class SideEffects:
    """What functions leave in Python that are recorded one after the other, and nothing between
    them: while none has changed anything, what was before the first of them is before all."""

    def __init__(self, tracer: Any, functions: Sequence[Callable[..., Any]]) -> None:
        if tracer.python_state is None:
            tracer.python_state = PythonState(*tracer.watched)
        self._state: PythonState = tracer.python_state
        self._before = self._state.look()
        self._own = Places(self._state.watched)
        """What the functions can reach by themselves."""
        for each in functions:
            self._own.add("a value", each)
        self._own.leads_on |= bool(_has_any_global_hook())
        self._held: ModulesMoment | None = None
        """What modules hold, if the functions may get at all of them."""
        found = self._own.buffers
        if self._own.leads_on:
            self._held = self._state.held.look()
            found = self._state.held.buffers
        self._buffers = [(buffers, buffers.copy()) for buffers in found]

    def take_arguments(self, args: Sequence[Any]) -> None:
        """What a function is given is not its own, either."""
        self._own.add("an argument", args)
        if self._own.leads_on and self._held is None:
            self._held = self._state.held.look()
        is_set = self._own.sets_attributes or self._state.places.sets_attributes
        if is_set or self._own.leads_on:
            self._own.open_fakes()

    def take_buffers(self) -> list[ReplacedBuffer]:
        """The buffers that were replaced; they are put back."""
        found: list[ReplacedBuffer] = []
        for buffers, before in self._buffers:
            for name, was in before.items():
                now = buffers.get(name)
                if now is not was and isinstance(now, torch.Tensor):
                    found.append(ReplacedBuffer(buffers, name, now))
                    buffers[name] = was
        return found

    def check(self, what: str) -> None:
        """Refuse what a function has changed; `what` is the function to the user."""
        changed = self._state.find_change(self._before)
        if changed is None and self._held is not None:
            changed = self._state.held.find_change(self._held)
        changed = changed or self._own.find_change({})
        if changed is not None:
            self._refuse(what, changed)

    def _refuse(self, what: str, changed: Change) -> None:
        users = [f for f in self._own.functions if is_user_code(f.__code__)]
        names = [each for each in changed if isinstance(each, str)]
        lines = [
            line_that_sets(name, functions)
            for functions in (users, self._state.reach.functions)
            for name in names
        ]
        line = next(filter(None, lines), None) or user_location()
        raise CaptureError(
            f"{what} changes {changed.name}, which is not its own.\n  at {line}\n"
            "  why: a capture runs each function once, eager runs one of two branches, or a loop's "
            "body many times: what stays in Python would be another thing than eager's\n"
            "  instead: return the value, and use what the operator returns; tensors that are "
            "written to in place, and buffers, are carried"
        )


def _is_same(was: Any, now: Any) -> bool:
    (value, content), (found, there) = was, now
    if value is not found:
        return False
    if isinstance(content, Stream):
        return not content.is_moved()
    if not isinstance(content, list):
        return True
    pairs = zip(content, there, strict=False)
    return len(content) == len(there) and all(a is c and b is d for (a, b), (c, d) in pairs)
