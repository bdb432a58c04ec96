"""FakeStorage: the memory that a family of fakes shares, without memory."""

from __future__ import annotations

import torch

from lostwax.sym import Size
from lostwax.types import TensorType, product


class FakeStorage:
    """The memory a family of views shares: an identity, a size, and a count of the writes to it."""

    __slots__ = ("__weakref__", "_nbytes", "first", "version")

    def __init__(self, first: TensorType, nbytes: Size | None = None) -> None:
        self.first = first
        """The type it was made for."""
        self._nbytes = nbytes
        self.version = 0

    @property
    def device(self) -> torch.device:
        return self.first.device

    @property
    def nbytes(self) -> Size:
        """Its size; counted when asked, since it is made for every new tensor."""
        if self._nbytes is None:
            self._nbytes = _extent(self.first)
        return self._nbytes

    def __repr__(self) -> str:
        return f"FakeStorage({self.nbytes} bytes, {self.device})"


def _extent(t: TensorType) -> Size:
    """Bytes from the first to the last element of a new tensor."""
    if t._contiguous:
        return product(t.size) * t.dtype.itemsize
    last: Size = 1
    for s, st in zip(t.size, t.stride, strict=True):
        if s.__class__ is int and s == 0:
            return 0
        last = last + (s - 1) * st
    return last * t.dtype.itemsize
