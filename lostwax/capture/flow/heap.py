"""What Python code may keep something in, at one moment: it can be put back.

Variables of the function that runs are not among it: who runs the function sets them. Must not know
what is done with the changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType
from typing import Any, NamedTuple

from lostwax.branches import OUTERMOST
from lostwax.capture.control.places import Place, Places, list_content, read_place, write_place
from lostwax.capture.control.side_effects import PythonState
from lostwax.capture.flow.rewriting.names import show_name
from lostwax.capture.python.containers import GONE
from lostwax.capture.state.global_state import ClosureCell, WrittenGlobal
from lostwax.capture.trace.tracer import Tracer
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.location import Location

Content = list[tuple[Any, Any]]
_VARIABLES = (WrittenGlobal, ClosureCell)
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))


class Unmovable(Exception):
    """Something has changed that cannot be put back: `what`."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


class ChangedPlace(NamedTuple):
    """A container, an object's attributes, or a variable of another function or of a module."""

    name: str
    holder: Any
    before: Content
    after: Content
    is_lasting: bool
    """Was it there before the call? Then the next call finds what is left in it, which a program
    does not keep if it is no tensor."""

    def write(self, content: Content) -> None:
        write_holder(self.holder, content)


Changes = dict[Any, ChangedPlace]


class Heap:
    """One moment."""

    def __init__(self, tracer: Tracer, variables: Mapping[str, Any]) -> None:
        if tracer.python_state is None:
            assert tracer.watched is not None
            tracer.python_state = PythonState(*tracer.watched)
        self._state: PythonState = tracer.python_state
        self._kept = self._state.look()
        self._own = Places(self._state.watched)
        for name, value in variables.items():
            self._own.add(show_name(name), value)
        self._own.open_fakes()
        self._held = self._state.held.look()

    def knows(self, value: Any) -> bool:
        """Was this object there at that moment?"""
        found = (self._own, self._state.places, self._held.places)
        return any(each.has_seen(value) for each in found) or self._held.snapshot.holds(value)

    def take_changes(self) -> Changes:
        """What has changed since this moment; it is put back."""
        if self.is_untouched():
            return {}
        found: Changes = {}
        for lasting, (key, (name, holder, content)) in self.list_changes():
            before, after = list_content(content), read_holder(holder)
            if before is None or after is None:
                raise Unmovable(name)
            lasts = lasting(name, holder) or (key in found and found[key].is_lasting)
            found[key] = ChangedPlace(name, holder, before, after, lasts)
        for place in found.values():
            place.write(place.before)
        self._state.held.forget()
        if not self.is_untouched():
            raise Unmovable("something")
        return found

    def list_contents(self) -> Iterator[tuple[Any, Content, Content]]:
        """Yield the places that hold something else than they did, with what was in them, and what
        is."""
        for _, (_, (_, holder, content)) in self.list_changes():
            before, after = list_content(content), read_holder(holder)
            if before is not None and after is not None:
                yield holder, before, after

    def list_left(self) -> list[str]:
        """The names of what holds other numbers or words than it did, among globals, closures and
        what they lead to. (Tensors and modules are put back by who captures.)"""
        found: list[str] = []
        for _, (name, holder, content) in self._state.list_changes(self._kept):
            before, after = list_content(content), read_holder(holder)
            if before is None or after is None:
                continue
            old, new = dict(before), dict(after)
            for key in [*old, *(new.keys() - old.keys())]:
                pair = old.get(key, GONE), new.get(key, GONE)
                if all(each is GONE or isinstance(each, _NUMBERS) for each in pair):
                    found += [name] if pair[0] != pair[1] else []
        return list(dict.fromkeys(found))

    def is_untouched(self) -> bool:
        """Is everything as it was?"""
        state = self._state
        if state.find_change(self._kept) is not None or self._own.find_change({}) is not None:
            return False
        return state.held.find_change(self._held) is None

    def list_changes(self) -> Iterator[tuple[Callable[[str, Any], bool], tuple[Any, Place]]]:
        """Yield the changes, each with what tells whether it is lasting."""
        yield from ((_is_outside, each) for each in self._state.list_changes(self._kept))
        yield from ((lambda *_: False, each) for each in self._own.list_changes({}))
        held = self._state.held.list_changes(self._held)
        yield from ((lambda *_: True, each) for each in held)


def read_holder(holder: Any) -> Content | None:
    """What is in a place now; None if that cannot be put back."""
    return [("", holder.value)] if isinstance(holder, _VARIABLES) else read_place(holder)


def write_holder(holder: Any, content: Content) -> None:
    if isinstance(holder, _VARIABLES):
        holder.put(content[0][1])
    else:
        write_place(holder, content)


def refuse_numbers(place: ChangedPlace, key: Any, values: Sequence[Any], where: Location) -> None:
    """Refuse what data decide and the next call would find: a number that is no tensor."""
    if place.is_lasting and any(isinstance(each, (int, float, *SYMBOLIC)) for each in values):
        raise CaptureError(
            f"data decide what is left in {key or place.name}, a number that is there before the "
            f"call.\n  at {where}\n"
            "  why: the next call of the original finds it, and a program keeps tensors alone\n"
            '  instead: keep it in a buffer, self.register_buffer("n", torch.zeros(()))'
        )


def _is_outside(name: str, holder: Any) -> bool:
    """Is it no variable of a function that runs?"""
    if isinstance(holder, WrittenGlobal) or not isinstance(holder, (ClosureCell, CellType)):
        return True
    frame = sys._getframe()
    while frame is not None and frame.f_code not in OUTERMOST:
        if name in frame.f_code.co_cellvars:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True
