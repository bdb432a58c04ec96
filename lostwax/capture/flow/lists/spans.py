"""What stands in a list for the elements that a loop has appended to it, we do not know how many.

`Rows` are tensors of one type, `Pieces` tensors of which each has a length of its own, `Scalars`
are numbers, and `Tuples` tuples of these. Each answers for one element by its place, for those of a
part, and for those backwards. In eager an element is the tensor itself that was appended: to lay it
into another one and to read it there is no step of the user's, and keeps its gradient also where he
has switched these off (`enable_grad`, here and where they are laid). Must not know how a loop is
recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from lostwax.capture import threads
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.fake.symbolic.node import unwrap
from lostwax.location import PASSING_ON, Location
from lostwax.sym import Expr, learn

PASSING_ON.add(__file__)
WHY = "how many elements it has is known only when the program runs"
INSTEAD = (
    "torch.stack(list, dim), torch.cat(list, dim), len(list), list[i], list[::-1] and "
    "`for x in list` are understood; compute with torch.stack(list)"
)


def refuse(what: str) -> CaptureError:
    return CaptureError.here(what, why=WHY, instead=INSTEAD)


class UnknownElements:
    """Some elements of a list, we do not know how many."""

    shown = "elements"

    @property
    def length(self) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        """What shows the list shows this in it; refused if that decides something."""
        if is_text_read(sys._getframe(1)):
            raise refuse("the text of a list to which a loop has appended decides something")
        return f"<{self.length} {self.shown}>"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """A function of torch is given the list, which torch looks into."""
        join = _JOINING.get(function)
        if join is None:
            name = getattr(function, "__name__", "a function of torch")
            raise refuse(f"{name} is given a list to which a loop has appended")
        return join(*args, **(kwargs or {}))


def _refuse_element(self: UnknownElements, *args: Any) -> NoReturn:
    """C has looked into the list: it would take this for one element."""
    raise refuse("a function of C looks into a list to which a loop has appended")


for _name in (
    *("__bool__", "__hash__", "__str__", "__format__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
):
    setattr(UnknownElements, _name, _refuse_element)


class PendingElements(UnknownElements):
    """The elements that a loop will have appended, while it is recorded."""

    def __init__(
        self,
        count: Callable[[], Any],
        read_last: Callable[[], Any],
        ask_whole: Callable[[CaptureError], NoReturn],
    ) -> None:
        self._count, self.read_last = count, read_last
        self.ask_whole = ask_whole
        """Somebody reads more of it than is known here: start over with a list that has it all, or
        raise this."""

    shown = "elements that the loop appends"

    @property
    def length(self) -> Any:
        return self._count()


class Appended(UnknownElements):
    """The elements that a loop has appended."""

    where: Location
    """The loop."""
    joined = "torch.stack(list)"
    """What makes one tensor of a list of such."""
    told = ""
    """What they are, in the error of who joins them; else the name of the class says it."""

    def take(self, at: Any) -> Any:
        """One element."""
        raise NotImplementedError

    def cut(self, start: Any, stop: Any) -> Appended:
        """Those from a place to another one."""
        raise NotImplementedError

    def reverse(self) -> Appended:
        raise NotImplementedError

    def repeat(self, count: Any) -> Appended:
        """Them all, so many times."""
        raise refuse("a list of tensors of different sizes is repeated")

    def replace(self, at: Any, new: Any) -> Appended:
        """The same with another element, which stands for one of its kind, in a place."""
        raise refuse("an element of a list to which a loop has appended is replaced")

    def choose(self, places: Tensor) -> Appended:
        """Those in some places, in this order."""
        raise refuse("some are taken of tensors of different sizes")

    def lie_along(self, dim: int, is_stacked: bool) -> Tensor:
        """The elements as one tensor, as `torch.stack` or `torch.cat` lay them along a
        dimension."""
        refuse_join(self, is_stacked)


def refuse_join(span: Appended, is_stacked: bool) -> NoReturn:
    name = "stack" if is_stacked else "cat"
    what = span.told or type(span).__name__.lower()
    raise refuse(f"torch.{name} is given a list of {what} to which a loop has appended")


class Rows(Appended):
    """Tensors of one type: the rows of a tensor."""

    shown = "tensors"

    def __init__(
        self, tensor: Tensor, where: Location, is_dense: bool = True, is_reversed: bool = False
    ) -> None:
        self.tensor, self.where = tensor, where
        self.is_dense, self._is_reversed = is_dense, is_reversed

    @property
    def length(self) -> Any:
        return self.tensor.shape[0]

    @torch.enable_grad()
    def take(self, at: Any) -> Tensor:
        self._check_dense()
        return self.tensor[-1 - at if self._is_reversed else at]

    def reverse(self) -> Rows:
        return Rows(self.tensor, self.where, self.is_dense, not self._is_reversed)

    @torch.enable_grad()
    def cut(self, start: Any, stop: Any) -> Rows:
        self._check_dense()
        if self._is_reversed:
            raise refuse("a part is taken of a list that was reversed")
        return Rows(self.tensor[start:stop], self.where)

    @torch.enable_grad()
    def repeat(self, count: Any) -> Rows:
        rows = self.in_order(9)
        repeated = rows.repeat(count, *[1] * (rows.ndim - 1))
        return Rows(_keep_unwritten(repeated, self.tensor), self.where)

    @torch.enable_grad()
    def replace(self, at: Any, new: Rows) -> Rows:
        found = put_row(self.in_order(9), at, new.in_order(9))
        return Rows(_keep_unwritten(found, self.tensor, new.tensor), self.where)

    @torch.enable_grad()
    def choose(self, places: Tensor) -> Rows:
        return Rows(_keep_unwritten(self.in_order(9)[places], self.tensor), self.where)

    @torch.enable_grad()
    def in_order(self, ndim: int) -> Tensor:
        """The tensor with its rows in the order of the list, of which something of so many
        dimensions is made."""
        if ndim > 3:
            self._check_dense()
        return self.tensor.flip(0) if self._is_reversed else self.tensor

    def lie_along(self, dim: int, is_stacked: bool) -> Tensor:
        if is_stacked:
            rows = self.in_order(self.tensor.ndim)
            return rows if dim == 0 else rows.movedim(0, dim)
        ndim = self.tensor.ndim - 1
        if ndim == 0:
            raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
        place = dim + ndim if dim < 0 else dim
        rows = self.in_order(ndim)
        return (rows.movedim(0, place) if place else rows).flatten(place, place + 1)

    def _check_dense(self) -> None:
        if not self.is_dense:
            raise CaptureError.here(
                "an element of a list to which a loop has appended is read, and the loop appends "
                "tensors that are not contiguous",
                why="the program keeps the elements as rows of one tensor, which lie otherwise in "
                "memory",
                instead="append x.contiguous(), or use torch.stack(list)",
            )


def note_layout(element: Tensor, is_dense: bool) -> Tensor:
    """An element, of which who asks where it lies in memory is refused, and if what was appended is
    not contiguous, also who asks how."""
    tracer = threads.running[-1]
    value = tracer.value_of(tracer.adopt(element))
    what = "the loop that appends it to a list"
    tracer.layout_assumptions.note_decided_by_data(value, what, not is_dense)
    return element


def _keep_unwritten(copy: Tensor, *copied: Tensor) -> Tensor:
    """The copy of rows: if nobody may write to these, because others have them too, then not to
    the copy."""
    tracer = threads.running[-1]
    shared = tracer.sharing.maybe_shared
    for each in copied:
        what = shared.get(tracer.adopt(each).tracked.root)
        if what is not None:
            shared[tracer.adopt(copy).tracked.root] = what
    return copy


class Scalars(Appended):
    """Numbers: the elements of a tensor."""

    joined = "torch.tensor(list)"

    def __init__(self, tensor: Tensor, where: Location, least: int | None = None) -> None:
        self.tensor, self.where = tensor, where
        self._least = least
        """What none is below, if that is known."""

    @property
    def length(self) -> Any:
        return self.tensor.shape[0]

    def take(self, at: Any) -> Any:
        number = self.tensor[at].item()
        found = unwrap(number)
        if self._least is not None and isinstance(found, Expr):
            learn(found >= self._least)
        return number

    def reverse(self) -> Scalars:
        return Scalars(self.tensor.flip(0), self.where, self._least)

    def cut(self, start: Any, stop: Any) -> Scalars:
        return Scalars(self.tensor[start:stop], self.where, self._least)

    def repeat(self, count: Any) -> Scalars:
        return Scalars(self.tensor.repeat(count), self.where, self._least)

    def replace(self, at: Any, new: Scalars) -> Scalars:
        least = None if self._least is None or new._least is None else min(self._least, new._least)
        return Scalars(put_row(self.tensor, at, new.tensor), self.where, least)

    def choose(self, places: Tensor) -> Scalars:
        return Scalars(self.tensor[places], self.where, self._least)


def put_row(tensor: Tensor, at: Any, row: Tensor) -> Tensor:
    """A tensor with another row in a place."""
    count = tensor.shape[0]
    place = torch.full((), at)
    place = torch.where(place < 0, place + count, place)
    is_there: Any = torch.logical_and(place >= 0, place < count).item()
    torch._check_with(IndexError, is_there, lambda: "list assignment index out of range")
    chosen = torch.arange(count, device=tensor.device) == place.to(tensor.device)
    return torch.where(chosen.reshape(-1, *[1] * (tensor.ndim - 1)), row, tensor)


def read_length(number: Tensor) -> Any:
    """A number that is a length, or a place."""
    found: Any = number.item()
    if isinstance(expr := unwrap(found), Expr):
        learn(expr >= 0)
    return found


class Pieces(Appended):
    """Tensors that differ in one size: the pieces of one tensor, one after the other."""

    def __init__(
        self,
        tensor: Tensor,
        lengths: Tensor,
        where: Location,
        dim: int = 0,
        is_dense: bool | None = None,
    ) -> None:
        self.tensor, self.lengths, self.where = tensor, lengths, where
        self._is_dense = is_dense
        """Is what was appended contiguous? None: each is that part of the tensor."""
        self.dim = dim
        """In which size."""

    @property
    def length(self) -> Any:
        return self.lengths.shape[0]

    @property
    def are_dense(self) -> bool:
        """Is each contiguous?"""
        return not self.dim if self._is_dense is None else self._is_dense

    @torch.enable_grad()
    def take(self, at: Any) -> Tensor:
        length, stop = read_length(self.lengths[at]), self.lengths.cumsum(0)[at].item()
        if isinstance(found := unwrap(stop - length), Expr):
            learn(found >= 0)
        if isinstance(found := unwrap(self.tensor.shape[self.dim] - stop), Expr):
            learn(found >= 0)
        piece = self.tensor.narrow(self.dim, stop - length, length)
        if self._is_dense is None:
            return piece
        if self.dim:
            copy = piece.clone(memory_format=torch.contiguous_format)
            piece = _keep_unwritten(copy, self.tensor)
        return note_layout(piece, self._is_dense)

    def reverse(self) -> NoReturn:
        raise refuse("a list of tensors of different sizes is reversed")

    def cut(self, start: Any, stop: Any) -> NoReturn:
        raise refuse("a part is taken of a list of tensors of different sizes")

    def lie_along(self, dim: int, is_stacked: bool) -> Tensor:
        if is_stacked:
            return self._stack(dim)
        if dim % self.tensor.ndim != self.dim:
            raise refuse(f"tensors of different sizes are laid along dimension {dim}")
        return self.tensor

    def _stack(self, dim: int) -> Tensor:
        first = self.lengths[0].item()
        is_one = (self.lengths == first).all().item()
        torch._check(is_one, lambda: "stack expects each tensor to be equal size")
        rows: Tensor = self.tensor.unflatten(self.dim, (self.length, first))
        return rows if dim == self.dim else rows.movedim(self.dim, dim)


class Tuples(Appended):
    """Tuples: what stands for the elements of each of their places."""

    def __init__(self, parts: Sequence[Appended]) -> None:
        self.parts, self.where = parts, parts[0].where

    @property
    def length(self) -> Any:
        return self.parts[0].length

    def take(self, at: Any) -> tuple[Any, ...]:
        return tuple(part.take(at) for part in self.parts)

    def reverse(self) -> Tuples:
        return Tuples([part.reverse() for part in self.parts])

    def repeat(self, count: Any) -> Tuples:
        return Tuples([part.repeat(count) for part in self.parts])

    def replace(self, at: Any, new: Tuples) -> Tuples:
        pairs = zip(self.parts, new.parts, strict=True)
        return Tuples([part.replace(at, other) for part, other in pairs])

    def choose(self, places: Tensor) -> Tuples:
        return Tuples([part.choose(places) for part in self.parts])

    def cut(self, start: Any, stop: Any) -> Tuples:
        return Tuples([part.cut(start, stop) for part in self.parts])


# --------------------------------------------------------------------------------------- one tensor


class _List(Protocol):
    """A list that has such elements: `growing.py`."""

    def list_parts(self) -> list[Any]: ...

    def count_elements(self) -> Any: ...

    def check_complete(self, what: str) -> None: ...


def _stack(tensors: _List, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    tensors.check_complete("torch.stack")

    def lie_along(each: Any) -> Tensor:
        if isinstance(each, Appended):
            return each.lie_along(dim, is_stacked=True)
        return torch.unsqueeze(each, dim)

    return _join_parts(tensors, lie_along, dim, out)


def _concatenate(
    tensors: _List, dim: int = 0, *, axis: int | None = None, out: Tensor | None = None
) -> Tensor:
    tensors.check_complete("torch.cat")
    along = dim if axis is None else axis

    def lie_along(each: Any) -> Tensor:
        if isinstance(each, Appended):
            return each.lie_along(along, is_stacked=False)
        return each  # type: ignore[no-any-return]

    return _join_parts(tensors, lie_along, along, out)


def _join_parts(
    tensors: _List, lie_along: Callable[[Any], Tensor], dim: int, out: Tensor | None
) -> Tensor:
    if out is not None:
        raise refuse("a list to which a loop has appended is written to a tensor (out=)")
    parts = tensors.list_parts()
    if not any(not isinstance(each, Appended) for each in parts):
        torch._check(tensors.count_elements() > 0, lambda: "expected a non-empty list of Tensors")
    # What is laid in place is contiguous, as it is in eager: torch.cat would take on its strides.
    made = [
        lie_along(each).clone(memory_format=torch.contiguous_format)
        if isinstance(each, Appended)
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
