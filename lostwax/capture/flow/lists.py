"""Lists to which a loop appends, where only the program knows how often the loop runs.

Such a list holds, in the place of all that the loop has appended, one object that stands for it:
`Rows`, a tensor with a row for each element. What can be answered of such a list is answered
(`torch.stack`, `torch.cat`, `len`, `list[-1]`, `list[::-1]`); else its length has to be a number
that Python knows, or it is refused. While the loop is recorded the list holds `Pending` there.
Until a loop appends to it, it is a list like any other. Must not know how a loop is recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from lostwax.capture.flow.truths import OpenLength, is_open_number
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON, Location

PASSING_ON.add(__file__)
_WHY = "it has as many elements as a loop has turns, which is known only when the program runs"
_INSTEAD = (
    "torch.stack(list, dim), torch.cat(list, dim), len(list), list[i], list[::-1] and "
    "`for x in list` are understood; compute with torch.stack(list)"
)


class Span:
    """Some elements of a list, we do not know how many."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """A function of torch is given the list, which torch looks into."""
        join = _JOINING.get(function)
        options = kwargs or {}
        lists = [each for each in (*args, *options.values()) if isinstance(each, GrowingList)]
        for each in lists:
            each.check_complete(f"torch.{function.__name__}")
        if join is None or len(lists) != 1:
            name = getattr(function, "__name__", "a function of torch")
            raise _refuse(f"{name} is given a list to which a loop has appended")
        return join(*args, **options)


class Rows(Span):
    """The elements that a loop has appended: the rows of a tensor."""

    def __init__(
        self, tensor: Tensor, where: Location, is_dense: bool = True, is_reversed: bool = False
    ) -> None:
        self.tensor, self.where = tensor, where
        self._is_dense, self._is_reversed = is_dense, is_reversed

    @property
    def length(self) -> Any:
        return self.tensor.shape[0]

    def take(self, at: Any) -> Tensor:
        """One element."""
        self._check_dense()
        return self.tensor[-1 - at if self._is_reversed else at]

    def reverse(self) -> Rows:
        return Rows(self.tensor, self.where, self._is_dense, not self._is_reversed)

    def cut(self, start: Any, stop: Any) -> Rows:
        """Those from a place to another one."""
        self._check_dense()
        if self._is_reversed:
            raise _refuse("a part is taken of a list that was reversed")
        return Rows(self.tensor[start:stop], self.where)

    def in_order(self, ndim: int) -> Tensor:
        """The tensor with its rows in the order of the list, of which something of so many
        dimensions is made."""
        if ndim > 3:
            self._check_dense()
        return self.tensor.flip(0) if self._is_reversed else self.tensor

    def _check_dense(self) -> None:
        if not self._is_dense:
            raise CaptureError.here(
                "an element of a list to which a loop has appended is read, and the loop appends "
                "tensors that are not contiguous",
                why="the program keeps the elements as rows of one tensor, which lie otherwise in "
                "memory",
                instead="append x.contiguous(), or use torch.stack(list)",
            )

    def __repr__(self) -> str:
        return f"<{self.length} tensors>"


class Pending(Span):
    """The elements that a loop will have appended, while it is recorded."""

    def __init__(self, count: Callable[[], Any], read_last: Callable[[], Any]) -> None:
        self._count, self.read_last = count, read_last

    @property
    def length(self) -> Any:
        return self._count()

    def __repr__(self) -> str:
        return "<what the loop appends>"


class GrowingList(OpenLength, list[Any]):
    """A list that loops may append to."""

    __slots__ = ()
    __hash__ = None

    def list_parts(self) -> list[Any]:
        """Its elements, and what stands for some."""
        return [*list.__iter__(self)]

    @property
    def is_open(self) -> bool:
        """Is it not known how many elements it has?"""
        return any(isinstance(each, Span) for each in list.__iter__(self))

    @property
    def rows(self) -> Rows | None:
        """What stands for its elements, if it is one thing."""
        parts = self.list_parts()
        return parts[0] if len(parts) == 1 and isinstance(parts[0], Rows) else None

    def check_complete(self, what: str) -> None:
        """Refuse to tell something of it while a loop appends to it."""
        if any(isinstance(each, Pending) for each in list.__iter__(self)):
            raise CaptureError.here(
                f"{what} of a list in the loop that appends to it",
                why="how long the list is there depends on the turn of the loop",
                instead="hand on a tensor from turn to turn; len(list) and list[-1] are "
                "understood there, and the rest after the loop",
            )

    # ------------------------------------------------------------------------ what can be answered

    def __len__(self) -> int:
        """A number that may be symbolic: Python's `len` asks for a plain one then."""
        return self.count_elements()  # type: ignore[no-any-return]

    def count_elements(self) -> Any:
        parts = self.list_parts()
        return sum(each.length if isinstance(each, (Rows, Pending)) else 1 for each in parts)

    def __bool__(self) -> bool:
        known = [each for each in list.__iter__(self) if not isinstance(each, Span)]
        return bool(known) or bool(self.count_elements() > 0)

    def __getitem__(self, key: Any) -> Any:
        if not self.is_open:
            return list.__getitem__(self, key)
        if isinstance(key, slice):
            return self._cut(key)
        if self.rows is not None:
            return self.rows.take(key)
        from_end = isinstance(key, int) and key < 0
        parts, at = (self.list_parts()[::-1], -1 - key) if from_end else (self.list_parts(), key)
        for each in parts:
            if isinstance(each, Pending):
                if from_end and at == 0:
                    return each.read_last()
                self.check_complete(f"the element [{key}]")
            size = each.length if isinstance(each, Rows) else 1
            if at < size:
                if isinstance(each, Rows):
                    return each.take(-1 - at if from_end else at)
                return each
            at = at - size
        raise IndexError("list index out of range")

    def _cut(self, key: slice) -> GrowingList:
        start, stop, step = key.start, key.stop, key.step
        parts = self.list_parts()
        if (start, stop) == (None, None) and step in (None, 1, -1):
            return GrowingList(parts) if step != -1 else GrowingList(_reverse(parts))
        self.check_complete("a part")
        if step in (None, 1) and self.rows is not None:
            return GrowingList([self.rows.cut(start, stop)])
        known = next(i for i, each in enumerate(parts) if isinstance(each, Span))
        if step in (None, 1) and stop is None and isinstance(start, int) and 0 <= start <= known:
            return GrowingList(parts[start:])
        raise _refuse("a part is taken of a list to which a loop has appended")

    def __iter__(self) -> Iterator[Any]:
        return list.__iter__(self._settle("a list to which a loop has appended is iterated"))

    def iterate_backwards(self) -> Iterator[Any]:
        return list.__reversed__(self._settle("a list to which a loop has appended is iterated"))

    __reversed__ = iterate_backwards

    def _settle(self, what: str) -> list[Any]:
        """The elements, one by one: their number is asked for."""
        if not self.is_open:
            return self.list_parts()
        self.check_complete("the elements")
        found: list[Any] = []
        for each in self.list_parts():
            if not isinstance(each, Rows):
                found.append(each)
                continue
            if is_open_number(each.length):
                raise _ask(what)
            found += [each.take(i) for i in range(operator.index(each.length))]
        return found

    # ------------------------------------------------------------------------ what is made of it

    def extend(self, values: Iterable[Any]) -> None:
        list.extend(self, values.list_parts() if isinstance(values, GrowingList) else values)

    def __iadd__(self, values: Iterable[Any]) -> GrowingList:  # type: ignore[misc]
        self.extend(values)
        return self

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        return GrowingList([*self.list_parts(), *list.__iter__(other)])

    def __radd__(self, other: Any) -> Any:
        """Python asks this for `other += list`, too, where the other one would have to change."""
        if self.is_open and isinstance(other, list):
            raise _ask("a list is joined with one to which a loop has appended")
        return NotImplemented

    def copy(self) -> GrowingList:
        return GrowingList(self.list_parts())

    def reverse(self) -> None:
        list.__setitem__(self, slice(None), _reverse(self.list_parts()))

    def __setitem__(self, key: Any, value: Any) -> None:
        if key != slice(None):
            self._check_known("an element of", "replaced")
        list.__setitem__(self, key, value)

    def _check_known(self, what: str, done: str) -> None:
        if self.is_open:
            raise _refuse(f"{what} a list to which a loop has appended is {done}")


def _ask(what: str) -> CaptureError:
    """The refusal of a list that is read one by one: in a loop with hooks it can be."""
    error = _refuse(what)
    error.is_question = True  # type: ignore[attr-defined]
    return error


def make_plain(result: Any) -> Any:
    """What a module returns, with lists in the places of those that are known whole."""

    def make(leaf: Any) -> Any:
        if not isinstance(leaf, GrowingList):
            return leaf
        for each in leaf.list_parts():
            if not isinstance(each, Rows):
                continue
            raise CaptureError(
                f"the module returns a list to which a loop appends.\n  at {each.where}\n"
                f"  why: {_WHY}, and a program returns a known number of tensors\n"
                "  instead: return one tensor, torch.stack(list)"
            )
        return pytree.tree_map(make, leaf.list_parts())

    return pytree.tree_map(make, result)


def _refuse(what: str) -> CaptureError:
    return CaptureError.here(what, why=_WHY, instead=_INSTEAD)


def _reverse(parts: Sequence[Any]) -> list[Any]:
    reversed_parts = []
    for each in reversed(parts):
        if isinstance(each, Pending):
            raise _refuse("a list is reversed in the loop that appends to it")
        reversed_parts.append(each.reverse() if isinstance(each, Rows) else each)
    return reversed_parts


def _refuse_if_open(name: str) -> Any:
    """A method of lists, where it is known what is in the list."""
    plain = getattr(list, name)

    def method(self: GrowingList, *args: Any, **kwargs: Any) -> Any:
        if self.is_open:
            raise _refuse(f"list.{name} is called on a list to which a loop has appended")
        return plain(self, *args, **kwargs)

    return method


for _name in (
    *("insert", "pop", "remove", "sort", "index", "count"),
    *("__contains__", "__delitem__", "__mul__", "__rmul__", "__imul__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__reduce_ex__"),
):
    setattr(GrowingList, _name, _refuse_if_open(_name))


# --------------------------------------------------------------------------------------- one tensor


def _stack(tensors: GrowingList, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    def lie_along(each: Any) -> Tensor:
        if not isinstance(each, Rows):
            return torch.unsqueeze(each, dim)
        rows = each.in_order(each.tensor.ndim)
        return rows if dim == 0 else rows.movedim(0, dim)

    return _join_parts(tensors, lie_along, dim, out)


def _concatenate(
    tensors: GrowingList, dim: int = 0, *, axis: int | None = None, out: Tensor | None = None
) -> Tensor:
    dim = dim if axis is None else axis

    def lie_along(each: Any) -> Tensor:
        if not isinstance(each, Rows):
            return each  # type: ignore[no-any-return]
        ndim = each.tensor.ndim - 1
        if ndim == 0:
            raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
        place = dim + ndim if dim < 0 else dim
        rows = each.in_order(ndim)
        return (rows.movedim(0, place) if place else rows).flatten(place, place + 1)

    return _join_parts(tensors, lie_along, dim, out)


def _join_parts(
    tensors: GrowingList, lie_along: Callable[[Any], Tensor], dim: int, out: Tensor | None
) -> Tensor:
    if out is not None:
        raise _refuse("a list to which a loop has appended is written to a tensor (out=)")
    parts = tensors.list_parts()
    if not any(not isinstance(each, Rows) for each in parts):
        torch._check(tensors.count_elements() > 0, lambda: "expected a non-empty list of Tensors")
    # What is laid in place is contiguous, as it is in eager: torch.cat would take on its strides.
    made = [
        lie_along(each).clone(memory_format=torch.contiguous_format)
        if isinstance(each, Rows)
        else lie_along(each)
        for each in parts
    ]
    return made[0] if len(made) == 1 else torch.cat(made, dim)


_JOINING: dict[Any, Callable[..., Tensor]] = {
    torch.stack: _stack,
    torch.cat: _concatenate,
    torch.concat: _concatenate,
    torch.concatenate: _concatenate,
}
