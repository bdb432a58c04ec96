"""Views as strides: a chain of them is one copy, or none.

The runtime has only contiguous tensors, so that a view is a copy. Its `as_strided_copy` is ten
times as fast as `permute_copy` or `slice_copy`, and computes any chain of views at once. So a view
that only other views read is kept as strides over the tensor that it is of, and written when
something else reads it. Must not plan memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.pte.lowering.listing import Tensor
from lostwax.pte.lowering.select import fill_with_zeros, select_bmm, sums_nothing
from lostwax.pte.lowering.writer import CallWriter, Pending
from lostwax.sym import Size
from lostwax.types import Sizes, contiguous_strides, product

PRODUCT = "aten::bmm"


@dataclass(frozen=True, eq=False)
class Strided(Pending):
    """A view of a tensor: the elements at these strides, from an offset on."""

    base: Tensor
    size: Sizes
    stride: Sizes
    offset: Size
    source: Node
    """The node whose value the base is."""

    @property
    def is_whole(self) -> bool:
        """Are these all elements of the base, in their order?"""
        if self.offset != 0 or product(self.size) != product(self.base.size):
            return False
        plain = contiguous_strides(self.size)
        dims = zip(self.size, self.stride, plain, strict=True)
        return all(size == 1 or a == b for size, a, b in dims)

    @property
    def transposed(self) -> Strided:
        """The matrices of it, transposed."""
        (*size, rows, columns), (*stride, down, right) = self.size, self.stride
        return _with(self, (*size, columns, rows), (*stride, right, down))

    def write(self, writer: CallWriter) -> Tensor:
        """The elements in memory of their own; as they are, if they are all there in order."""
        listing, base = writer.listing, self.base
        if self.is_whole:
            return listing.view(base, self.size)
        if self._is_only_reader:
            data = base.storage.data
            assert data is not None
            offset: Any = self.offset + data.storage_offset()
            made = data.as_strided(self.size, self.stride, offset)  # type: ignore[arg-type]
            return listing.new_constant(made, base.storage.name)
        size, stride = _merge_dims(self.size, self.stride)
        out = listing.new_tensor(size, base.dtype)
        numbers = [[listing.number(n) for n in each] for each in (size, stride)]
        offset = listing.number(self.offset)
        writer.call("aten::as_strided_copy.out", base, *numbers, offset, outs=[out])
        return listing.view(out, self.size)

    @property
    def _is_only_reader(self) -> bool:
        """Is it a view of a constant that nothing else reads? Then it is a constant itself."""
        if not self.base.storage.is_constant or len(self.source.users) != 1:
            return False
        return self.source.op == "placeholder" and product(self.size) == product(self.base.size)


def _merge_dims(size: Sizes, stride: Sizes) -> tuple[Sizes, Sizes]:
    """The same elements in fewer dimensions: the kernel is fast along the last one."""
    if any(not isinstance(s, int) for s in size):
        return size, stride
    merged: list[tuple[Size, Size]] = []
    for s, step in zip(size, stride, strict=True):
        if s == 1:
            continue
        if merged and merged[-1][1] == s * step:
            merged[-1] = merged[-1][0] * s, step
        else:
            merged.append((s, step))
    return tuple(s for s, _ in merged), tuple(step for _, step in merged)


# --------------------------------------------------------------------------------------- the views

View = Callable[[Strided, Node], Strided | list[Strided] | None]
"""What a view of a view is; None if strides cannot say it."""


def _with(x: Strided, size: Sequence[Size], stride: Sequence[Size], offset: Size = 0) -> Strided:
    return Strided(x.base, tuple(size), tuple(stride), x.offset + offset, x.source)


def _args(node: Node, *defaults: Any) -> list[Any]:
    """The arguments after the first, with defaults for those that are left out."""
    given = node.args[1:]
    return [*given, *defaults[len(given) :]]


def permute(x: Strided, node: Node) -> Strided:
    (dims,) = _args(node)
    return _with(x, [x.size[d] for d in dims], [x.stride[d] for d in dims])


def transpose(x: Strided, node: Node) -> Strided:
    a, b = _args(node)
    order = list(range(len(x.size)))
    if order:
        order[a], order[b] = order[b], order[a]
    return _with(x, [x.size[d] for d in order], [x.stride[d] for d in order])


def expand(x: Strided, node: Node) -> Strided | None:
    size = node.meta["val"].fake_type.size
    more = len(size) - len(x.size)
    stride: list[Size] = [0] * more
    for old, step, new in zip(x.size, x.stride, size[more:], strict=True):
        if old != new and old != 1:
            return None
        stride.append(step if old == new else 0)
    return _with(x, size, stride)


def select(x: Strided, node: Node) -> Strided | None:
    dim, at = _args(node)
    dim %= len(x.size)
    if not isinstance(at, int) or (at < 0 and not isinstance(x.size[dim], int)):
        return None
    place = at if at >= 0 else x.size[dim] + at
    stride = x.stride
    return _with(
        x,
        (*x.size[:dim], *x.size[dim + 1 :]),
        (*stride[:dim], *stride[dim + 1 :]),
        place * stride[dim],
    )


def slice_dim(x: Strided, node: Node) -> Strided | None:
    dim, start, _, step = _args(node, 0, None, None, 1)
    dim %= len(x.size)
    start = 0 if start is None else start
    length = x.size[dim]
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    if start != 0:
        if not isinstance(length, int):
            return None
        start = min(max(start + length if start < 0 else start, 0), length)
    stride = list(x.stride)
    offset = start * stride[dim]
    stride[dim] = stride[dim] * step
    return _with(x, node.meta["val"].fake_type.size, stride, offset)


def split(x: Strided, node: Node) -> list[Strided]:
    _, dim = _args(node, None, 0)
    dim %= len(x.size)
    parts, start = [], 0
    for value in node.meta["val"]:
        size = value.fake_type.size
        parts.append(_with(x, size, x.stride, start * x.stride[dim]))
        start = start + size[dim]
    return parts


def unfold(x: Strided, node: Node) -> Strided | None:
    """Windows of a dimension; the kernel ends the process if there is none."""
    dim, _, step = _args(node)
    if not isinstance(step, int):
        return None
    stride = [*x.stride, x.stride[dim]] if x.size else [1]
    if x.size:
        stride[dim % len(x.size)] *= step
    return _with(x, node.meta["val"].fake_type.size, stride)


def view(x: Strided, node: Node) -> Strided | None:
    """The same elements in other sizes, if they lie so that strides can say it: each group of
    dimensions that becomes another group must lie together."""
    new = node.meta["val"].fake_type.size
    if 0 in x.size or 0 in new:
        return None
    old = [(s, step) for s, step in zip(x.size, x.stride, strict=True) if s != 1]
    stride: list[Size] = []
    left = list(new)
    while left:
        size = left.pop(0)
        if size == 1:
            stride.append(0)
            continue
        if not old:
            return None
        (length, step), *old = old
        group = [size]
        while size != length:
            if not isinstance(size, int) or not isinstance(length, int):
                return None
            if length < size:
                if not old or old[0][0] * old[0][1] != step:
                    return None
                (more, step), *old = old
                if not isinstance(more, int):
                    return None
                length *= more
            elif left and isinstance(left[0], int):
                group.append(left.pop(0))
                size *= group[-1]
            else:
                return None
        steps = [step * product(group[i + 1 :]) for i in range(len(group))]
        stride += steps
    return None if old else _with(x, new, stride)


VIEWS: dict[str, View] = {
    "aten::expand_copy": expand,
    "aten::permute_copy": permute,
    "aten::select_copy.int": select,
    "aten::slice_copy.Tensor": slice_dim,
    "aten::split_copy.Tensor": split,
    "aten::split_with_sizes_copy": split,
    "aten::squeeze_copy.dim": view,
    "aten::squeeze_copy.dims": view,
    "aten::transpose_copy.int": transpose,
    "aten::t_copy": lambda x, _: _with(x, x.size[::-1], x.stride[::-1]),
    "aten::unfold_copy": unfold,
    "aten::unsqueeze_copy": view,
    "aten::view_copy": view,
}
"""The views by the name of the operator."""

_UNKNOWN = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes that `as_strided_copy` does not take."""


def select_strided(writer: CallWriter, node: Node) -> Any:
    """A view, as strides, or written."""
    source: Any = node.args[0]
    given, view_of = writer.values[source], find_view(node)
    assert view_of is not None
    if not isinstance(given, Strided):
        given = _see_whole(writer.value(source), source)
    if given.base.dtype in _UNKNOWN:
        return None
    made = view_of(given, node)
    if made is None and given.source is not source:  # a view of what is written then
        made = view_of(_see_whole(writer.value(source), source), node)
    return settle_view(writer, node, made) if isinstance(made, Strided) else made


def _see_whole(tensor: Tensor, source: Node) -> Strided:
    return Strided(tensor, tensor.size, contiguous_strides(tensor.size), 0, source)


def settle_view(writer: CallWriter, node: Node, made: Strided) -> Strided | Tensor:
    """Write the view now, so that what it is of need not stay in memory. If it is read by one other
    view alone, that is written in its place, and so on; if by several, it waits for them. Views of
    constants wait, too: a kernel may read the constant itself."""
    if made.base.storage.is_constant:
        return made
    last, seen = node, made
    while len(last.users) == 1:
        (user,) = last.users
        found = _see_through(seen, user)
        if found is None or not writer.listing.knows(*found.size, *found.stride, found.offset):
            break
        last, seen = user, found
    if all(find_view(user) or _takes_transposed(user, last, seen) for user in last.users):
        return made
    if last is node:
        return made.write(writer)
    writer.values[last] = seen.write(writer)
    return made


def _takes_transposed(product: Node, matrices: Node, seen: Strided) -> bool:
    """Is this the product of single rows with matrices that lie transposed in memory? Then they are
    multiplied as they lie."""
    target = product.target
    if not isinstance(target, EdgeOperator) or target.name() != PRODUCT:
        return False
    rows: Any = product.args[0]
    is_row = rows is not matrices and rows.meta["val"].fake_type.size[1] == 1
    return is_row and seen.transposed.is_whole


def select_product(writer: CallWriter, node: Node) -> Any:
    """A row times the transpose of a matrix, such as a query and a cache of keys: the matrix as it
    lies times a column, which is the row as it lies."""
    rows, matrices = node.args
    seen: Any = writer.values[matrices]  # type: ignore[index]
    if not isinstance(seen, Strided) or not _takes_transposed(node, matrices, seen):  # type: ignore[arg-type]
        return select_bmm(writer, node)
    listing, row = writer.listing, writer.value(rows)
    plain = seen.transposed.write(writer)
    out = listing.new_tensor((*plain.size[:2], 1), plain.dtype)
    if sums_nothing(writer, rows):  # type: ignore[arg-type]
        fill_with_zeros(writer, out)
    column = listing.view(row, (row.size[0], row.size[2], 1))
    writer.call("aten::bmm.out", plain, column, outs=[out])
    return listing.view(out, node.meta["val"].fake_type.size)


def find_view(node: Node) -> View | None:
    """How this node sees its argument, if it is a view."""
    target = node.target
    return VIEWS.get(target.name()) if isinstance(target, EdgeOperator) else None


def _see_through(seen: Strided, node: Node) -> Strided | None:
    """This view of what is seen, if it is one view."""
    view_of = find_view(node)
    found = view_of(seen, node) if view_of is not None else None
    return found if isinstance(found, Strided) else None


STRIDED = {**dict.fromkeys(VIEWS, select_strided), PRODUCT: select_product}
"""The selections by the name of the operator."""
