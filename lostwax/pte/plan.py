"""Memory planning: drops calls that nothing reads, lets results take over memory, and gives every
storage its place in the arena.

Two storages may lie at the same place if they are never alive at the same time. Must not change
what a listing computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.pte.file.container import round_up
from lostwax.pte.lowering.kernels import ELEMENTWISE
from lostwax.pte.lowering.listing import (
    Call,
    DelegateCall,
    JumpIfFalse,
    Label,
    Listing,
    Move,
    Number,
    Step,
    Storage,
    Tensor,
    list_leaves,
)

ALIGNMENT = 16
VECTOR = 64
"""The bytes of the longest vector of a processor."""


@dataclass(eq=False)
class Lifetime:
    """From the first step that writes a storage to the last that reads it, both included."""

    storage: Storage
    first: int
    last: int


def drop_unread(listing: Listing) -> None:
    """Drop the calls whose results nobody reads."""
    if any(not isinstance(step, Call) for step in listing.steps):
        _drop_never_read(listing)
        return
    read: set[object] = {_key(v) for v in list_leaves(listing.outputs)}
    kept: list[Step] = []
    for step in reversed(listing.steps):
        assert isinstance(step, Call)
        if _is_needed(step, read):
            kept.append(step)
            read.update(_key(v) for v in list_leaves(step.args) if v not in step.outs)
    listing.steps = kept[::-1]


def _drop_never_read(listing: Listing) -> None:
    """As `drop_unread` where steps may be repeated: whatever is read anywhere stays."""
    while True:
        read = {_key(v) for v in list_leaves(listing.outputs)}
        for step in listing.steps:
            if isinstance(step, Call):
                read.update(_key(v) for v in list_leaves(step.args) if v not in step.outs)
            elif isinstance(step, Move):
                read.add(_key(step.source))
            elif isinstance(step, JumpIfFalse):
                read.add(_key(step.condition))
        kept = [s for s in listing.steps if not isinstance(s, Call) or _is_needed(s, read)]
        if len(kept) == len(listing.steps):
            return
        listing.steps = kept


def _is_needed(call: Call, read: set[object]) -> bool:
    return any(_matters(out, read) for out in call.outs)


def _key(value: object) -> object:
    return value.storage if isinstance(value, Tensor) else value if _is_number(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, Number)


def _matters(out: object, read: set[object]) -> bool:
    if isinstance(out, Tensor) and out.storage.is_kept:
        return True
    return _key(out) in read


def plan_memory(listing: Listing) -> int:
    """Place every storage of the listing that has no place yet; return the size of the arena."""
    lifetimes = find_lifetimes(listing)
    share_memory(listing, lifetimes)
    size = place([life for life in lifetimes.values() if life.storage.offset < 0])
    return size + read_beyond(listing)


def read_beyond(listing: Listing) -> int:
    """How many bytes behind an arena may be read: backends read whole vectors."""
    return VECTOR if any(isinstance(step, DelegateCall) for step in listing.steps) else 0


def find_lifetimes(listing: Listing) -> dict[Storage, Lifetime]:
    """The lifetime of each storage that lies in the arena."""
    found: dict[Storage, Lifetime] = {}
    end = len(listing.steps)

    def touch(value: object, at: int) -> None:
        if not isinstance(value, Tensor) or value.storage.is_constant:
            return
        known = found.get(value.storage)
        if known is None:
            found[value.storage] = known = Lifetime(value.storage, at, at)
        known.first, known.last = min(known.first, at), max(known.last, at)
        if value.storage.is_kept:
            known.first, known.last = -1, end

    for value in list_leaves(listing.inputs):
        touch(value, -1)
    for at, step in enumerate(listing.steps):
        if isinstance(step, Call):
            for value in list_leaves(step.args):
                touch(value, at)
        elif isinstance(step, Move):
            touch(step.source, at)
            touch(step.to, at)
        elif isinstance(step, JumpIfFalse):
            touch(step.condition, at)
    for value in list_leaves(listing.outputs):
        touch(value, end)
    _stretch_over_loops(listing, found)
    return found


def _stretch_over_loops(listing: Listing, found: dict[Storage, Lifetime]) -> None:
    """What is alive at some step of a loop is alive in all of it: the loop may come back."""
    places = {step: at for at, step in enumerate(listing.steps) if isinstance(step, Label)}
    for at, step in enumerate(listing.steps):
        if isinstance(step, JumpIfFalse) and places[step.to] < at:
            begin = places[step.to]
            for life in found.values():
                if life.first < begin <= life.last <= at or begin <= life.first <= at < life.last:
                    life.first, life.last = min(life.first, begin), max(life.last, at)


def share_memory(listing: Listing, lifetimes: dict[Storage, Lifetime]) -> None:
    """Let the result of an elementwise call take over the memory of an operand that nobody reads
    afterwards."""
    if any(not isinstance(step, Call) for step in listing.steps):
        return
    tensors: dict[Storage, dict[Tensor, None]] = {}
    listed = [listing.inputs, listing.outputs, *(call.args for call in listing.calls())]
    for value in list_leaves(listed):
        if isinstance(value, Tensor):
            tensors.setdefault(value.storage, {})[value] = None
    for at, call in enumerate(listing.calls()):
        if call.kernel not in ELEMENTWISE:
            continue
        (out,) = call.outs
        old = out.storage
        life = lifetimes[old]
        if old.is_kept or old.is_given or life.first != at:
            continue
        for operand in call.args:
            if not isinstance(operand, Tensor) or operand.storage is old:
                continue
            taken = lifetimes.get(operand.storage)
            fits = operand.size == out.size and operand.dtype is out.dtype
            if taken is None or not fits or taken.last != at or operand.storage.is_kept:
                continue
            if operand.storage.nbytes < old.nbytes:
                continue
            taken.last = life.last
            del lifetimes[old]
            for tensor in tensors.pop(old):
                tensor.storage = taken.storage
                tensors[taken.storage][tensor] = None
            break


def place(lifetimes: list[Lifetime]) -> int:
    """Give each storage an offset, the largest first, each as low as those allow that are alive
    with it; return the size of the arena."""
    placed: list[tuple[int, int, Lifetime]] = []
    end = 0
    order = sorted(lifetimes, key=lambda life: (-life.storage.nbytes, life.first))
    for life in order:
        storage = life.storage
        size = max(round_up(storage.nbytes, ALIGNMENT), ALIGNMENT)
        first, last, offset = life.first, life.last, 0
        for begin, stop, other in placed:  # by their offsets
            if other.first > last or other.last < first:
                continue
            if begin >= offset + size:
                break
            offset = max(offset, stop)
        storage.offset = offset
        entry = (storage.offset, storage.offset + size, life)
        _insert(placed, entry)
        end = max(end, entry[1])
    return end


def _insert(placed: list[tuple[int, int, Lifetime]], entry: tuple[int, int, Lifetime]) -> None:
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if placed[middle][0] < entry[0]:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, entry)
