"""Lists to which a loop appends, where only the program knows how often the loop runs.

Such a list holds, in the place of all that the loop has appended, one object that stands for it
(`spans.py`). What can be answered of such a list is answered (`torch.stack`, `torch.cat`, `len`,
`list[-1]`, `list[::-1]`); else its length has to be a number that Python knows, or it is refused.
While the loop is recorded the list holds `PendingElements` there. Until a loop appends to it, it is
a list like any other. Must not know how a loop is recorded.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture import threads
from lostwax.capture.flow.lists.columns import join_elements
from lostwax.capture.flow.lists.spans import (
    WHY,
    Appended,
    PendingElements,
    Scalars,
    UnknownElements,
    refuse,
)
from lostwax.capture.flow.numbers import INTEGERS
from lostwax.capture.flow.truths import OpenLength, find_in, find_known, is_open_number
from lostwax.classes import PLAIN
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)


class ListOfUnknownLength(OpenLength, list[Any]):
    """A list that loops may append to."""

    __slots__ = ()
    __hash__ = None

    def list_parts(self) -> list[Any]:
        """Its elements, and what stands for some."""
        return [*list.__iter__(self)]

    @property
    def is_open(self) -> bool:
        """Is it not known how many elements it has?"""
        return any(isinstance(each, UnknownElements) for each in list.__iter__(self))

    def find_span(self) -> Appended | None:
        """What stands for its elements, all of them, if they are of one kind."""
        parts = self.list_parts()
        spans = [each for each in parts if isinstance(each, Appended)]
        if len(parts) == 1 or not spans or any(isinstance(each, PendingElements) for each in parts):
            return spans[0] if len(parts) == 1 and spans else None
        return join_elements(parts, threads.running[-1], spans[0].where)

    def check_complete(self, what: str) -> None:
        """Something is asked of all of its elements: a loop that appends to it has to keep them
        for that."""
        for each in list.__iter__(self):
            if isinstance(each, PendingElements):
                each.ask_whole(
                    CaptureError.here(
                        f"{what} of a list in the loop that appends to it",
                        why="how long the list is there depends on the turn of the loop",
                        instead="hand on a tensor from turn to turn; len(list) and list[-1] are "
                        "understood there, and the rest after the loop",
                    )
                )

    # ------------------------------------------------------------------------ what can be answered

    def _lw_class(self) -> type:
        return list

    def __repr__(self) -> str:
        """Its text; refused if that decides something, and is not that of a list."""
        is_plain = not self.is_open and all(type(each) in PLAIN for each in list.__iter__(self))
        if not is_plain and is_text_read(sys._getframe(1)):
            raise refuse("the text of a list to which a loop has appended decides something")
        return list.__repr__(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What `copy` makes another one of."""
        if sys._getframe(1).f_code.co_filename != copy.__file__:
            raise refuse("a list to which a loop appends is pickled")
        self._check_known("the elements of", "copied")
        return ListOfUnknownLength, (self.list_parts(),)

    def __len__(self) -> int:
        """A number that may be symbolic: Python's `len` asks for a plain one then."""
        return self.count_elements()  # type: ignore[no-any-return]

    def count_elements(self) -> Any:
        parts = self.list_parts()
        return sum(each.length if isinstance(each, UnknownElements) else 1 for each in parts)

    def __bool__(self) -> bool:
        known = [each for each in list.__iter__(self) if not isinstance(each, UnknownElements)]
        return bool(known) or bool(self.count_elements() > 0)

    def __getitem__(self, key: Any) -> Any:
        if not self.is_open:
            return list.__getitem__(self, key)
        if isinstance(key, slice):
            return self._cut(key)
        from_end = isinstance(key, int) and key < 0
        parts, at = (self.list_parts()[::-1], -1 - key) if from_end else (self.list_parts(), key)
        for each in parts:
            if isinstance(each, PendingElements):
                if from_end and at == 0:
                    return each.read_last()
                self.check_complete(f"the element [{key}]")
            size = each.length if isinstance(each, Appended) else 1
            is_there = find_known(at < size)
            if is_there is True or len(parts) == 1:
                if isinstance(each, Appended):
                    return each.take(-1 - at if from_end else at)
                return each
            if is_there is not False:
                return self._take(key)
            at = at - size
        raise IndexError("list index out of range")

    def _take(self, key: Any) -> Any:
        """The element of a place that may be in one part or in another."""
        span = self.find_span()
        if span is None:
            raise refuse("an element is read of a list with elements of several kinds")
        return span.take(key)

    def _cut(self, key: slice) -> ListOfUnknownLength:
        start, stop, step = key.start, key.stop, key.step
        parts = self.list_parts()
        if (start, stop) == (None, None) and step in (None, 1, -1):
            return (
                ListOfUnknownLength(parts) if step != -1 else ListOfUnknownLength(_reverse(parts))
            )
        self.check_complete("a part")
        span = parts[0] if len(parts) == 1 else None
        if step in (None, 1) and isinstance(span, Appended):
            return ListOfUnknownLength([span.cut(start, stop)])
        known = next(i for i, each in enumerate(parts) if isinstance(each, UnknownElements))
        begin = 0 if start is None else start
        is_known = step in (None, 1) and isinstance(begin, int) and 0 <= begin <= known
        if is_known and (stop is None or (isinstance(stop, int) and 0 <= stop <= known)):
            return ListOfUnknownLength(parts[begin:stop])
        joined = self.find_span() if step in (None, 1) else None
        if joined is not None:
            return ListOfUnknownLength([joined.cut(start, stop)])
        raise refuse("a part is taken of a list to which a loop has appended")

    def __iter__(self) -> Iterator[Any]:
        if self.is_open:
            return list.__iter__(self._settle("a list to which a loop has appended is iterated"))
        return self._iterate_while_known()

    def _iterate_while_known(self) -> Iterator[Any]:
        """The elements, and those that are appended meanwhile, as Python does."""
        at = 0
        while at < list.__len__(self):
            yield list.__getitem__(self, at)
            if self.is_open:
                raise refuse("data decide what is appended to a list while a loop goes over it")
            at += 1

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
            if not isinstance(each, Appended):
                found.append(each)
                continue
            if is_open_number(each.length):
                raise _ask(what)
            found += [each.take(i) for i in range(operator.index(each.length))]
        return found

    # ------------------------------------------------------------------------ what is made of it

    def extend(self, values: Iterable[Any]) -> None:
        list.extend(
            self, values.list_parts() if isinstance(values, ListOfUnknownLength) else values
        )

    def __iadd__(self, values: Iterable[Any]) -> ListOfUnknownLength:  # type: ignore[misc]
        self.extend(values)
        return self

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        return ListOfUnknownLength([*self.list_parts(), *list.__iter__(other)])

    def __radd__(self, other: Any) -> Any:
        """Python asks this for `other += list`, too, where the other one would have to change."""
        if self.is_open and isinstance(other, list):
            raise _ask("a list is joined with one to which a loop has appended")
        return NotImplemented

    def copy(self) -> ListOfUnknownLength:
        return ListOfUnknownLength(self.list_parts())

    def pop(self, at: Any = -1, /) -> Any:
        """Its first or last element, which it has no longer."""
        parts = self.list_parts()
        if not self.is_open:
            return list.pop(self, at)
        if at not in (0, -1):
            raise refuse(
                "another element than the first or last is taken out of a list to which a loop has "
                "appended"
            )
        if not isinstance(parts[at], UnknownElements):
            return list.pop(self, at)
        self.check_complete("an element is taken out")
        is_alone = find_known(parts[at].length > 0) is True
        span = parts[at] if is_alone else self.find_span()
        if span is None:
            raise refuse("one of elements of several kinds is taken out")
        left = span.cut(None, -1) if at else span.cut(1, None)
        found = span.take(at)
        if is_alone:
            list.__setitem__(self, at, left)
        else:
            list.__setitem__(self, slice(None), [left])
        return found

    def insert(self, at: Any, value: Any, /) -> None:
        if at != 0:
            self._check_known("something is put into the middle of", "")
            list.insert(self, at, value)
            return
        list.__setitem__(self, slice(None), [value, *self.list_parts()])

    def __contains__(self, one: Any) -> Any:
        """A truth, which is a tensor where data decide it: Python's `in` asks for it then."""
        if not self.is_open:
            return find_in(one, self.list_parts())
        self.check_complete("something is looked for")
        span = self.find_span()
        is_of_integers = isinstance(span, Scalars) and span.tensor.dtype is torch.int64
        if is_of_integers and type(one) in INTEGERS:
            return (span.tensor == one).any()  # type: ignore[union-attr]
        raise refuse(
            "something else than an integer is looked for in a list to which a loop has appended"
        )

    def make_tensor(
        self, dtype: torch.dtype | None = None, device: Any = None, requires_grad: bool = False
    ) -> torch.Tensor:
        """What `torch.tensor` makes of it."""
        self.check_complete("torch.tensor")
        span = self.find_span()
        if not isinstance(span, Scalars) or requires_grad:
            raise refuse("torch.tensor is given a list of tensors to which a loop has appended")
        numbers = span.tensor
        if dtype is None and numbers.dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        elif dtype is None and not any(not isinstance(p, Appended) for p in self.list_parts()):
            torch._check(
                self.count_elements() > 0,
                lambda: "torch.tensor([]) is of floats: say dtype=, and the list may be empty",
            )
        return numbers.to(device or torch.get_default_device(), dtype or numbers.dtype, copy=True)

    def reverse(self) -> None:
        list.__setitem__(self, slice(None), _reverse(self.list_parts()))

    def __setitem__(self, key: Any, value: Any) -> None:
        if key == slice(None) or not self.is_open:
            list.__setitem__(self, key, value)
            return
        if isinstance(key, slice):
            raise refuse("a part of a list to which a loop has appended is replaced")
        parts = self.list_parts()
        known = parts[::-1] if isinstance(key, int) and key < 0 else parts
        place = -1 - key if known is not parts else key
        is_known = isinstance(place, int) and place < len(parts)
        before = known[: place + 1] if is_known else known
        if is_known and not any(isinstance(each, UnknownElements) for each in before):
            list.__setitem__(self, key, value)
            return
        self.check_complete("an element is replaced")
        span, new = self.find_span(), self._find_span_of(value)
        if span is None or new is None:
            raise refuse("one of elements of several kinds is replaced")
        list.__setitem__(self, slice(None), [span.replace(key, new)])

    def _find_span_of(self, value: Any) -> Appended | None:
        """What stands for one element that is to be among these."""
        spans = [each for each in self.list_parts() if isinstance(each, Appended)]
        parts = [spans[0], value]
        both = join_elements(parts, threads.running[-1], spans[0].where)
        return None if both is None else both.cut(-1, None)

    def _check_known(self, what: str, done: str) -> None:
        if self.is_open:
            raise refuse(f"{what} a list to which a loop has appended {done}".rstrip())


def _ask(what: str) -> CaptureError:
    """The refusal of a list that is read one by one: in a loop with hooks it can be."""
    error = refuse(what)
    error.is_question = True  # type: ignore[attr-defined]
    return error


def make_plain(result: Any) -> Any:
    """What a module returns, with lists in the places of those that are known whole."""

    def make(leaf: Any) -> Any:
        if hasattr(type(leaf), "make_plain"):  # a dict
            return make_plain(leaf.make_plain())
        if not isinstance(leaf, ListOfUnknownLength):
            return leaf
        for each in leaf.list_parts():
            if not isinstance(each, Appended):
                continue
            raise CaptureError(
                f"the module returns a list to which a loop appends.\n  at {each.where}\n"
                f"  why: {WHY}, and a program returns a known number of tensors\n"
                f"  instead: return one tensor, {each.joined}"
            )
        return make_plain(leaf.list_parts())

    return pytree.tree_map(make, result, is_leaf=_is_one)


def _is_one(value: Any) -> bool:
    return isinstance(value, ListOfUnknownLength)


def _reverse(parts: Sequence[Any]) -> list[Any]:
    reversed_parts = []
    for each in reversed(parts):
        if isinstance(each, PendingElements):
            raise refuse("a list is reversed in the loop that appends to it")
        reversed_parts.append(each.reverse() if isinstance(each, Appended) else each)
    return reversed_parts


def _refuse_if_open(name: str) -> Any:
    """A method of lists, where it is known what is in the list."""
    plain = getattr(list, name)

    def method(self: ListOfUnknownLength, *args: Any, **kwargs: Any) -> Any:
        if self.is_open:
            raise refuse(f"list.{name} is called on a list to which a loop has appended")
        return plain(self, *args, **kwargs)

    return method


for _name in (
    *("remove", "sort", "index", "count"),
    *("__delitem__", "__mul__", "__rmul__", "__imul__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
):
    setattr(ListOfUnknownLength, _name, _refuse_if_open(_name))
