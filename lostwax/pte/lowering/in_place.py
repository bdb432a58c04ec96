"""Writes into a part of state, in its own memory: a cache gets a row, and nothing else is copied.

A functional program makes a new tensor of the whole state. Where nothing reads the old one
afterwards, the part is written into it. Must not write what is no state.
"""

from __future__ import annotations

from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from lostwax.fake.symbolic.node import unwrap
from lostwax.pte.lowering.listing import Call, ListOperand, Tensor
from lostwax.pte.lowering.strided import find_view
from lostwax.pte.lowering.writer import CallWriter
from lostwax.sym import Expr, Size

INDEX = (torch.int64, torch.int32)


def put_at_indices(writer: CallWriter, node: Node) -> Any:
    """`index_put` along one dimension, of values that need not be expanded."""
    args: Any = node.args
    indices = list(args[1])
    places = [d for d, index in enumerate(indices) if index is not None]
    if (len(args) > 3 and args[3]) or len(places) != 1 or not _is_replaceable(writer, node):
        return None
    (dim,) = places
    index, values = writer.value(indices[dim]), writer.value(args[2])
    state = writer.value(args[0])
    if index.dtype not in INDEX or len(index.size) != 1:
        return None
    if values.size != (*state.size[:dim], index.size[0], *state.size[dim + 1 :]):
        return None
    return _put(writer, state, dim, _count_from_start(writer, index, state.size[dim]), values)


def put_at_slice(writer: CallWriter, node: Node) -> Any:
    """`slice_scatter` from a place that is known not to be before the start."""
    names = ("self", "src", "dim", "start", "end", "step")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    dim, start, step = given.get("dim", 0), given.get("start"), given.get("step", 1)
    if not _is_replaceable(writer, node):
        return None
    state, values = writer.value(node.args[0]), writer.value(node.args[1])
    dim %= len(state.size)
    first = _read_start(start, state.size[dim])
    if first is None or not isinstance(step, int) or writer.listing.least(values.size[dim]) < 1:
        return None
    if values.size[:dim] != state.size[:dim] or values.size[dim + 1 :] != state.size[dim + 1 :]:
        return None
    return _put(writer, state, dim, _count(writer, first, values.size[dim], step), values)


def put_at_place(writer: CallWriter, node: Node) -> Any:
    """`select_scatter` at a place that is known not to be before the start."""
    args: Any = node.args
    dim, place = args[2:]
    if not _is_replaceable(writer, node):
        return None
    state, values = writer.value(args[0]), writer.value(args[1])
    dim %= len(state.size)
    first = _read_start(place, state.size[dim])
    if first is None:
        return None
    row = writer.listing.view(values, (*state.size[:dim], 1, *state.size[dim + 1 :]))
    return _put(writer, state, dim, _count(writer, first, 1, 1), row)


def _read_start(start: Any, length: Size) -> Size | None:
    """The place where a write begins, if it is certainly not counted from the end."""
    if start is None:
        return 0
    place: Size = unwrap(start.meta["val"]) if isinstance(start, Node) else start
    if isinstance(place, Expr):
        low = place.env.bounds(place).lo
        return place if low is not None and low >= 0 else None
    if place < 0:
        place = length + place
    return place if isinstance(place, int) and place >= 0 else None


def _count(writer: CallWriter, first: Size, count: Size, step: int) -> Tensor:
    """The places of a slice."""
    listing = writer.listing
    index = listing.new_tensor((count,), torch.int64)
    ends = listing.number(first), listing.number(first + count * step)
    return writer.call("aten::arange.start_out", *ends, step, outs=[index])


def _count_from_start(writer: CallWriter, index: Tensor, length: Size) -> Tensor:
    """Indices without those that count from the end, which the kernel refuses. Caches of several
    layers are written at the same."""
    listing = writer.listing
    if (index, length) in writer.places:
        return writer.places[index, length]
    is_before = listing.new_tensor(index.size, torch.bool)
    from_end, places = (listing.new_tensor(index.size, index.dtype) for _ in range(2))
    writer.call("aten::lt.Scalar_out", index, 0, outs=[is_before])
    writer.call("aten::add.Scalar_out", index, listing.number(length), 1, outs=[from_end])
    writer.places[index, length] = places
    return writer.call("aten::where.self_out", is_before, from_end, index, outs=[places])


def _put(writer: CallWriter, state: Tensor, dim: int, index: Tensor, values: Tensor) -> Any:
    if values.storage is state.storage:
        values = writer.clone(values)
    written = Tensor(state.size, state.dtype, state.storage, state.bound)
    indices = ListOperand("[tensor?]", [*[None] * dim, index])
    args = [written, indices, values, False, written]
    step = Call("aten::index_put_", args, (written,), writer.listing.node)
    writer.listing.steps.append(step)
    return written


def write_arguments(writer: CallWriter, node: Node) -> Any:
    """A custom operator that writes its arguments: state is written in its place, all else in a
    copy."""
    overload: Any = node.args[0]
    kernel = writer.find_kernel(node, overload, overload)
    given, written = [], []
    for argument in overload._schema.arguments:
        old: Any = node.kwargs.get(argument.name, argument.default_value)
        value = writer.value(old)
        if argument.alias_info is not None and argument.alias_info.is_write and value is not None:
            if not _is_whole(old, node) or not _is_replaceable(writer, node, old):
                value = writer.clone(value)
            # Another object: the kernel reads what it writes, and a call that fills it is needed.
            written.append(replace(value))
        given.append(value)
    values: Any = node.meta["val"]
    # (One that returns nothing returns None.)
    returned = [v for v in values[: len(values) - len(written)] if v is not None]
    results: list[Any] = [writer.new_like(v) for v in returned]
    writer.call(kernel, *given, outs=results)
    call = writer.listing.steps[-1]
    assert isinstance(call, Call)
    call.outs = (*call.outs, *written)
    return [*(results or [None]), *written]


def _is_whole(old: Node, node: Node) -> bool:
    """Is it state itself, or what an operator of this kind has written, and no part of it?"""
    made: Any = old.args[0] if old.target is getitem else None
    return old.op == "placeholder" or (made is not None and made.target is node.target)


def _is_replaceable(writer: CallWriter, node: Node, old: Any = None) -> bool:
    """Is what this node changes state, whose old value nothing reads afterwards? What a branch or a
    loop is given may be read behind it."""
    old = node.args[0] if old is None else old
    if node.graph is not writer.graph:
        return False
    state = writer.values[old]
    if not isinstance(state, Tensor) or not state.storage.is_kept or state.is_dynamic:
        return False
    readers, left = set(), [old]
    while left:
        for user in left.pop().users:
            if user not in readers:
                readers.add(user)
                left += [user] if find_view(user) or user.target is getitem else []
    readers.discard(node)
    later = node.next
    while later.op != "root":
        if later in readers:
            return False
        later = later.next
    return True


IN_PLACE = {
    "aten::index_put": put_at_indices,
    "aten::select_scatter": put_at_place,
    "aten::slice_scatter": put_at_slice,
}
"""The selections by the name of the operator."""
