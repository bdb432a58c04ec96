"""Parts of tensors: slices, selections, splits, and rows that a constant chooses.

They are written when they are read. Must not know of other families.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import is_static, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.schema import MOST_DIMS
from lostwax.backends.xnnpack.shapes import explain_reshape, write_joined, write_reshape
from lostwax.backends.xnnpack.writer import LAST, PartWriter, permute, shape_to
from lostwax.pte.lowering.state import has_data
from lostwax.sym import Size


def write_slice(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    size = size_of(given.self)
    if size == size_of(node):
        writer.name(node, given.self)
        return
    dim = given.dim % len(size)
    start = _count_from_start(given.start or 0, size[dim])
    if given.step == 1:
        _write_part(writer, given.self, node, dim, start)
    else:
        _write_steps(writer, given.self, node, dim, start, given.step)


def _write_steps(
    writer: PartWriter, source: Node, node: Node, dim: int, start: int, step: int
) -> None:
    """Every second, third, ... element: a column, if the dimension is seen as rows of as many."""
    size, result = size_of(source), size_of(node)
    rows = [*size[:dim], int(size[dim]) // step, step, *size[dim + 1 :]]
    column = [*result[: dim + 1], 1, *result[dim + 1 :]]
    offsets = [0] * len(rows)
    offsets[dim : dim + 2] = divmod(start, step)
    seen, part = writer.new(rows), writer.new(column)
    write_reshape(writer, writer.read(source), seen, rows)
    _write_offsets(writer, seen, part, offsets, column)
    write_reshape(writer, part, writer.define(node), result)


def _write_part(writer: PartWriter, source: Node, node: Node, dim: int, start: int) -> None:
    last = writer.is_last(source)
    size = size_of(node)
    offsets = [0] * len(size)
    offsets[dim] = start
    if last:
        size, offsets = (permute(each, LAST[len(size)]) for each in (size, offsets))  # type: ignore[assignment]
    given = writer.read(source, last)
    _write_offsets(writer, given, writer.define(node, last), offsets, size)


def _write_offsets(
    writer: PartWriter, given: int, made: int, offsets: list[int], size: Sequence[Size]
) -> None:
    fields = {"num_dims": len(size), "offsets": offsets, "sizes": shape_to(size)}
    writer.add("XNNStaticSlice", input_id=given, output_id=made, **fields)


def _count_from_start(place: int, length: Any) -> int:
    place = place + int(length) if place < 0 else place
    return max(0, min(place, int(length)))


def explain_slice(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if size_of(given.self) == size_of(node):
        return ""
    if isinstance(given.start, Node):
        return "it begins where the program computes"
    reason = _explain_part(given.self, given.dim, size_of(node)[given.dim])
    if reason or given.step == 1:
        return reason
    size = size_of(given.self)
    if int(size[given.dim]) % given.step or len(size) == MOST_DIMS:
        return f"XNNPACK's slices have no step, as {given.step}, of {size[given.dim]} elements"
    return explain_reshape(size)


def _explain_part(source: Node, dim: int, length: Size = 0) -> str:
    """Why a part along a dimension is not taken; others than this one may vary."""
    if not is_static(size_of(source)[dim], length):
        return "XNNPACK slices no dimension whose size varies"
    return ""


def write_select(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    size = list(size_of(given.self))
    dim = given.dim % len(size)
    offsets = [0] * len(size)
    offsets[dim] = _count_from_start(given.index, size[dim])
    size[dim] = 1
    row = writer.new(size)
    _write_offsets(writer, writer.read(given.self), row, offsets, size)
    write_reshape(writer, row, writer.define(node), size_of(node))


def explain_select(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if isinstance(given.index, Node):
        return "its index is computed"
    return _explain_part(given.self, given.dim) or explain_reshape(size_of(node))


def write_split(writer: PartWriter, node: Node) -> None:
    """Each part that somebody reads is a slice."""
    given = read_arguments(node)
    values = node.meta["val"]
    dim = given.dim % len(size_of(given.self))
    starts = [0]
    for value in values:
        starts.append(starts[-1] + value.fake_type.size[dim])
    for reader in node.users:
        _write_part(writer, given.self, reader, dim, starts[reader.args[1]])  # type: ignore[index]


def explain_split(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    return _explain_part(given.self, given.dim)


# ------------------------------------------------------------------------------- chosen rows

MOST_RUNS = 8


def write_rows(writer: PartWriter, node: Node) -> None:
    """The rows that a constant chooses: those that follow each other are one slice."""
    given = read_arguments(node)
    dim = given.dim % len(size_of(node))
    runs = _find_runs(writer.constants[given.index])
    if len(runs) == 1:
        _write_part(writer, given.self, node, dim, runs[0][0])
        return
    source, size = writer.read(given.self), size_of(node)
    parts: list[tuple[int, Size]] = []
    for start, length in runs:
        part = [*size[:dim], length, *size[dim + 1 :]]
        offsets = [0] * len(part)
        offsets[dim] = start
        parts.append((writer.new(part), length))
        _write_offsets(writer, source, parts[-1][0], offsets, part)
    write_joined(writer, node, parts, dim, last=False)


def _find_runs(index: torch.Tensor) -> list[tuple[int, int]]:
    """Indices as runs of such as follow each other: the first of each, and how many."""
    runs: list[tuple[int, int]] = []
    for i in index.tolist():
        if runs and sum(runs[-1]) == i:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((i, 1))
    return runs


def explain_rows(node: Node, facts: ProgramFacts) -> str:
    given = read_arguments(node)
    if not facts.is_constant(given.index):
        return "the rows that it chooses are computed"
    index = facts.compute(given.index)
    if not has_data(index) or index.ndim != 1 or len(_find_runs(index)) > MOST_RUNS:
        return f"XNNPACK has slices, and the rows that it chooses are not {MOST_RUNS} of them"
    return _explain_part(given.self, given.dim)


PARTS = {
    "aten::slice_copy.Tensor": OperatorEntry(write_slice, explain_slice, lazy=True),
    "aten::select_copy.int": OperatorEntry(write_select, explain_select, lazy=True),
    "aten::split_copy.Tensor": OperatorEntry(write_split, explain_split, lazy=True),
    "aten::split_with_sizes_copy": OperatorEntry(write_split, explain_split, lazy=True),
    "aten::index_select": OperatorEntry(write_rows, explain_rows, any_constants=True),
}
"""The operators of this family, by name."""
