"""The classes by which values are told apart: what an operator takes beside tensors.

They are asked by `in`, of the class itself: torch's classes are slow to be asked by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.fx.immutable_collections import immutable_list

T = TypeVar("T")
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers that are not known."""
SHOWN: dict[type, type] = dict(zip(SYMBOLIC, (int, float, bool), strict=True))
"""The classes that they are of to the program that is captured."""
PLAIN: frozenset[type] = frozenset(
    (int, float, bool, type(None), str, complex, torch.dtype, torch.layout, torch.memory_format)
)
"""What means the same everywhere. Not so a device: one without a number is the current one."""
LISTS = frozenset((list, tuple, immutable_list, torch.Size))
TENSORS = (torch.nn.Parameter, torch.Tensor)
"""Tensors that are nothing more."""


def list_nested(values: Iterable[Any], cls: type[T]) -> Iterator[T]:
    """The objects of a class among values, and in the lists and tuples there."""
    for each in values:
        if isinstance(each, cls):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from list_nested(each, cls)
