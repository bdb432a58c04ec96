"""FakeStorage: it stands for the memory that a family of fakes shares. Must not allocate any."""

from __future__ import annotations

import torch

from lostwax.memory import byte_span
from lostwax.sym import Expr, Size
from lostwax.types import TensorType


class FakeStorage:
    """The memory that a family of views shares: an identity, a size, and a count of its writes."""

    __slots__ = ("__weakref__", "_nbytes", "first", "version")

    def __init__(self, first: TensorType, nbytes: Size | None = None) -> None:
        self.first = first
        """The type of the tensor that it was made for."""
        self._nbytes = nbytes
        self.version = 0

    @property
    def device(self) -> torch.device:
        return self.first.device

    @property
    def nbytes(self) -> Size:
        """Its size, computed when it is asked for, since every new tensor makes a storage."""
        if self._nbytes is None:
            first, end = byte_span(self.first)
            self._nbytes = end - first
        return self._nbytes

    def __repr__(self) -> str:
        return f"FakeStorage({self.nbytes} bytes, {self.device})"


class NumberStorage(FakeStorage):
    """The memory of a tensor that was made of one symbolic integer. Until it is written to, that is
    its only element, whichever view asks."""

    __slots__ = ("number",)

    def __init__(self, first: TensorType, number: Expr) -> None:
        super().__init__(first)
        self.number = number

    def holds_number(self, dtype: torch.dtype) -> bool:
        """Is the number what a tensor of this dtype shows of it?"""
        return self.version == 0 and dtype is self.first.dtype
