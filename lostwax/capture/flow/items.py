"""What loops go over, one after the other: what Python can iterate, or what has a length that only
the program knows.

Must not know what the loop does.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from gc import get_referents
from typing import Any, ClassVar

import torch
from torch import nn

from lostwax.capture import threads
from lostwax.capture.flow.keys.keyed import DictView, Keyed, OpenDict, as_list
from lostwax.capture.flow.lists.columns import join_elements
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.parts import TupleOfUnknownLength, split_into
from lostwax.capture.flow.truths import UNSET, find_known, is_open_number, take_number
from lostwax.capture.python.cursors import Cursor, CycleCursor
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.indexing import IndicesInside
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, user_location
from lostwax.sym import Expr, current

PASSING_ON.add(__file__)


class Items:
    """What Python iterates."""

    start = None
    is_open = False

    def __init__(self, values: Any, is_plain: bool | None = None) -> None:
        self.values = values
        self.is_plain = is_plain_source(values) if is_plain is None else is_plain
        """Is nothing else done when it is asked for the next one, and does nobody else hold it?"""
        self._values = iter(values)
        self._value: Any = None
        self.place: Any = None
        """The code in which it is gone over, and where."""

    @property
    def is_own(self) -> bool:
        """Does nobody see whether all of them are taken? It is plain, or one of Python's iterators
        over what is plain, which nobody else has."""
        if self.is_plain:
            return True
        holders = sys.getrefcount(self._values) - (self._values is self.values)
        return holders == _COUNTED and _is_passive(self._values)

    def more(self, at: None) -> bool:
        """Is there one more?"""
        found = next(self._values, UNSET)
        if found is not UNSET:
            self._value = found
        return found is not UNSET

    def take(self, at: None) -> Any:
        return self._value

    def advance(self, at: None) -> None:
        """Where the loop is then: what it goes over knows itself."""


@dataclass(frozen=True)
class Count(IndicesInside):
    """The numbers of a `range` whose end is open."""

    start: Any
    stop: Any
    step: Any
    is_open: ClassVar = True

    def __iter__(self) -> Iterator[Any]:
        error = CaptureError.here(
            "data decide how long a `range` is, and something goes over it one by one",
            why="how many numbers it has is known only when the program runs",
            instead="loop over it, for i in range(n): …, or compute with torch.arange(n)",
        )
        error.is_question = True  # type: ignore[attr-defined]
        raise error

    def more(self, at: Any) -> Any:
        return at < self.stop if self.step > 0 else at > self.stop

    def take(self, at: Any) -> Any:
        return at

    def advance(self, at: Any) -> Any:
        return at + self.step

    @property
    def length(self) -> Any:
        """How many there are, if there is one."""
        distance = self.stop - self.start if self.step > 0 else self.start - self.stop
        size = abs(self.step)
        return distance if type(size) is int and size == 1 else (distance + size - 1) // size

    def as_tensor(self) -> torch.Tensor:
        """All of them."""
        found: torch.Tensor = torch.arange(torch.sym_max(self.length, 0)) * self.step + self.start
        return found

    def find_known_length(self) -> int | None:
        """How many there are, if that is certain: `range(0, n, 128)` of a size from 1 to 128."""
        length = unwrap(self.length) if isinstance(self.length, torch.SymInt) else self.length
        least, most = (
            length.env.bounds(current(length)) if isinstance(length, Expr) else (length,) * 2
        )
        return max(least, 0) if least is not None and least == most else None


@dataclass(frozen=True)
class Elements:
    """The elements of something by their places, of which there are so many as is open."""

    stop: Any
    pick: Callable[[Any], Any]
    start: ClassVar = 0
    step: ClassVar = 1
    is_open: ClassVar = True

    def more(self, at: Any) -> Any:
        return at < self.stop

    def take(self, at: Any) -> Any:
        return self.pick(at)

    def advance(self, at: Any) -> Any:
        return at + 1


class RestOfIterator:
    """What is left of an iterator whose place data may decide (`python/cursors.py`)."""

    start = None
    is_open = True

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def more(self, at: None) -> Any:
        return self._cursor.has_more()

    def take(self, at: None) -> Any:
        cursor = self._cursor
        if not cursor.is_open:
            return next(cursor)
        found = read_at(cursor, cursor.advance())
        if found is None:
            raise CaptureError.here(
                "data decide where an iterator over values of several kinds is, and a loop goes "
                "over the rest of it",
                instead="keep the index, i += 1 and values[i]",
            )
        return found[0]

    def advance(self, at: None) -> None:
        """Where the loop is then: what it goes over knows itself."""


def read_at(cursor: Cursor, at: Any) -> tuple[Any] | None:
    """An element of what an iterator goes over, of which data decide the place; None if they are
    not of one kind."""
    values = cursor.state[1]
    if type(values) is range:
        return (values.start + at * values.step,)
    span = None
    if values:
        what = "an iterator of which data decide where it is"
        span = join_elements(values, threads.running[-1], user_location(), what)
    return None if span is None else (span.take(at),)


OPEN = (Count, Elements)


def list_items(values: Any) -> Items | Count | Elements | RestOfIterator:
    """What a loop goes over, given what the program says."""
    if type(values) in (Cursor, CycleCursor):
        return RestOfIterator(values)
    if isinstance(values, (Items, Count)):
        return values
    return find_open(values) or Items(values)


def count_items(_: Any, /, *given: Any) -> Items | Count:
    """`range` of these numbers."""
    numbers = [take_number(each) if is_open_number(each) else each for each in given]
    start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    if isinstance(step, torch.SymInt) and is_open_number(step):
        torch._check(step > 0, lambda: "range() of a step that data decide is to be positive")
    if (
        any(map(is_open_number, numbers))
        and isinstance(step, (int, torch.SymInt))
        and _is_step(step)
    ):
        found = Count(start, stop, step)
        turns = found.find_known_length()
        if turns is None:
            return found
        return Items([start + turn * step for turn in range(turns)], is_plain=True)
    return Items(range(*numbers))


def _is_step(step: Any) -> bool:
    return isinstance(step, torch.SymInt) or step != 0


def count_on(_: Any, /, *args: Any, **options: Any) -> Any:
    """`itertools.count`, which ends with the numbers that a program has."""
    given = {**dict(zip(("start", "step"), args, strict=False)), **options}
    start, step = given.get("start", 0), given.get("step", 1)
    if type(start) is int and type(step) is int and step:
        return Count(start, _FAR if step > 0 else -_FAR, step)
    return itertools.count(*args, **options)


_FAR = 2**62


def join_items(function: Any, /, *args: Any, **options: Any) -> Any:
    """`enumerate`, `zip` and `reversed`; what they are made of may be made so, too."""
    first = args[:1] if function is enumerate else args
    parts = [find_open(each) for each in first]
    if any(parts):
        found = _join_open(function, parts, args, options)
        if found is not None:
            return found
    given = [list_values(each) for each in args]
    plain = [each.is_plain if isinstance(each, Items) else is_plain_source(each) for each in first]
    return Items(function(*given, **options), all(plain))


def slice_items(function: Any, /, *args: Any, **options: Any) -> Any:
    """The parts of a tensor along a dimension: `unbind`, `split`, `chunk`."""
    found = split_into(function, args, options)
    if found is None:
        found = _slice_open(function, args, options)
    return function(*args, **options) if found is None else found


def _slice_open(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Elements | None:
    """… if the size of the dimension is open."""
    kind = getattr(function, "__name__", "")
    if any(function is each for each in (torch.unbind, torch.split, torch.chunk)):
        named = [options[name] for name in ("input", "tensor") if name in options]
        tensor, *args = [*named, *args]
    else:
        tensor = getattr(function, "__self__", None)
    if type(tensor) is not FakeTensor or not tensor.ndim:
        return None
    sizes = [each for each in (*args, *options.values()) if not isinstance(each, (list, tuple))]
    named = [options[name] for name in _PART_SIZES if name in options]
    size, *rest = [*named, *args] if kind != "unbind" else [1, *args]
    dim = options.get("dim", rest[0] if rest else 0)
    if not -tensor.ndim <= dim < tensor.ndim:
        return None
    if not (is_open_number(tensor.shape[dim]) or any(map(is_open_number, sizes))):
        return None
    if kind == "unbind":
        return Elements(tensor.shape[dim], lambda at: tensor.select(dim, at))
    return _split_open(tensor, size, dim % tensor.ndim, kind == "chunk")


_PART_SIZES = ("split_size", "split_size_or_sections", "chunks")


def _split_open(tensor: Any, size: Any, dim: int, is_count: bool) -> Elements | None:
    """Parts of a size, or, if `is_count`, so many at most. None: it has to be as Python says."""
    length = tensor.shape[dim]
    size = take_number(size) if is_open_number(size) else size
    if isinstance(size, torch.SymInt):
        torch._check(size > 0, lambda: "a tensor is split into parts of no size")
    elif type(size) is not int or size < 1:
        return None
    if is_count:
        if find_known(length >= 1) is not True:
            return None  # of nothing there would be so many parts, all of them empty
        size = (length + size - 1) // size
    before = (slice(None),) * dim

    def take(at: Any) -> Any:
        return tensor[(*before, slice(at * size, at * size + size))]

    return Elements(torch.sym_max(1, (length + size - 1) // size), take)


def find_open(values: Any) -> Elements | None:
    """The elements of something whose length is open."""
    if isinstance(values, Elements):
        return values
    if isinstance(values, Count):
        return Elements(values.length, lambda at: values.start + at * values.step)
    held = values.held if isinstance(values, DictView) else values
    values = as_list(values)
    if isinstance(values, ListOfUnknownLength):
        span = values.find_span()
        held = held.state if isinstance(held, Keyed) else held
        return None if span is None else Elements(span.length, _take_unchanged(held, span.take))
    if type(values) is FakeTensor and values.ndim and is_open_number(values.shape[0]):
        return Elements(values.shape[0], lambda at: values[at])
    return None


def _take_unchanged(values: ListOfUnknownLength, take: Callable[[Any], Any]) -> Any:
    """… of a list that the loop over it must not change: what Python goes over would, too."""
    before = values.list_parts()

    def take_one(at: Any) -> Any:
        now = values.list_parts()
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return take(at)
        raise CaptureError.here(
            "a loop changes the list that it goes over",
            why="how many elements the list has is known only when the program runs",
            instead="for x in list(values), which goes over what there was before the loop; or "
            "while values, and values.pop(0)",
        )

    return take_one


def _join_open(
    function: Any, parts: Sequence[Any], args: Sequence[Any], options: dict[str, Any]
) -> Elements | None:
    """None: it has to be as long as Python says."""
    if function is zip:
        if None in parts:
            return None
        stop = parts[0].stop
        for each in parts[1:]:
            stop = torch.sym_min(stop, each.stop)
        return Elements(stop, lambda at: tuple(each.pick(at) for each in parts))
    (part,) = parts
    if function is reversed:
        return Elements(part.stop, lambda at: part.pick(part.stop - 1 - at))
    begin = options.get("start", args[1] if len(args) > 1 else 0)
    return Elements(part.stop, lambda at: (begin + at, part.pick(at)))


def list_values(part: Any) -> Any:
    """The same as Python has it."""
    if isinstance(part, Items):
        return part.values
    if isinstance(part, Elements):
        raise CaptureError.here(
            "a loop goes over something of a known length together with something whose length is "
            "known only when the program runs",
            instead="loop over for i in range(n), and read both by their index",
        )
    return range(part.start, part.stop, part.step) if isinstance(part, Count) else part


_PLAIN: tuple[Any, ...] = (
    *(list, tuple, range, dict, set, frozenset, str, torch.Size, OrderedDict, ListOfUnknownLength),
    *(OpenDict, DictView, TupleOfUnknownLength),
    *(type({}.items()), type({}.keys()), type({}.values())),
    *(nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList),
)


def is_plain_source(values: Any) -> bool:
    return type(values) in _PLAIN or isinstance(values, torch.Tensor)


def _is_passive(value: Any) -> bool:
    """Is nothing done when it is asked for its elements, and does nobody else see that it was? Its
    own iterators are its alone."""
    if type(value) is Cursor:
        return True
    if type(value) is not tuple and not hasattr(type(value), "__next__"):
        return is_plain_source(value) or not hasattr(type(value), "__iter__")
    if type(value) not in _ITERATORS:
        return False
    inside = get_referents(value)  # (a tuple of C's may have gaps)
    for i in range(len(inside)):
        is_iterator = hasattr(type(inside[i]), "__next__")
        if is_iterator and sys.getrefcount(inside[i]) != _COUNTED + 1:
            return False
    return all(map(_is_passive, inside))


_COUNTED = 2
"""So many hold an object that one has, while they are counted."""
_EMPTY: tuple[Any, ...] = ([], (), range(0), {}, {}.items(), {}.values(), set(), "")
_ITERATORS = {
    *(itertools.chain, itertools.product, itertools.pairwise, itertools.islice, itertools.repeat),
    *(itertools.zip_longest, itertools.combinations, itertools.permutations),
    *(tuple, enumerate, zip, reversed, type(reversed([])), *(type(iter(each)) for each in _EMPTY)),
}
