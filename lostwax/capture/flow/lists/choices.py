"""Lists to which one side of an `if` on data appends more than the other, or that it changes
otherwise.

What either of them has behind what both keep is laid into tensors that the operator returns, which
have more rows or fewer; in the list something stands for them (`spans.py`). Must not know how the
sides are recorded.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from lostwax.capture.flow.lists.blocks import MixedPieces
from lostwax.capture.flow.lists.columns import Column, Columns
from lostwax.capture.flow.lists.spans import PendingElements, Pieces, Rows, Scalars, UnknownElements
from lostwax.capture.flow.merging import MergeConflict, Merging, Outcome
from lostwax.capture.heap.holders import Content
from lostwax.capture.heap.moment import ChangedPlace
from lostwax.location import Location
from lostwax.sym import Expr, Size


class Tails(NamedTuple):
    """What the two sides leave in a list behind the elements that both keep."""

    kept: Content
    true: list[Any]
    false: list[Any]


def find_tails(place: ChangedPlace, t: Content, f: Content) -> Tails | None:
    """… if it is not as much on both, or if it is not known how much it is."""
    is_open = any(isinstance(each, UnknownElements) for _, each in (*t, *f))
    if not isinstance(place.holder, (list, deque)) or (len(t) == len(f) and not is_open):
        return None
    contents = ([each for _, each in content] for content in (place.before, t, f))
    same = takewhile(lambda three: three[0] is three[1] is three[2], zip(*contents, strict=False))
    kept = place.before[: len([*same])]
    one, other = ([value for _, value in content[len(kept) :]] for content in (t, f))
    return Tails(kept, one, other) if one or other else None


def merge_tails(
    merging: Merging, place: ChangedPlace, tails: Tails, where: Location
) -> Callable[[Sequence[Any]], Content]:
    """How the list is made of the two."""
    tails_of_sides = tails.true, tails.false
    added = [*tails.true, *tails.false]
    columns = Columns(added[0], merging.tracer, where)
    if not all(column.is_known for column in columns.list):
        raise MergeConflict(f"{place.name} gets a {type(added[0]).__name__} on one side only")
    if columns.find_misfit(added) is not None or not columns.note(added):
        raise MergeConflict(f"{place.name} gets elements of several kinds")
    for column, leaves in columns.take_leaves(added):
        _check_sizes(merging, place, column, leaves)
    sides = (merging.true, merging.false)
    builds = []
    for i, column in enumerate(columns.list):
        made = []
        for side, tail in zip(sides, tails_of_sides, strict=True):
            _, leaves = columns.take_leaves(tail)[i]
            settled = [_settle(side, leaf) for leaf in leaves]
            made.append(side.make(partial(_lay_out, column, settled)))
        found = {}
        for part in made[0]:
            one, other = (side.find(each[part]) for side, each in zip(sides, made, strict=True))
            found[part] = merging.give_back(place.name, one, other)
            merging.kept += [
                (_find_root(side, leaf), side, found[part])
                for side, tail in zip(sides, tails_of_sides, strict=True)
                for leaf in columns.take_leaves(tail)[i][1]
                if part == "rows" and not column.kind
            ]
        builds.append(found)

    def build(results: Sequence[Any]) -> Content:
        spans = [{part: each(results) for part, each in found.items()} for found in builds]
        return [*tails.kept, (len(tails.kept), columns.stand_for(spans))]

    return build


@torch.enable_grad()
def _lay_out(column: Column, leaves: Sequence[Any]) -> dict[str, torch.Tensor]:
    laid = [column.lay_out(leaf) for leaf in leaves]
    if not laid:
        return column.list_starts()
    return {part: torch.cat([each[part] for each in laid]) for part in laid[0]}


def _check_sizes(
    merging: Merging, place: ChangedPlace, column: Column, leaves: Sequence[Any]
) -> None:
    """Sizes that only one side knows are those of pieces."""
    sizes = () if column.type is None else column.type.size

    def is_of_one_side(size: Size) -> bool:
        return isinstance(size, Expr) and any(
            s in merging.tracer.regions.ended for s in size.symbols()
        )

    dims = [dim for dim, size in enumerate(sizes) if is_of_one_side(size)]
    if dims and not column.let_differ(dims, leaves):
        raise MergeConflict(f"{place.name} gets a tensor whose size is known on one side only")


def _settle(side: Outcome, leaf: Any) -> Any:
    """What is appended, as it was when the side ended."""
    if isinstance(leaf, PendingElements):
        raise MergeConflict("a list gets longer in a loop inside of a side")
    if isinstance(leaf, torch.Tensor):
        return side.scope.tracer.temporary(_find(side, leaf).value)
    if not isinstance(leaf, (Rows, Scalars, Pieces, MixedPieces)):
        return leaf
    settled = copy.copy(leaf)
    settled.tensor = _settle(side, leaf.tensor)
    if isinstance(settled, Pieces):
        settled.lengths = _settle(side, settled.lengths)
    if isinstance(settled, MixedPieces):
        settled.sizes = _settle(side, settled.sizes)
    return settled


def _find(side: Outcome, tensor: torch.Tensor) -> Any:
    found = side.find(tensor)
    if found.root in side.scope.writes:
        raise MergeConflict("a tensor is appended that the side writes to")
    return found


def _find_root(side: Outcome, leaf: Any) -> Any:
    return _find(side, leaf.tensor if isinstance(leaf, (Rows, Pieces, MixedPieces)) else leaf).root
