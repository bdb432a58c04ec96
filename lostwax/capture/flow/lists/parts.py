"""Parts of a tensor and numbers in one, where only the program knows how many there are:
`x.split(lengths)`, `x.tolist()`. Must not know of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.spans import Appended, Pieces, Rows, Scalars, refuse
from lostwax.capture.flow.truths import is_open_number
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, Location, user_location

PASSING_ON.add(__file__)


class TupleOfUnknownLength(ListOfUnknownLength):
    """The same where Python has a tuple, which nobody changes."""

    __slots__ = ()

    def _lw_class(self) -> type:
        return tuple

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What it is for our own code, and for C's."""
        return list

    def copy(self) -> TupleOfUnknownLength:
        return TupleOfUnknownLength(self.list_parts())

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return TupleOfUnknownLength(found.list_parts()) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        if type(other) is not tuple and not isinstance(other, TupleOfUnknownLength):
            return NotImplemented
        return TupleOfUnknownLength([*self.list_parts(), *list.__iter__([*other])])


def _refuse_change(self: TupleOfUnknownLength, *args: Any, **options: Any) -> NoReturn:
    raise refuse("a tuple of which data decide how long it is, is changed like a list")


_CHANGES = (
    *("append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
)
for _name in _CHANGES:
    setattr(TupleOfUnknownLength, _name, _refuse_change)


class NumbersOfRow(list[Any]):
    """A list in `x.tolist()`. Who reads it again gets another one, so it may not change."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What it is to the user, and for our own code."""
        return list


def _refuse_row_change(self: NumbersOfRow, *args: Any, **options: Any) -> NoReturn:
    raise refuse("a list in x.tolist(), of which a size or data decide how long it is, is changed")


class ListsOfNumbers(Appended):
    """Lists of numbers, each as long as the others, or lists of such: the rows of a tensor."""

    shown = "lists"
    joined = "torch.tensor(list)"

    def __init__(self, tensor: torch.Tensor, where: Location) -> None:
        self.tensor, self.where = tensor, where

    @property
    def length(self) -> Any:
        return self.tensor.shape[0]

    def take(self, at: Any) -> Any:
        found = self.tensor[at].tolist()
        return found if isinstance(found, ListOfUnknownLength) else NumbersOfRow(found)

    def cut(self, start: Any, stop: Any) -> ListsOfNumbers:
        return ListsOfNumbers(self.tensor[start:stop], self.where)

    def reverse(self) -> ListsOfNumbers:
        return ListsOfNumbers(self.tensor.flip(0), self.where)


for _name in _CHANGES:
    setattr(NumbersOfRow, _name, _refuse_row_change)


def list_numbers(original: Any, /) -> Any:
    """`x.tolist()`."""
    tensor = original.__self__
    is_open = [is_open_number(size) for size in tensor.shape]
    if not any(is_open):
        return original()
    if not is_open[0]:
        return [list_numbers(row.tolist) for row in tensor]
    dtype = _WIDEST.get(tensor.dtype)
    if any(is_open[1:]) or tensor.dtype not in _WIDEST:
        return original()
    numbers = tensor.detach().to("cpu", dtype, copy=True)
    make = Scalars if tensor.ndim == 1 else ListsOfNumbers
    return ListOfUnknownLength([make(numbers, user_location())])


_WIDEST = {
    torch.bool: torch.bool,
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), torch.float64),
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), torch.int64),
    torch.uint8: torch.int64,
}
"""In which dtype a number is kept as Python has it."""


def split_into(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """`x.split(lengths)`, of a list whose length is open; None, if Python has to do it."""
    kind = getattr(function, "__name__", "")
    if kind not in ("split", "split_with_sizes"):
        return None
    given = dict(options)
    tensor = getattr(function, "__self__", None)
    if type(tensor) is not FakeTensor:
        named = [given.pop(name) for name in ("tensor", "input") if name in given]
        tensor, *args = [*named, *args]
    named = [given.pop(name) for name in _LENGTHS if name in given]
    lengths, *rest = [*named, *args]
    dim = given.pop("dim", rest[0] if rest else 0)
    is_open = isinstance(lengths, ListOfUnknownLength) and lengths.is_open
    if not is_open or type(tensor) is not FakeTensor or type(dim) is not int:
        return None
    span = lengths.find_span()
    is_of_tensors = isinstance(span, Rows) and span.tensor.ndim == 1
    if is_of_tensors and not span.tensor.dtype.is_floating_point:
        span = Scalars(span.in_order(0).to("cpu", torch.int64), span.where)
    if not isinstance(span, Scalars) or not -tensor.ndim <= dim < tensor.ndim:
        return None
    return TupleOfUnknownLength([_split(tensor, span.tensor, dim % tensor.ndim)])


_LENGTHS = ("split_size", "split_size_or_sections", "split_sizes")


def _split(tensor: FakeTensor, lengths: torch.Tensor, dim: int) -> Pieces:
    are_lengths: Any = (lengths >= 0).all().item()
    torch._check(are_lengths, lambda: "split_with_sizes expects only non-negative entries")
    is_whole: Any = (lengths.sum() == tensor.shape[dim]).item()
    torch._check(
        is_whole, lambda: "split_with_sizes expects split_sizes to sum exactly to the size"
    )
    return Pieces(tensor, lengths, user_location(), dim)
