"""Operators that only move elements: reshape, transpose, pad, join.

They are written when they are read, as many turn out to be nothing. Must not know of other
families.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.backends.xnnpack.calls import count_dynamic, is_static, read_arguments, size_of
from lostwax.backends.xnnpack.entry import OperatorEntry, ProgramFacts
from lostwax.backends.xnnpack.quantized.match import match_move
from lostwax.backends.xnnpack.quantized.quantum import (
    find_form,
    get_name,
    is_quantize,
    read_quantum,
)
from lostwax.backends.xnnpack.regroup import find_changes, write_changes
from lostwax.backends.xnnpack.writer import LAST, PLAIN, PartWriter, permute, shape_to
from lostwax.sym import Size

# ------------------------------------------------------------------------------- reshape


def write_view(writer: PartWriter, node: Node) -> None:
    """A reshaping; nothing, if the sizes stay. Of an image of one pixel, channels may be last."""
    if is_regrouped(node):
        _write_regrouped(writer, node)
        return
    (source,), made = find_moved(writer, node, [node.args[0]])
    old, new = size_of(source), size_of(node)
    if old == new:
        writer.name(made, source)
        return
    is_pixel = len(old) in LAST and all(s == 1 for s in old[2:])
    given = writer.read(source, is_pixel and writer.is_last(source))
    write_reshape(writer, given, writer.define(made), new)


def _write_regrouped(writer: PartWriter, node: Node) -> None:
    source: Any = node.args[0]
    changes = find_changes(size_of(source), size_of(node))
    assert changes
    given = writer.read(source)
    write_changes(writer, given, size_of(source), changes, writer.define(node))


def find_moved(writer: PartWriter, node: Node, sources: Sequence[Any]) -> tuple[list[Any], Node]:
    """What a call moves and makes: integers, if they are the same before and behind."""
    return match_move(writer, node, sources) or (list(sources), node)


def write_reshape(writer: PartWriter, given: int, made: int, size: Sequence[Size]) -> None:
    assert count_dynamic(size) < 2, size
    shape = shape_to(size)
    writer.add(
        "XNNStaticReshape", num_dims=len(shape), new_shape=shape, input_id=given, output_id=made
    )


def explain_view(node: Node, facts: ProgramFacts) -> str:
    if not explain_reshape(size_of(node)) or size_of(node) == size_of(node.args[0]):  # type: ignore[arg-type]
        return ""
    return "" if is_regrouped(node) else explain_reshape(size_of(node))


def is_regrouped(node: Node) -> bool:
    """Is it a view, of which several sizes vary, that is written as slices and joins?"""
    if get_name(node) not in VIEWS or count_dynamic(size_of(node)) < 2:
        return False
    old, new = size_of(node.args[0]), size_of(node)  # type: ignore[arg-type]
    return old != new and find_changes(old, new) is not None


def explain_reshape(size: Sequence[Size]) -> str:
    count = count_dynamic(size)
    return "" if count < 2 else f"XNNPACK reshapes to at most one size that varies, not {count}"


def is_view(node: object) -> bool:
    target = getattr(node, "target", None)
    return bool(getattr(target, "name", str)() == "aten::view_copy")


def write_expand(writer: PartWriter, node: Node) -> None:
    """A product with ones, as arithmetic repeats its operands; nothing, if the sizes stay."""
    source: Any = node.args[0]
    old, new = size_of(source), size_of(node)
    if old == new:
        writer.name(node, source)
        return
    old = (1,) * (len(new) - len(old)) + old
    ones = torch.ones([1 if o == n else int(n) for o, n in zip(old, new, strict=True)])
    given, factor = writer.read(source), writer.add_constant(ones)
    writer.add("XNNMultiply", input1_id=given, input2_id=factor, output_id=writer.define(node))


def explain_expand(node: Node, facts: ProgramFacts) -> str:
    old, new = size_of(node.args[0]), size_of(node)  # type: ignore[arg-type]
    old = (1,) * (len(new) - len(old)) + old
    repeated = [n for o, n in zip(old, new, strict=True) if o != n]
    return "" if is_static(*repeated) else "XNNPACK repeats a fixed number of times"


# ------------------------------------------------------------------------------- transpose


def write_permute(writer: PartWriter, node: Node) -> None:
    """A transposition; nothing, if the value is there with channels last, and that is wanted."""
    (source,), made = find_moved(writer, node, [node.args[0]])
    order = [d % len(size_of(node)) for d in read_arguments(node).dims]
    rank = len(order)
    if order == list(range(rank)):
        writer.name(made, source)
    elif tuple(order) == LAST.get(rank) and writer.is_last(source):
        writer.see(made, writer.read(source, True), False)
    elif tuple(order) == PLAIN.get(rank) and not writer.is_last(source):
        writer.see(made, writer.read(source), True)
    else:
        given = writer.read(source)
        fields = {"num_dims": rank, "perm": order, "output_id": writer.define(made)}
        writer.add("XNNStaticTranspose", input_id=given, **fields)


# ------------------------------------------------------------------------------- pad, join


def write_pad(writer: PartWriter, node: Node) -> None:
    given = read_arguments(node)
    rank = len(size_of(node))
    before, behind = [0] * rank, [0] * rank
    for i in range(len(given.pad) // 2):
        before[rank - 1 - i], behind[rank - 1 - i] = given.pad[2 * i : 2 * i + 2]
    (source,), made = find_moved(writer, node, [given.self])
    value = float(given.value)
    if is_quantize(made):
        least, most = read_quantum(made).limit((-math.inf, math.inf)) or (value, value)
        value = max(least, min(most, value))
    last = writer.is_last(source)
    if last:
        before, behind = permute(before, LAST[rank]), permute(behind, LAST[rank])
    number = writer.read(source, last)
    writer.add(
        "XNNStaticConstantPad",
        pre_paddings=before,
        post_paddings=behind,
        padding_value=value,
        input_id=number,
        output_id=writer.define(made, last),
    )


def explain_pad(node: Node, facts: ProgramFacts) -> str:
    amounts = read_arguments(node).pad
    if any(isinstance(a, Node) for a in amounts):
        return "its amounts are computed"
    return "it takes away" if any(a < 0 for a in amounts) else ""


MOST_JOINED = 5


def write_join(writer: PartWriter, node: Node) -> None:
    """Join tensors, five at a time."""
    sources: list[Any] = list(node.args[0])  # type: ignore[arg-type]
    parts, made = find_moved(writer, node, sources)
    rank = len(size_of(node))
    dim: int = read_arguments(node).dim % rank
    last = any(writer.is_last(p) for p in parts)
    write_joined(writer, made, [(writer.read(p, last), size_of(p)[dim]) for p in parts], dim, last)


def write_joined(
    writer: PartWriter, node: Node, left: list[tuple[int, Size]], dim: int, last: bool
) -> None:
    """Join values along a dimension of the program; each has its length there."""
    rank = len(size_of(node))
    axis = LAST[rank].index(dim) if last else dim
    while len(left) > MOST_JOINED:
        some, rest = left[:MOST_JOINED], left[MOST_JOINED:]
        length = sum(length for _, length in some)
        size = [*size_of(node)[:dim], length, *size_of(node)[dim + 1 :]]
        made = writer.new(permute(size, LAST[rank]) if last else size, find_form(node))
        _write_some(writer, [number for number, _ in some], axis, made)
        left = [(made, length), *rest]
    if len(left) == 1:
        writer.add("XNNCopy", input_id=left[0][0], output_id=writer.define(node, last))
        return
    _write_some(writer, [number for number, _ in left], axis, writer.define(node, last))


def _write_some(writer: PartWriter, numbers: list[int], axis: int, made: int) -> None:
    inputs = {f"input{i + 1}_id": number for i, number in enumerate(numbers)}
    writer.add(f"XNNConcatenate{len(numbers)}", axis=axis, output_id=made, **inputs)


VIEWS = (
    "aten::view_copy",
    "aten::squeeze_copy.dims",
    "aten::squeeze_copy.dim",
    "aten::unsqueeze_copy",
)
SHAPES = {
    "aten::squeeze_copy.dims": OperatorEntry(write_view, explain_view, lazy=True),
    "aten::squeeze_copy.dim": OperatorEntry(write_view, explain_view, lazy=True),
    "aten::unsqueeze_copy": OperatorEntry(write_view, explain_view, lazy=True),
    "aten::expand_copy": OperatorEntry(write_expand, explain_expand, lazy=True),
    "aten::permute_copy": OperatorEntry(write_permute, lazy=True),
    "aten::constant_pad_nd": OperatorEntry(write_pad, explain_pad),
    "aten::cat": OperatorEntry(write_join),
}
"""The operators of this family, by name."""
