"""The classes by which values are told apart: what an operator takes beside tensors.

They are asked by `in`, of the class itself: torch's classes are slow to be asked by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.fx.immutable_collections import immutable_list

T = TypeVar("T")
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers that are not known."""
SHOWN: dict[type, type] = dict(zip(SYMBOLIC, (int, float, bool), strict=True))
"""The classes that they are of to the program that is captured."""


class StandsFor:
    """An object of ours where the program has another one in eager, of another class."""

    __slots__ = ()
    is_unknown = False
    """Is it not known what it stands for, so that it refuses all that it is asked?"""

    def _lw_class(self) -> type:
        """The class of that one."""
        raise NotImplementedError

    # `isinstance` asks for it. (Our own code asks for the type.)
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._lw_class()


class HasState(StandsFor):
    """One of which all that may change is in a list."""

    __slots__ = ("state",)

    def _lw_held(self) -> Sequence[Any]:
        """What it holds beside that."""
        return ()


def show_class(value: Any) -> type:
    """The class of a value, as the program that is captured sees it. (Tensors tell it
    themselves.)"""
    own = type(value)
    if issubclass(own, StandsFor):
        return value._lw_class()  # type: ignore[no-any-return]
    return SHOWN.get(own, own)


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
