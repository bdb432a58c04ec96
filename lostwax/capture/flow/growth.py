"""Lists that get longer in the body of a loop: what a turn appends becomes a row of a result of the
loop, which is a `scan` then.

The list itself has to be one that knows of such rows (`lists.py`): where it is a plain one, the
capture begins anew, and the function makes it so. Must not record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from lostwax.branches import OUTERMOST
from lostwax.capture.control.loops import describe_type
from lostwax.capture.control.scope import are_equal
from lostwax.capture.flow.heap import ChangedPlace
from lostwax.capture.flow.lists import Pending, Rows
from lostwax.capture.flow.merging import Logged, Outcome, fill_like
from lostwax.capture.python.containers import members
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.location import Location
from lostwax.types import TensorType, contiguous_strides


class GrowError(BaseException):
    """A loop appends to lists that are variables of functions which run: they have to be made as
    such that know of rows. (No `Exception`: the user's code is not to catch it.)"""

    def __init__(
        self,
        code: CodeType,
        at: tuple[int, int],
        makers: Sequence[tuple[CodeType, list[str]]],
        refusal: CaptureError,
    ) -> None:
        self.code, self.at = code, at
        self.makers = makers
        """The functions that may have made them, with the variables."""
        self.refusal = refusal
        """What to raise if they are no such lists then, either."""
        super().__init__("a loop appends to a list")


class Growth:
    """One list that a loop appends to."""

    def __init__(self, place: ChangedPlace, where: Location) -> None:
        self.name = place.name
        self._place, self._where = place, where
        self.reads_last = False
        """Does the body read what the turn before has appended?"""
        self._types: list[TensorType] = []
        added = _find_added(place)
        self._is_nested = any(isinstance(each, Rows) for each in added)
        """Is it appended to by a loop inside of the loop?"""
        self.count = len(added)
        """How many rows the loop returns for it: so many are appended in each turn."""
        self._per_turn = sum(each.length if isinstance(each, Rows) else 1 for each in added)
        self._sample = added[-1]

    def find_first(self, tracer: Tracer) -> Any:
        """What is last in the list before the loop; if there is nothing, something of the type of
        what is appended."""
        if not self._place.before:
            if not isinstance(self._sample, Rows):
                return fill_like(tracer, self._sample, lambda _: False)
            rows = self._sample.tensor
            return torch.zeros(rows.shape[1:], dtype=rows.dtype, device=rows.device)
        last = self._place.before[-1][1]
        if isinstance(last, Pending):
            return last.read_last()
        return last.take(-1) if isinstance(last, Rows) else last

    def read_first(self, tracer: Tracer, count: Callable[[], Any]) -> Any:
        """The same, for the body, which reads it if there is one."""
        self.reads_last = True
        if not self._place.before:
            torch._check(count() > 0, lambda: "list index out of range")
        return self.find_first(tracer)

    def count_appended(self, turn: Any) -> Any:
        """How many elements earlier turns have appended."""
        return self._per_turn * turn

    def read(self, place: ChangedPlace, outcome: Outcome) -> list[Logged]:
        """What a turn has appended; called while the body is recorded."""
        added = _find_added(place)
        if len(added) != self.count:
            raise self.refuse(
                f"{self.name} gets longer by {self.count} in one turn, and by {len(added)} in "
                "another",
                "what is appended becomes rows of a tensor",
                "append as many tensors in each turn",
            )
        for value in added:
            if not isinstance(value, (torch.Tensor, Rows)):
                raise self.refuse(
                    f"a {type(value).__name__} is appended to {self.name}",
                    "what is appended becomes rows of a tensor",
                    "append tensors, torch.tensor(value), each kind to a list of its own",
                )
        tensors = [each.in_order(9) if isinstance(each, Rows) else each for each in added]
        outcome.log(tensors)
        found = [outcome.find(each) for each in tensors]
        for each in found:
            if each.root in outcome.scope.writes:
                raise self.refuse(
                    f"a tensor is appended to {self.name} that the loop writes to",
                    "the elements of the list would all show what the last turn has written",
                    "append a copy, x.clone()",
                )
        self._types = [each.value.type for each in found if each.value.type is not None]
        if len(found) > 1 and (
            self._is_nested or any(not _is_alike(self._types[0], t) for t in self._types)
        ):
            raise self.refuse(
                f"tensors of several types are appended to {self.name} in each turn",
                "what is appended becomes rows of a tensor",
                "append each kind to a list of its own",
            )
        return found

    def check_sizes(self, new: Sequence[Any]) -> None:
        """Refuse sizes that are others in each turn: in which these symbols are."""
        for t in self._types:
            symbols = {s for size in t.size if not isinstance(size, int) for s in size.symbols()}
            if symbols & set(new):
                raise self.refuse(
                    f"what is appended to {self.name} has another size in each turn, "
                    f"{describe_type(t)}",
                    "what is appended becomes rows of a tensor",
                    "pad it to a size that each turn has",
                )

    def put_pending(self, count: Callable[[], Any], read_last: Callable[[], Any]) -> None:
        """A turn is to be recorded: the list has what earlier turns have appended."""
        self._write(Pending(count, read_last))

    def put_rows(self, results: Sequence[Any], tracer: Tracer) -> None:
        """The loop is over: the list has what it has appended."""
        tensor, t = results[0], self._types[0]
        if len(results) > 1:
            # In eager the elements are tensors that others may hold, and here they are copies.
            tensor = torch.stack([*results], 1)
            root = tracer.adopt(tensor).tracked.root
            tracer.maybe_shared[root] = f"the body of `{self._where.text}`"
        if len(results) > 1 or self._is_nested:
            tensor = tensor.flatten(0, 1)
        is_dense = are_equal(t.stride, contiguous_strides(t.size))
        self._write(Rows(tensor, self._where, is_dense))

    def _write(self, last: Any) -> None:
        before = self._place.before
        self._place.write([*before, (len(before), last)])

    def refuse(self, what: str, why: str, instead: str) -> CaptureError:
        return CaptureError(
            f"in a loop whose number of turns is known only when the program runs, {what}.\n"
            f"  at {self._where}\n  why: {why}\n  instead: {instead}"
        )


def _find_added(place: ChangedPlace) -> list[Any]:
    return [value for _, value in place.after[len(place.before) :]]


def _is_alike(one: TensorType, other: TensorType) -> bool:
    return (one.dtype, one.device, one.ndim) == (other.dtype, other.device, other.ndim) and (
        are_equal(one.size, other.size)
    )


def is_longer(place: ChangedPlace) -> bool:
    """Is it a list to which something was appended?"""
    before, after = place.before, place.after
    return (
        isinstance(place.holder, list)
        and len(after) > len(before)
        and all(a is b for (_, a), (_, b) in zip(before, after, strict=False))
    )


def find_makers(holder: Any, frame: FrameType | None) -> list[tuple[CodeType, list[str]]]:
    """The functions that run, from this one on, with the variables that are this list or have it
    in them."""
    found: list[tuple[CodeType, list[str]]] = []
    while frame is not None and frame.f_code not in OUTERMOST:
        own = frame.f_locals
        names = [name for name in own if own[name] is holder or _has(own[name], holder)]
        if names:
            found.append((frame.f_code, names))
        frame = frame.f_back
    return found


def _has(container: Any, holder: Any) -> bool:
    kinds = (list, tuple, dict)
    return type(container) in kinds and any(each is holder for each in members(container))


def refuse_held(place: ChangedPlace, where: Location) -> CaptureError:
    return CaptureError(
        f"{place.name} gets longer in a loop whose number of turns is known only when the program "
        f"runs, and is not made as [] in a function that runs.\n  at {where}\n"
        "  why: others hold the list, who would take it for as long as it was\n"
        f"  instead: found = [], as a variable, and append to that"
    )


def refuse_unknown(place: ChangedPlace, where: Location, is_left: bool) -> CaptureError:
    how = "may be left before its end" if is_left else "is a `while`"
    return CaptureError(
        f"{place.name} gets longer in a loop that {how}.\n  at {where}\n"
        "  why: how many elements it has is known only when the loop has run\n"
        "  instead: for i in range(n), to the end; or write to a tensor of the largest size, "
        "out[i] = x, and hand on how many there are"
    )
