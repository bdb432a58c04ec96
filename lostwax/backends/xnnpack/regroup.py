"""Reshapes where several sizes vary: a dimension of fixed size is split, or two are put together.

XNNPACK's own reshape is told all sizes but one. So the dimensions that vary are left where they
are: a split is slices that are joined along a new dimension, and the other way round. A new
dimension comes from a product with ones that have one more; one of size 1 goes away in a mean that
does not keep it. Must not know of operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from lostwax.backends.xnnpack.calls import is_static
from lostwax.backends.xnnpack.schema import MOST_DIMS
from lostwax.backends.xnnpack.writer import PartWriter, permute, shape_to
from lostwax.sym import Size

MOST_PARTS = 32
"""The most slices that a dimension is taken apart into."""
MOST_JOINED = 5


class ShapeChange(NamedTuple):
    """One change of a shape, at a dimension: "split" into `parts`, "merge" with the next one, "add"
    or "drop" a size of 1."""

    kind: str
    dim: int
    parts: int = 0


def find_changes(old: Sequence[Size], new: Sequence[Size]) -> list[ShapeChange] | None:
    """The changes that make one shape of the other and leave alone what varies; None if there are
    none, or they would take too many slices."""
    changes: list[ShapeChange] = []
    left, wanted = list(old), list(new)
    shape, dim = list(old), 0
    while left or wanted:
        if left and wanted and left[0] == wanted[0]:
            left, wanted, dim = left[1:], wanted[1:], dim + 1
            continue
        if wanted and wanted[0] == 1:
            change = ShapeChange("add", dim)
            wanted = [None, *wanted[1:]]  # type: ignore[list-item]
            left = [None, *left]  # type: ignore[list-item]
        elif left and left[0] == 1:
            change, left = ShapeChange("drop", dim), left[1:]
        elif not left or not wanted or not is_static(left[0], wanted[0]):
            return None
        elif int(left[0]) % int(wanted[0]) == 0:
            change = ShapeChange("split", dim, int(wanted[0]))
            left = [wanted[0], int(left[0]) // int(wanted[0]), *left[1:]]
        elif len(left) > 1 and is_static(left[1]):
            change = ShapeChange("merge", dim)
            left = [int(left[0]) * int(left[1]), *left[2:]]
        else:
            return None
        if not _is_possible(change, shape):
            return None
        shape = _change_shape(change, shape)
        changes.append(change)
    return changes


def _is_possible(change: ShapeChange, shape: Sequence[Size]) -> bool:
    parts = int(shape[change.dim]) if change.kind == "merge" else change.parts
    return (
        len(shape) < MOST_DIMS and parts <= MOST_PARTS and (change.kind != "drop" or len(shape) > 1)
    )


def _change_shape(change: ShapeChange, shape: Sequence[Size]) -> list[Size]:
    dim = change.dim
    before, behind = list(shape[:dim]), list(shape[dim + 1 :])
    if change.kind == "add":
        return [*before, 1, *shape[dim:]]
    if change.kind == "drop":
        return [*before, *behind]
    if change.kind == "merge":
        return [*before, int(shape[dim]) * int(behind[0]), *behind[1:]]
    return [*before, change.parts, int(shape[dim]) // change.parts, *behind]


def write_changes(
    writer: PartWriter, given: int, shape: Sequence[Size], changes: Sequence[ShapeChange], made: int
) -> None:
    """Write the changes of a value; the last one computes the value `made`."""
    for i, change in enumerate(changes):
        result = _change_shape(change, shape)
        to = made if i == len(changes) - 1 else writer.new(result)
        _WRITE[change.kind](writer, given, list(shape), change, to)
        given, shape = to, result


def _write_add(
    writer: PartWriter, given: int, shape: list[Size], change: ShapeChange, made: int
) -> None:
    if change.dim == 0:
        _write_ones(writer, given, shape, made)
        return
    raised = _raise(writer, given, shape)
    order = [*range(1, change.dim + 1), 0, *range(change.dim + 1, len(shape) + 1)]
    _write_transpose(writer, raised, order, made)


def _write_drop(
    writer: PartWriter, given: int, shape: list[Size], change: ShapeChange, made: int
) -> None:
    """A mean over two dimensions of size 1, of which one is new."""
    raised = _raise(writer, given, shape)
    others = [d + 1 for d in range(len(shape)) if d != change.dim]
    order = [*others[:-1], 0, change.dim + 1, others[-1]]
    moved = writer.new(permute([1, *shape], order))
    _write_transpose(writer, raised, order, moved)
    writer.add("XNNGlobalAvgPooling2d", input_id=moved, output_id=made)


def _write_split(
    writer: PartWriter, given: int, shape: list[Size], change: ShapeChange, made: int
) -> None:
    """Slices, joined along a new first dimension, which then goes to its place."""
    raised = _raise(writer, given, shape)
    length, dim = int(shape[change.dim]) // change.parts, change.dim
    part = [1, *shape[:dim], length, *shape[dim + 1 :]]
    slices = [_slice(writer, raised, part, dim + 1, i * length) for i in range(change.parts)]
    whole = [change.parts, *part[1:]]
    if dim == 0:
        _write_join(writer, slices, part, 0, made)
        return
    joined = writer.new(whole)
    _write_join(writer, slices, part, 0, joined)
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(whole))]
    _write_transpose(writer, joined, order, made)


def _write_merge(
    writer: PartWriter, given: int, shape: list[Size], change: ShapeChange, made: int
) -> None:
    """Slices of one row each, joined along the next dimension; the row's own goes away."""
    dim = change.dim
    part = [*shape[:dim], 1, *shape[dim + 1 :]]
    slices = [_slice(writer, given, part, dim, i) for i in range(int(shape[dim]))]
    whole = [*part[: dim + 1], int(shape[dim]) * int(shape[dim + 1]), *part[dim + 2 :]]
    joined = writer.new(whole)
    _write_join(writer, slices, part, dim + 1, joined)
    _write_drop(writer, joined, whole, change, made)


_WRITE = {"add": _write_add, "drop": _write_drop, "split": _write_split, "merge": _write_merge}


def _raise(writer: PartWriter, given: int, shape: Sequence[Size]) -> int:
    """The value with a new first dimension of size 1."""
    made = writer.new([1, *shape])
    _write_ones(writer, given, shape, made)
    return made


def _write_ones(writer: PartWriter, given: int, shape: Sequence[Size], made: int) -> None:
    ones = writer.add_constant(torch.ones([1] * (len(shape) + 1)))
    writer.add("XNNMultiply", input1_id=given, input2_id=ones, output_id=made)


def _write_transpose(writer: PartWriter, given: int, order: Sequence[int], made: int) -> None:
    fields = {"num_dims": len(order), "perm": list(order)}
    writer.add("XNNStaticTranspose", input_id=given, output_id=made, **fields)


def _slice(writer: PartWriter, given: int, size: Sequence[Size], dim: int, start: int) -> int:
    made = writer.new(size)
    offsets = [0] * len(size)
    offsets[dim] = start
    fields = {"num_dims": len(size), "offsets": offsets, "sizes": shape_to(size)}
    writer.add("XNNStaticSlice", input_id=given, output_id=made, **fields)
    return made


def _write_join(
    writer: PartWriter, parts: list[int], size: Sequence[Size], dim: int, made: int
) -> None:
    """Join values of one size, five at a time."""
    if len(parts) == 1:
        writer.add("XNNCopy", input_id=parts[0], output_id=made)
        return
    count = 1
    while len(parts) > 1:
        some, parts = parts[:MOST_JOINED], parts[MOST_JOINED:]
        count += len(some) - 1
        length = int(size[dim]) * count
        to = writer.new([*size[:dim], length, *size[dim + 1 :]]) if parts else made
        inputs = {f"input{i + 1}_id": number for i, number in enumerate(some)}
        writer.add(f"XNNConcatenate{len(some)}", axis=dim, output_id=to, **inputs)
        parts = [to, *parts] if parts else []
