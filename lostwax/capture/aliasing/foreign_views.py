"""Memory of state that is seen past torch: through an array of numpy's, or a tensor that was made
of one (`torch.from_numpy`, DLPack).

torch knows two storages there, and so does a capture; a write to one shows in the other. Where the
call writes to such state, that is refused. Must not look at values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lostwax.classes import TENSORS
from lostwax.errors import CaptureError
from lostwax.fake.convert import type_of
from lostwax.memory import byte_span


class Memory(NamedTuple):
    """A range of memory."""

    start: int
    end: int
    owner: int
    """The storage; tensors in one are known to share it."""
    what: str


def check_foreign_views(
    written: Sequence[tuple[str, torch.Tensor]],
    tensors: Iterable[tuple[str, torch.Tensor]],
    modules: Iterable[nn.Module],
    names_read: Iterable[str],
) -> None:
    """Refuse state that is written to, if a tensor of another storage lies in its memory, or an
    array in a module whose attribute is read."""
    others = [*_find_tensors(tensors), *_find_arrays(modules, frozenset(names_read))]
    others.sort()
    for own in _find_tensors(written):
        for other in others:
            if other.start >= own.end:
                break
            if other.end > own.start and other.owner != own.owner:
                raise CaptureError(
                    f"{own.what} is written to, and shares memory with {other.what}, through "
                    "numpy or DLPack.\n"
                    "  why: the program could not show the write there: it has the values that "
                    "are in it now\n"
                    "  instead: take both of the same tensor, with x[...] or x.view(...); or keep "
                    "a copy (x.clone(), array.copy())"
                )


def _find_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Memory]:
    for what, tensor in tensors:
        if type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            if base := storage.data_ptr():
                start, end = map(int, byte_span(type_of(tensor)))
                yield Memory(base + start, base + end, storage._cdata, what)


def _find_arrays(modules: Iterable[nn.Module], names: frozenset[str]) -> Iterator[Memory]:
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, (np.ndarray, memoryview)) and name in names:
                yield Memory(
                    *_find_bounds(np.asarray(value)), 0, f"{name}, a {type(value).__name__}"
                )


def _find_bounds(array: Any) -> tuple[int, int]:
    start = end = array.__array_interface__["data"][0]
    if not array.size:
        return start, end
    for size, stride in zip(array.shape, array.strides, strict=True):
        start, end = start + min(0, (size - 1) * stride), end + max(0, (size - 1) * stride)
    return start, end + array.itemsize
