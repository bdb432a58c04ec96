"""Copies that keep the strides of eager, where nobody can see the strides.

`a, b = x.unsafe_chunk(2, 1); a.sigmoid_()` leaves gaps between the rows of `a`, and so a capture
copies the result into a memory with gaps: `as_strided(as_strided_scatter(zeros, a, ...), ...)`.
Neither core ATen nor the runtimes have that, and for most readers the result itself is as good.
Must not judge other uses of strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.retype import same_type
from lostwax.ops.registry import aten

OF_STRIDES = frozenset(
    (aten.as_strided.default, aten.sym_stride.int, aten.sym_storage_offset.default)
)


def find_closed(memory: Node, mode: FakeTensorMode, are_strides_seen: bool) -> Node | None:
    """What was put into this memory with gaps, if all who read the memory may read that instead.
    `are_strides_seen`: results must have the strides that they have."""
    source: Any = memory.args[1]
    places = tuple(memory.args[2:])
    given, kept = source.meta["val"], memory.meta["val"]
    if given.dtype is not kept.dtype or not _lie_apart(*places[:2]):
        return None
    for view in memory.users:
        if view.target is not aten.as_strided.default or tuple(view.args[1:]) != places:
            return None
        for reader in view.users:
            if reader.target in OF_STRIDES:
                return None
            if are_strides_seen and not _reads_alike(reader, view, given, mode):
                return None
    return source  # type: ignore[no-any-return]


def _lie_apart(size: Any, stride: Any) -> bool:
    """Has every element a place of its own? Only the outermost size may vary."""
    pairs = zip(stride, size, strict=True)
    dims = [(step, n) for step, n in pairs if n.__class__ is not int or n > 1]
    if not all(step.__class__ is int for step, _ in dims):
        return False
    reach: int | None = 0
    for step, n in sorted(dims, key=lambda dim: dim[0]):
        if reach is None or step <= reach:
            return False
        reach = reach + step * (n - 1) if n.__class__ is int else None
    return True


def _reads_alike(reader: Node, view: Node, given: FakeTensor, mode: FakeTensorMode) -> bool:
    """Does an operator give a result of the same type, in memory of its own, for either tensor?"""
    target = reader.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    if any(each.alias_info is not None for each in target._schema.returns):
        return False  # a view of it
    plain = FakeTensorMode(shape_env=mode.shape_env)  # the graph's own may be of a capture

    def take(node: Node) -> Any:
        value = given if node is view else node.meta["val"]
        return new_fake(plain, value.fake_type) if isinstance(value, FakeTensor) else value

    args, kwargs = map_arg((reader.args, reader.kwargs), take)
    try:
        with plain, torch.no_grad():
            return same_type(target(*args, **kwargs), reader.meta["val"])
    except Exception:
        return False  # then it stays as it is
