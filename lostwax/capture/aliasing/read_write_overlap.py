"""Writes that read, through another view, the memory they write to: `a.add_(a.t())`.

What they leave depends on the order in which elements are computed. Eager refuses most of them; in
others it computes something that no functional program does (`a[:, 1:] += a[:, :-1]`). Both are
refused. Where the same element is read and written, or what is read lies ahead of what is written,
the order is no matter. Must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.memory import byte_span, overlap, places, span
from lostwax.ops.registry import operator
from lostwax.ops.traits import Trait
from lostwax.types import TensorType


def check(func: OpOverload, target: FakeTensor, operands: Iterable[Any]) -> None:
    """May the call write to the target, and read these?"""
    storage = target.fake_storage
    for each in operands:
        if type(each) is FakeTensor:
            if each.fake_storage is storage:
                _check_pair(func, target, each)
        elif each.__class__ is list or each.__class__ is tuple:
            check(func, target, each)


def check_apart(func: OpOverload, targets: list[FakeTensor]) -> None:
    """May the call write to all of these? Not where two are one memory: a functional program
    computes both from what was there before, eager computes the second from the first."""
    if len({each.fake_storage for each in targets}) == len(targets):
        return
    for number, one in enumerate(targets):
        for other in targets[:number]:
            if other.fake_storage is one.fake_storage and _may_overlap(one, other):
                raise CaptureError.here(
                    f"{func} writes to two tensors that share memory",
                    why="what it leaves would depend on the order of its writes",
                    instead="write to a copy of one of them, x.clone()",
                )


def _may_overlap(one: FakeTensor, other: FakeTensor) -> bool:
    a, b = one.fake_type.at_example(), other.fake_type.at_example()
    return a is None or b is None or overlap(a, b)


def _check_pair(func: OpOverload, target: FakeTensor, read: FakeTensor) -> None:
    traits = operator(func).traits
    if read.fake_type.ndim == 0 and Trait.READS_NUMBER_FIRST in traits:
        return
    is_pointwise = torch.Tag.pointwise in func.tags or Trait.COPIES_INTO in traits
    is_apart = Trait.READS_ELSEWHERE in traits
    if read is target and not is_apart:
        return
    written, seen = target.fake_type.at_example(), read.fake_type.at_example()
    if written is None or seen is None:
        return
    if _is_disturbed(written, seen, is_pointwise, is_apart):
        raise CaptureError.here(
            f"{func} reads the memory that it writes to",
            why="what it leaves would depend on the order of its elements; eager refuses most "
            "such writes",
            instead="read a copy, x.clone()",
        )


def _is_disturbed(a: TensorType, b: TensorType, is_pointwise: bool, is_apart: bool) -> bool:
    if not overlap(a, b):
        return False
    if (a.size, a.stride, a.offset, a.dtype) == (b.size, b.stride, b.offset, b.dtype):
        return is_apart
    if a.is_dense and b.is_dense:  # here eager refuses
        return byte_span(a) != byte_span(b) or a.stride != b.stride or is_apart
    return not is_pointwise or a.dtype is not b.dtype or _is_out_of_order(a, b)


def _is_out_of_order(written: Any, read: Any) -> bool:
    """Is there a place that is read for another element than the one it is written for? They
    overlap."""
    if written.size == read.size and written.stride == read.stride:
        return bool(read.offset <= written.offset)  # else it is read before it is written
    (start, end), (other, last) = span(written), span(read)
    first: Any = min(start, other)
    room: Any = max(end, last) - first
    if room > _MOST:
        return False
    owner = np.full(room, -1)
    elements = np.arange(written.numel()).reshape(written.size)
    owner[places(written) - first] = elements
    seen = np.broadcast_to(owner[places(read) - first], written.size)
    return bool(((seen >= 0) & (seen != elements)).any())


_MOST = 1 << 24
"""Elements that are looked at one by one."""
