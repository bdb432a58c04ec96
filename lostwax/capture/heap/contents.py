"""What is in a place at one moment: read, compared with another moment, and put back.

A place is whatever holds something (`holders.py`), or an object whose content is no items: an
array, a file in memory, what C keeps, and streams, which give another value each time they are
asked: Python's iterators and generators (`itertools.count()`), and random generators
(`random.Random(0)`). Objects are compared by identity. Must not look at tensors' values, nor take
anything from a stream.
"""

from __future__ import annotations

import random
import warnings
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import chain, compress, filterfalse
from operator import is_, not_
from threading import local
from types import AsyncGeneratorType, CellType, CoroutineType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import numpy as np

from lostwax.cache import PerClass
from lostwax.capture.heap.cached import ResultCache
from lostwax.capture.heap.edges import FILES, GENERATORS, MUTABLE_ARRAYS, STREAMS
from lostwax.capture.heap.hidden import CLASS, Fixed, OpaqueState, TorchSettings
from lostwax.capture.heap.holders import (
    CONTAINERS,
    MISSING,
    ClassAttributes,
    Content,
    NamedAttributes,
    SlotAttributes,
    TensorAttributes,
    find_base,
    items,
)
from lostwax.fake.asked_tensor import select_attributes


class Values(tuple[Any, ...]):
    """What is in a list or deque, by place."""

    __slots__ = ()


class _Accessors(NamedTuple):
    """How places of a class are read and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def key_of(place: Any) -> Any:
    """What identifies a place. (The objects for attributes are made again for each look.)"""
    if isinstance(place, _MADE):
        return type(place), id(place.owner)
    if isinstance(place, NamedAttributes):
        return id(place.held), place.names
    return id(place.held) if type(place) is TensorAttributes else id(place)


_MADE = (SlotAttributes, ClassAttributes, Fixed, OpaqueState, ResultCache)


def read(place: Any) -> Any:
    """What is in a place now."""
    return _WAYS[type(place)].read(place)


def write(place: Any, content: Any) -> None:
    """Put what was read, or these keys and values, into a place, and nothing else. (What C keeps
    cannot be put back, nor an iterator.)"""
    if isinstance(content, Stream):
        content.put_back()
    elif content is not None:
        _WAYS[type(place)].write(place, content)


def list_items(content: Any) -> Content | None:
    """The keys and values in what was read; None if it has none."""
    if isinstance(content, dict):
        return [*content.items()]
    if isinstance(content, Values):
        return [*enumerate(content)]
    return content if isinstance(content, list) else None


def read_items(place: Any) -> Content | None:
    """The keys and values in a place now; None if it has none, as an array or an iterator."""
    return list_items(read(place))


def find_change(place: Any, before: Any) -> tuple[Any] | None:
    """The key under which something else is in a place than was read before, or None."""
    if isinstance(before, Stream):
        return (None,) if before.is_moved() else None
    now = read(place)
    if type(place) is Fixed:
        pairs = zip(now.held, before.held, strict=True)
        is_same = all(a is b or stands_for(a, b) for a, b in pairs)
        return None if is_same and now.shows_as(before) else (None,)
    is_whole = type(before) in (dict, Values) and len(now) == len(before)
    if is_whole and all(map(is_, _flatten(now), _flatten(before))):
        return None  # nearly always
    old, new = list_items(before), list_items(now)
    if old is None or new is None:
        return None if now == before else (None,)
    is_variable = type(place) is CellType
    for (a, b), (c, d) in zip(new, old, strict=False):
        is_same_place = a is c or (type(a) is type(c) is int and a == c)
        if not is_same_place or (b is not d and (is_variable or not stands_for(b, d))):
            return (a,)
    if len(new) != len(old):
        longer = new if len(new) > len(old) else old
        return (longer[min(len(new), len(old))][0],)
    return None


def _flatten(content: dict[Any, Any] | Values) -> Iterable[Any]:
    return chain(content, content.values()) if isinstance(content, dict) else content


def stands_for(now: Any, before: Any) -> bool:
    """Has a capture put its own function or class in the place of another, or put that back?"""
    for one, other in ((now, before), (before, now)):
        function = one.__func__ if type(one) is staticmethod else one
        if callable(one) and getattr(function, "stands_for", MISSING) is other is not MISSING:
            return True
    if type(now) is not tuple or type(before) is not tuple or len(now) != len(before):
        return False
    return all(a is b or stands_for(a, b) for a, b in zip(now, before, strict=True))


def original(value: Any) -> Any:
    """The value, or what it stands for during a capture."""
    is_ours = type(value) is FunctionType or isinstance(value, type)
    return vars(value).get("stands_for", value) if is_ours else value


def fill(container: Any, content: Any) -> None:
    """Let a container hold this, and nothing else."""
    its = find_base(container)  # not what a class of the user's makes of that
    its.clear(container)
    if isinstance(container, (list, deque)):
        its.extend(container, content)
    elif its is OrderedDict:  # its update calls the user's __setitem__
        for key, value in content.items():
            its.__setitem__(container, key, value)
    else:
        its.update(container, content)


# ----------------------------------------------------------------------------- the kinds of places


def read_cell(cell: CellType) -> Any:
    """The value of a variable of an enclosing function."""
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return MISSING


def _write_cell(cell: CellType, content: Content) -> None:
    ((_, value),) = content
    if value is not MISSING:
        cell.cell_contents = value
    elif read_cell(cell) is not MISSING:
        del cell.cell_contents


def _read_named(place: NamedAttributes) -> Content:
    names = [*place.held] if place.names is None else place.names
    return [(name, place.held.get(name, MISSING)) for name in names]


def _write_named(place: Any, content: Content) -> None:
    for name, value in content:
        if value is MISSING:
            place.held.pop(name, None)
        else:
            place.held[name] = value


def _write_tensor(place: TensorAttributes, content: Content) -> None:
    given = dict(content)
    gone = [(name, MISSING) for name, _ in select_attributes(place.held) if name not in given]
    _write_named(place, [*gone, *content])


def _read_variable(variable: ContextVar[Any]) -> Content:
    try:
        return [("", variable.get())]
    except LookupError:  # it is not set
        return [("", MISSING)]


def _write_variable(variable: ContextVar[Any], content: Content) -> None:
    value = dict(content).get("", MISSING)
    variable.set(None if value is MISSING else value)  # nothing unsets it while its context lasts


def _read_array(array: Any) -> Any:
    value = np.ndarray.view(array, np.ndarray)  # a subclass's methods may fill it
    if value.dtype.hasobject:
        return list(enumerate(value.flat))
    return value.shape, value.dtype, value.flags.writeable, value.tobytes()


def _write_array(array: Any, content: Any) -> None:
    if isinstance(content, list):
        value = np.ndarray.view(array, np.ndarray)
        for at, each in content:
            value.flat[at] = each
        return
    with suppress(ValueError):  # it shows memory that is not to be written to
        np.ndarray.setflags(array, write=True)
    value = np.ndarray.view(array, np.ndarray)
    if (value.shape, value.dtype) == content[:2] and value.flags.writeable:
        value[...] = np.frombuffer(content[3], value.dtype).reshape(value.shape)
        np.ndarray.setflags(array, write=content[2])


def _write_bytes(value: Any, content: Any) -> None:
    is_bytes = isinstance(value, bytearray)
    base: Any = bytearray if is_bytes else array
    new = content if is_bytes else array(*content)
    with suppress(BufferError):  # its memory is exported, and it has got longer
        base.__setitem__(value, slice(None), new)


def _write_file(file: Any, content: tuple[Any, int]) -> None:
    if file.closed:
        return
    file.seek(0)
    file.truncate()
    file.write(content[0])
    file.seek(content[1])


def _write_items(place: Any, content: Any) -> None:
    known = [(key, value) for key, value in list_items(content) or () if value is not MISSING]
    is_named = not isinstance(place, (list, deque, set))
    fill(place, dict(known) if is_named else [value for _, value in known])


def _write_cache(place: ResultCache, content: Content) -> None:
    place.write([(key, value) for key, value in content if value is not MISSING])


def _write_nothing(_: Any, __: Any) -> None:
    pass


_KNOWN: dict[type, _Accessors] = {
    CellType: _Accessors(lambda cell: [("", read_cell(cell))], _write_cell),
    NamedAttributes: _Accessors(_read_named, _write_named),
    TensorAttributes: _Accessors(lambda place: select_attributes(place.held), _write_tensor),
    ContextVar: _Accessors(_read_variable, _write_variable),
    local: _Accessors(
        lambda value: dict(vars(value)), lambda value, content: fill(vars(value), dict(content))
    ),
    np.ndarray: _Accessors(_read_array, _write_array),
    bytearray: _Accessors(bytes, _write_bytes),
    array: _Accessors(lambda value: (value.typecode, value.tobytes()), _write_bytes),
    memoryview: _Accessors(lambda value: value.tobytes(), _write_nothing),
    Fixed: _Accessors(Fixed.read, Fixed.write),
    ResultCache: _Accessors(ResultCache.read, _write_cache),
    **dict.fromkeys(
        (OpaqueState, TorchSettings), _Accessors(lambda place: place.read(), _write_nothing)
    ),
    **dict.fromkeys(
        FILES,
        _Accessors(
            lambda file: None if file.closed else (file.getvalue(), file.tell()), _write_file
        ),
    ),
}


def _find_accessors(cls: type) -> _Accessors:
    if cls is dict:
        return _Accessors(dict.copy, _write_items)
    known = next((ways for each, ways in _KNOWN.items() if issubclass(cls, each)), None)
    if issubclass(cls, set):  # the order of its items depends on its past
        return _Accessors(
            lambda value: sorted(items(value), key=lambda pair: id(pair[0])), _write_items
        )
    if issubclass(cls, (list, deque)):  # whose own methods may do anything
        return _Accessors(lambda value: Values(find_base(value).__iter__(value)), _write_items)
    return known or _Accessors(Stream if STREAMS[cls] else items, _write_items)


_WAYS = PerClass(__name__, "ways", _find_accessors)


# --------------------------------------------------------------------- iterators, random generators


class Stream:
    """An iterator, a random generator or an array, and its position before the call."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._before = _position(value)

    def is_moved(self) -> bool:
        """Has something been taken from it? (Some iterators do not show it.)"""
        if isinstance(self.value, MUTABLE_ARRAYS) and self._before is not _READ_ONLY:
            return find_change(self.value, self._before) is not None
        return not _is_same_position(_position(self.value), self._before)

    def put_back(self) -> None:
        if not self.is_moved():
            return
        if self._before is _READ_ONLY:
            np.ndarray.setflags(self.value, write=False)
        elif isinstance(self.value, MUTABLE_ARRAYS):
            write(self.value, self._before)
        elif GENERATORS[type(self.value)]:
            _set_position(self.value, self._before)


def describe_consumed(value: Any, where: str) -> str:
    """The text that tells the user of a stream that was moved, or of an array or file that was
    changed."""
    kind, is_random = type(value).__name__, GENERATORS[type(value)]
    if isinstance(value, (*MUTABLE_ARRAYS, *FILES)):
        return (
            f"the module changes {where}, a {kind}, in place; the program does not: every run of "
            "it computes with what was in it at capture. A buffer would be kept."
        )
    end = (
        "It stands where it did before. torch.rand would be drawn again in each run."
        if is_random
        else "The export has taken it from there, too. A buffer would be kept."
    )
    return (
        f"the module takes a value from {where}, a {kind}; it is baked into the program, which "
        f"takes nothing. {end}"
    )


def restore_drawn_generators(streams: Iterable[Stream]) -> str:
    """Put back the streams that were moved, and return a text about the first; "" if none was."""
    moved = [each for each in streams if each.is_moved()]
    for each in moved:
        each.put_back()
    where = "a random generator that it holds or names"
    return describe_consumed(moved[0].value, where) if moved else ""


# -------------------------------------------------------------------------------------- positions


_READ_ONLY = (False,)
"""The position of an array that cannot be written to. (Reading it may be slow: it may be large.)"""


def _position(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return _READ_ONLY
    if isinstance(value, MUTABLE_ARRAYS):
        return read(value)
    if isinstance(value, random.SystemRandom):
        return None  # it has no position
    if isinstance(value, random.Random):
        return random.Random.getstate(value)
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.BitGenerator):
        return value.state
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        held = () if frame is None else (frame.f_lasti, *frame.f_locals.values())
        return (*held, _inner_position(value.gi_yieldfrom))
    if isinstance(value, (CoroutineType, AsyncGeneratorType)):
        return None
    return _reduce(value)


def _reduce(value: Any) -> Any:
    """The position of one of Python's own iterators: what it gives to `copy`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = value.__reduce__()
        except TypeError:
            return repr(value) if "__repr__" in vars(type(value)) else None
    return tuple(map(_inner_position, found)) if isinstance(found, tuple) else found


def _inner_position(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_inner_position, value))
    return _position(value) if STREAMS[type(value)] else value


def _is_same_position(one: Any, other: Any) -> bool:
    """Are two positions the same? By identity, except for values that each look makes again."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(
            map(_is_same_position, one.values(), other.values())
        )
    if type(one) in (tuple, list):  # (what is left of a dict is listed anew each time)
        return len(one) == len(other) and all(map(_is_same_position, one, other))
    return type(one) in (int, float, str, bytes, range) and one == other


def _set_position(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        random.Random.setstate(value, state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    else:
        value.state = state


# ----------------------------------------------------------------------------------- many at a time


class ManyPlaces:
    """What is in some places, as it was; compared in C, since nearly always nothing has changed."""

    def __init__(self, places: Sequence[Any], empty: Sequence[Any] = ()) -> None:
        """`empty` are containers in which there is nothing: modules have many."""
        are_plain = [*map(CONTAINERS.__contains__, map(type, places))]
        plain = [*compress(places, are_plain)]
        self._empty = [*empty, *filterfalse(None, plain)]
        filled = [*filter(None, plain)]
        classes = [*map(type, filled)]
        self._dicts = [*compress(filled, map(_DICTS.__contains__, classes))]
        self._sequences = [*compress(filled, map(_SEQUENCES.__contains__, classes))]
        others: list[Any] = [each for each in filled if type(each) is set]
        others += compress(places, map(not_, are_plain))
        self._cells = [each for each in others if type(each) is CellType]
        self._classes = [vars(e.owner) for e in others if type(e) is ClassAttributes]
        self._owners = [each.owner for each in others if _is_class(each)]
        """Objects whose class is compared."""
        slow = [each for each in others if type(each) not in _FAST and not _is_class(each)]
        self._others = [(each, read(each)) for each in slow]
        self._objects_before = [*self._objects()]
        self._keys_before = self._keys()

    def is_same(self) -> bool:
        """Are the same objects in the same places?"""
        return (
            not any(self._empty)
            and self._keys() == self._keys_before
            and all(map(is_, self._objects(), self._objects_before))
            and all(find_change(each, before) is None for each, before in self._others)
        )

    def _objects(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(map(dict.values, self._dicts)),
            chain.from_iterable([each.values() for each in self._classes]),
            chain.from_iterable(self._sequences),
            map(read_cell, self._cells),
            map(type, self._owners),
        )

    def _keys(self) -> list[Any]:
        """The lengths of all containers, and the names in them."""
        lengths = map(len, chain(self._dicts, self._classes, self._sequences))
        return [*lengths, *chain.from_iterable(self._dicts), *chain.from_iterable(self._classes)]


_DICTS = frozenset((dict, OrderedDict, defaultdict))
_SEQUENCES = frozenset((list, deque))
_FAST = (CellType, ClassAttributes)


def _is_class(place: Any) -> bool:
    return type(place) is Fixed and place.names == CLASS
