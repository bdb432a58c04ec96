"""Lists that get longer in the body of a loop.

What a turn appends becomes a row of a result of the loop, which is a `scan` then; or it is laid
behind what earlier turns have appended, in a tensor that is handed on from turn to turn (a store):
where the loop is no `scan`, or a turn appends more than another, or tensors differ in size.

The list itself has to be one that knows of such elements (`growing.py`): where it is a plain one,
the capture starts over, and the function makes it so. Must not know how the loop is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from lostwax.branches import OUTERMOST
from lostwax.capture.control.loops import describe_type
from lostwax.capture.flow.lists.blocks import MixedPieces
from lostwax.capture.flow.lists.columns import (
    Column,
    Columns,
    find_type,
    flatten_element,
    has_symbols,
    is_alike,
)
from lostwax.capture.flow.lists.spans import Appended, PendingElements, Pieces, Rows, Scalars
from lostwax.capture.flow.merging import Logged, Outcome
from lostwax.capture.flow.options.filling import fill_like
from lostwax.capture.heap.holders import members
from lostwax.capture.heap.moment import ChangedPlace
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.trace.views import Root
from lostwax.location import Location

_IN_TENSORS = (Rows, Scalars, Pieces, MixedPieces)
Store = tuple[int, str]
"""One of the tensors that is handed on: of which column, and what of it."""


class Growth:
    """One list that a loop appends to."""

    def __init__(self, tracer: Tracer, place: ChangedPlace, where: Location, is_scan: bool) -> None:
        added = _find_added(place)
        self._begin(tracer, place, where, added[-1])
        self.is_scan = is_scan
        self._count = len(added)
        self._measure(added)
        self._check_count(self._count, ())

    def _begin(self, tracer: Tracer, place: ChangedPlace, where: Location, sample: Any) -> None:
        self.name = place.name
        self._tracer, self._place, self._where = tracer, place, where
        self.is_scan = False
        """Are the elements rows of a `scan`? Else all of them are in stores."""
        self.reads_last = False
        """Does the body read what the turn before has appended?"""
        self.is_changed = False
        """Has the last recording shown that the elements have to be kept otherwise?"""
        self.rows: list[Logged] = []
        """What the last recording has appended: the rows of a `scan`."""
        self.roots: list[Root] = []
        """Whose memory the elements show, in eager."""
        self._after: dict[Store, torch.Tensor] = {}
        self._count = 0
        self._sample = sample
        self._kept = Columns(sample, tracer, where)
        self._columns = self._kept.list
        for leaf, column in zip(flatten_element(sample), self._columns, strict=True):
            if not column.is_known:
                raise self.refuse(
                    f"a {type(leaf).__name__} is appended to {self.name}",
                    "what is appended becomes rows of a tensor",
                    "append tensors, torch.tensor(value), numbers, and tuples of these",
                )

    def _measure(self, added: Sequence[Any]) -> None:
        self._is_nested = any(isinstance(each, Appended) for each in added)
        """Does something stand for what is appended: a loop, or a branch, inside of the loop?"""
        self._per_turn = sum(each.length if isinstance(each, Appended) else 1 for each in added)

    # ------------------------------------------------------------------------------ in the body

    def find_first(self) -> Any:
        """What is last in the list before the loop; if there is nothing, something of the type of
        what is appended."""
        if not self._place.before:
            if not isinstance(self._sample, Rows):
                return fill_like(self._tracer, self._sample, lambda _: False)
            rows = self._sample.tensor
            return torch.zeros(rows.shape[1:], dtype=rows.dtype, device=rows.device)
        last = self._place.before[-1][1]
        if isinstance(last, PendingElements):
            return last.read_last()
        return last.take(-1) if isinstance(last, Appended) else last

    def read_first(self, count: Callable[[], Any]) -> Any:
        """The same, for the body, which reads it if there is one."""
        if len(self._columns) > 1 or self._columns[0].is_ragged:
            raise self.refuse(
                f"{self.name}[-1] is read in the loop that appends to it",
                "it holds tuples, or tensors of different sizes",
                "keep what was appended last in a variable",
            )
        self.reads_last = True
        if not self._place.before:
            torch._check(count() > 0, lambda: "list index out of range")
        return self.find_first()

    def count_appended(self, turn: Any) -> Any:
        """How many elements earlier turns have appended."""
        return self._per_turn * turn

    def read(
        self,
        place: ChangedPlace | None,
        outcome: Outcome,
        stores: Mapping[Store, torch.Tensor],
        new: Sequence[Any],
    ) -> None:
        """See what a turn has appended, while the body is recorded. `new` are the symbols of sizes
        that are others in each turn."""
        added = [] if place is None else _find_added(place)
        leaves = [flatten_element(each) for each in added]
        for each in added:
            self._check_element(each)
        was_nested = self._is_nested
        self._measure(added)
        self.is_changed = self._is_nested is not was_nested  # the first turn may know more
        self._check_count(len(added), new)
        for i, column in enumerate(self._columns):
            column.note([each[i] for each in leaves], self._tracer)
            self._check_size(column, [each[i] for each in leaves], new)
        self._log(added, outcome)
        self.rows, self._after = [], dict(stores)
        if self.is_changed:  # it is recorded again
            return
        for i, column in enumerate(self._columns):
            self._keep(i, column, [each[i] for each in leaves], outcome, stores)

    @torch.enable_grad()
    def _keep(
        self,
        i: int,
        column: Column,
        leaves: Sequence[Any],
        outcome: Outcome,
        stores: Mapping[Store, torch.Tensor],
    ) -> None:
        if self.is_scan:
            made = [column.lay_out_turn(leaf) for leaf in leaves]
            outcome.log(made)
            self.rows += map(outcome.find, made)
        laid = [column.lay_out(leaf) for leaf in leaves] if self._list_stores(i) else []
        for store in self._list_stores(i) if laid else ():
            tensor = torch.cat([stores[store], *[each[store[1]] for each in laid]])
            self._after[store] = tensor
            outcome.log([tensor])

    def _check_element(self, element: Any) -> None:
        if self._kept.find_misfit([element]) is not None:
            raise self.refuse(
                f"{_show(self._sample)} and {_show(element)} are appended to {self.name}",
                "what is appended becomes rows of a tensor",
                "append elements of one kind, tensors, numbers, or tuples of these",
            )

    def _check_count(self, count: int, new: Sequence[Any]) -> None:
        """Does each turn append as many? Else they are no rows."""
        per_turn = self._per_turn
        varies = isinstance(per_turn, torch.SymInt) and has_symbols(unwrap(per_turn), new)
        is_ragged = any(column.is_ragged for column in self._columns)
        varies |= self._is_nested and (count > 1 or is_ragged)
        if self.is_scan and (count != self._count or varies):
            self.is_scan, self.is_changed = False, True

    def _check_size(self, column: Column, leaves: Sequence[Any], new: Sequence[Any]) -> None:
        """Do the tensors have one type? Else they are pieces."""
        types = [t for leaf in leaves if (t := find_type(leaf, self._tracer)) is not None]
        if not types:
            return
        one, *others = types
        if not all(is_alike(one, t) for t in others):
            raise self.refuse(
                f"tensors of several types are appended to {self.name} in each turn",
                "what is appended becomes rows of a tensor",
                "append each kind to a list of its own",
            )
        before = column.dims
        if not column.note_sizes(leaves, types, new):
            raise self.refuse(
                f"what is appended to {self.name} has other sizes in each turn, "
                f"{describe_type(one)}",
                "the pieces of a tensor that was split along another dimension than the first "
                "may differ in that size only",
                "append copies, x.contiguous()",
            )
        if column.dims != before:
            self.is_changed = True
            self.is_scan = self.is_scan and not self._is_nested

    def _log(self, added: Sequence[Any], outcome: Outcome) -> None:
        """Note whose memory is appended."""
        leaves = [leaf for each in added for leaf in flatten_element(each)]
        kept = [each.tensor if isinstance(each, _IN_TENSORS) else each for each in leaves]
        tensors = [each for each in kept if isinstance(each, torch.Tensor)]
        outcome.log(tensors)
        self.roots = [outcome.find(each).root for each in tensors]
        held = [each for _, each in self._place.before if isinstance(each, torch.Tensor)]
        if any(outcome.list_names(each) for each in (*tensors, *held)):
            raise self.refuse(
                f"a tensor is in {self.name} on which there is an attribute",
                "the elements of the list become rows of one tensor, which have none",
                "keep what it says in a list of its own",
            )
        if any(root in outcome.scope.writes for root in self.roots):
            raise self.refuse(
                f"a tensor is appended to {self.name} that the loop writes to",
                "the elements of the list would all show what the last turn has written",
                "append a copy, x.clone()",
            )

    # ------------------------------------------------------------------------- what is handed on

    def _list_stores(self, i: int) -> list[Store]:
        """The stores of a column. (How long its pieces are may be rows of a `scan`.)"""
        column = self._columns[i]
        if not column.is_ragged:
            return [] if self.is_scan else [(i, "rows")]
        return [(i, "rows")] if self.is_scan else [(i, "rows"), (i, column.measures)]

    def find_stores(self) -> list[Store]:
        return [store for i in range(len(self._columns)) for store in self._list_stores(i)]

    def list_starts(self) -> dict[Store, torch.Tensor]:
        """What is in the stores before the loop."""
        return {
            (i, part): column.list_starts()[part]
            for i, column in enumerate(self._columns)
            for _, part in self._list_stores(i)
        }

    def find_after(self, store: Store) -> torch.Tensor:
        """What a turn leaves in a store."""
        return self._after[store]

    # -------------------------------------------------------------------------- what the list has

    def put_pending(
        self,
        stores: Mapping[Store, torch.Tensor],
        make_pending: Callable[[], PendingElements],
    ) -> None:
        """A turn is to be recorded: the list has what earlier turns have appended."""
        self._write(make_pending() if self.is_scan else self._stand_for(stores))

    def put_rows(self, stores: Mapping[Store, torch.Tensor], rows: Sequence[Any]) -> None:
        """The loop is over: the list has what it has appended."""
        found = dict(stores)
        left = list(rows)
        for i, column in enumerate(self._columns if self.is_scan else ()):
            part = column.measures if column.is_ragged else "rows"
            found[i, part] = self._join(left[: self._count])
            del left[: self._count]
        self._write(self._stand_for(found))

    @property
    def count(self) -> int:
        """How many rows the loop returns for it."""
        return self._count * len(self._columns) if self.is_scan else 0

    @torch.enable_grad()
    def _join(self, results: Sequence[Any]) -> torch.Tensor:
        """What turns have appended, one after the other."""
        tensor: torch.Tensor = results[0]
        if len(results) > 1:
            # In eager the elements are tensors that others may hold, and here they are copies.
            tensor = torch.stack([*results], 1)
            root = self._tracer.adopt(tensor).tracked.root
            self._tracer.sharing.maybe_shared[root] = f"the body of `{self._where.text}`"
        return tensor.flatten(0, 1) if len(results) > 1 or self._is_nested else tensor

    def _stand_for(self, found: Mapping[Store, torch.Tensor]) -> Appended:
        return self._kept.stand_for(
            [
                {part: each for (k, part), each in found.items() if k == i}
                for i in range(len(self._columns))
            ]
        )

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


def _show(element: Any) -> str:
    is_tensor = isinstance(element, (torch.Tensor, Rows, Pieces, MixedPieces))
    return "a tensor" if is_tensor else f"a {type(element).__name__}"


def is_longer(place: ChangedPlace) -> bool:
    """Is it a list to which something was appended?"""
    before, after = place.before, place.after
    return (
        isinstance(place.holder, list)
        and len(after) > len(before)
        and all(a is b for (_, a), (_, b) in zip(before, after, strict=False))
    )


def find_makers(holder: Any, frame: FrameType | None) -> list[tuple[CodeType, str, list[str]]]:
    """The functions that run, from this one on, with the variables that are this list, dict or set,
    or have it in them."""
    found: list[tuple[CodeType, str, list[str]]] = []
    kind = "dicts" if isinstance(holder, (dict, set)) else "lists"
    while frame is not None and frame.f_code not in OUTERMOST:
        own = frame.f_locals
        names = [name for name in own if own[name] is holder or _holds(own[name], holder)]
        if names:
            found.append((frame.f_code, kind, names))
        frame = frame.f_back
    return found


def _holds(container: Any, holder: Any) -> bool:
    kinds = (list, tuple, dict)
    return type(container) in kinds and any(each is holder for each in members(container))


def tell_changed(name: str) -> tuple[str, str]:
    """What to say of a part of a list that a loop changes which is not the one that appended, and
    what to write instead."""
    return (
        f"{name.rpartition('[')[0]} is changed, a list to which another loop has appended",
        "count what is left of it, n = len(values) before the loop and n -= 1 in it, and read "
        "values[n]",
    )


def refuse_held(place: ChangedPlace, where: Location) -> CaptureError:
    return CaptureError(
        f"{place.name} gets longer in a loop whose number of turns is known only when the program "
        f"runs, and is not made as [] in a function that runs.\n  at {where}\n"
        "  why: others hold the list, who would take it for as long as it was\n"
        f"  instead: found = [], as a variable, and append to that"
    )
