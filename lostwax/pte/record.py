"""Lets a planned method return a copy of what each node computes, beside its results.

The copies lie behind the arena, so that the rest of the method stays where it was. Must not change
the memory of what is planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lostwax.pte.file.container import round_up
from lostwax.pte.lowering.listing import (
    Call,
    Listing,
    ListOperand,
    Step,
    Storage,
    Tensor,
    list_leaves,
)
from lostwax.pte.plan import ALIGNMENT


def record_values(listing: Listing, written: Sequence[Step], arena: int) -> tuple[list[Node], int]:
    """Add the copies, as results. `written` are the steps before unread ones were dropped. Returns
    the nodes whose values are copied, and the size of the arena."""
    left = set(listing.steps)
    used = {
        v for v in list_leaves([call.args for call in listing.calls()]) if isinstance(v, Tensor)
    }
    found: dict[Tensor, tuple[int, Node]] = {}
    for node, (at, value) in listing.lowered.items():
        if isinstance(value, Tensor) and value in used and value.storage.offset >= 0:
            # Of several nodes that one kernel computes, its result is the value of the last.
            found[value] = found[value][0] if value in found else at, node
    copies: dict[int, list[Call]] = {}
    for value, (at, _) in found.items():
        storage = Storage(value.storage.nbytes, offset=arena)
        arena += max(round_up(storage.nbytes, ALIGNMENT), ALIGNMENT)
        copy = Tensor(value.size, value.dtype, storage, value.bound, grows=value.grows)
        order = ListOperand("[int]", range(len(value.size)))
        args = [value, False, order, copy, copy]
        call = Call("dim_order_ops::_clone_dim_order.out", args, (copy,))
        copies.setdefault(at, []).append(call)
        listing.outputs.append(copy)
    steps: list[Step] = []
    for at, step in enumerate([*written, None]):
        steps += copies.get(at, ())
        if step in left:
            steps.append(step)
    listing.steps = steps
    return [node for _, node in found.values()], arena
