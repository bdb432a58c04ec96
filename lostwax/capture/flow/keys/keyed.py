"""Dicts and sets of which data decide which keys they have.

Such a one is a list of pairs in the order in which their keys came, a key as an integer beside its
value: what joins the sides of an `if`, and what loops hand on, is that list (`lists/growing.py`).
While it is known which keys there are it is like Python's own. To find, put or take out one is
computed for all pairs at once, so that no way is chosen. What does choose one is written in Python
(`by_python.py`). Must not know how sides and loops are recorded.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor

from lostwax.bytecode import read_steps
from lostwax.capture import threads
from lostwax.capture.flow.keys import by_python
from lostwax.capture.flow.lists.columns import join_elements
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.growth import find_makers
from lostwax.capture.flow.lists.spans import Appended, Rows, Scalars, Tuples, UnknownElements
from lostwax.capture.flow.numbers import number_to_tensor
from lostwax.capture.flow.retry import DictChanges
from lostwax.capture.flow.truths import OpenLength, find_known, is_open_number
from lostwax.classes import HasState
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON, user_location

PASSING_ON.add(__file__)
WHY = "which keys it has is known only when the program runs"
_OPEN: Any = object()
"""The place of a pair of which it is not known where it is, or whether it is there."""
_HELD = "a dict that data change"
_FIRST = -(2**62)
KINDS = (dict, OrderedDict, defaultdict, Counter)


def refuse(what: str, instead: str = "") -> CaptureError:
    instead = instead or (
        "d[key], d.get(key, other), key in d, len(d), d.pop(key), and loops over numbers as keys "
        "are understood"
    )
    return CaptureError.here(what, why=WHY, instead=instead)


class Words:
    """The keys that are no integers, each with one that stands for it."""

    def __init__(self) -> None:
        self._numbers = dict[Any, int]()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def count(self, key: Any) -> Any:
        """The integer that stands for a key."""
        if type(key) is torch.SymInt and is_open_number(key):
            return key
        if isinstance(key, (int, float)) and key == key // 1:
            return int(key)
        return self._numbers.setdefault(key, _FIRST - len(self._numbers))

    def show(self, number: Any) -> Any:
        """The key that an integer stands for."""
        if type(number) is int and number > _FIRST:
            return number
        if type(number) is int:
            return [*self._numbers][_FIRST - number]
        if self:
            raise refuse(
                "data decide which key of a dict is taken, and some are words",
                "take integers for keys, or read the value by each key",
            )
        return number


def can_be_key(key: Any) -> bool:
    """Can it be a key of a dict that data change? (True would have to be told from 1.)"""
    if type(key) is int:
        return abs(key) < -_FIRST
    is_number = isinstance(key, (int, torch.SymBool, torch.SymFloat))
    return not (is_number or (isinstance(key, float) and key == key // 1))


class Keyed(OpenLength, HasState):
    """What is found by keys: the list of pairs is its `state`."""

    __slots__ = ("_kind", "_words", "default_factory", "where")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: Any, pairs: Any = (), words: Words | None = None) -> None:
        self._kind = kind
        self._words = Words() if words is None else words
        self.default_factory: Any = None
        self.where = user_location()
        self.state: Any = ListOfUnknownLength(pairs)

    def _lw_class(self) -> Any:
        return self._kind

    @property
    def is_counter(self) -> bool:
        return self._kind is Counter

    @property
    def is_ordered(self) -> bool:
        return self._kind is OrderedDict

    def count_elements(self) -> Any:
        return self.state.count_elements()

    def __len__(self) -> int:
        return self.count_elements()  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.state)

    def _lw_held(self) -> Sequence[Any]:
        return (*self._words, self.default_factory)

    @property
    def is_open(self) -> bool:
        """Do data decide which keys there are?"""
        return any(
            isinstance(each, UnknownElements) or type(each[0]) is not int
            for each in self.state.list_parts()
        )

    # -------------------------------------------------------------------- to find, put and take out

    def check_no_counter(self, name: str) -> None:
        """Refuse what a `Counter` does otherwise than a dict."""
        if self.is_counter:
            raise refuse(f"{name} of a Counter of which data decide the keys")

    def _find(self, number: Any) -> Any:
        """The place of a key; None, if there is none."""
        for i, each in enumerate(self.state.list_parts()):
            same = _OPEN if isinstance(each, UnknownElements) else find_known(each[0] == number)
            if same is True:
                return i
            if same is not False:
                return _OPEN
        return None

    def _join(self, *more: Any) -> Any:
        """What stands for all pairs, and these."""
        self.state.check_complete("a key")
        parts = [*self.state.list_parts(), *more]
        if len(parts) == 1 and isinstance(parts[0], Appended):
            return parts[0]
        found = join_elements(parts, threads.running[-1], user_location(), _HELD)
        if found is None:
            raise refuse(
                "data decide which keys a dict has, whose values are of several kinds",
                "keep tensors of one size and dtype in it, or numbers of one class",
            )
        return found

    def _match(self, number: Any) -> Tensor:
        """Which pairs have this key."""
        self.state.check_complete("a key")
        parts = self.state.list_parts()
        found: Tensor = torch.cat([_take_numbers(each) for each in parts]) == number
        return found

    def has(self, key: Any) -> Any:
        """Is there such a key? A truth, which may be a tensor."""
        number = self._words.count(key)
        at = self._find(number)
        return self._match(number).any() if at is _OPEN else at is not None

    def take(self, key: Any) -> Any:
        """The value of a key that is there."""
        number = self._words.count(key)
        at = self._find(number)
        if at is not _OPEN:
            return self.state.list_parts()[at][1]
        place, count = self._match(number).long().argmax().item(), self.count_elements()
        torch._check(place >= 0)
        torch._check(place < count)
        return self._join().parts[1].take(place)

    def put(self, key: Any, *value: Any) -> None:
        """Let a key have a value; it comes last, if it is new."""
        if not can_be_key(key):
            raise refuse(
                f"data decide which keys a dict has, and one is a {type(key).__name__}",
                "take int(key)",
            )
        number = self._words.count(key)
        at = self._find(number)
        if at is None:
            self.state.append((number, *value))
        elif at is not _OPEN:
            number = self.state.list_parts()[at][0]
            list.__setitem__(self.state, at, (number, *value))
        else:
            self._put_in((number, *value))

    def _put_in(self, pair: tuple[Any, ...]) -> None:
        span, count = self._join(pair), self.count_elements()
        numbers = span.parts[0].tensor
        is_same = numbers[:-1] == pair[0]
        places = torch.where(is_same, count, torch.arange(count))
        is_new = torch.logical_not(is_same.any()).long().item()
        torch._check(is_new >= 0)
        torch._check(is_new <= 1)
        self._choose(span, torch.cat([places, torch.full((1,), count)])[: count + is_new])

    def _choose(self, span: Any, places: Tensor) -> None:
        """Let there be the pairs in these places."""
        chosen = span.choose(places)
        for one, other in zip(span.parts, chosen.parts, strict=True):
            if isinstance(one, Rows):  # in eager they are the same tensors
                tracer = threads.running[-1]
                for each in (one, other):
                    root = tracer.adopt(each.tensor).tracked.root
                    tracer.sharing.maybe_shared[root] = _HELD
        self.state[:] = [chosen]

    def drop(self, key: Any) -> None:
        """Take out a key that is there."""
        number = self._words.count(key)
        at = self._find(number)
        if at is not _OPEN:
            list.__delitem__(self.state, at)
            return
        count = self.count_elements()
        torch._check(count > 0)
        order = self._match(number).long().argsort(stable=True)
        self._choose(self._join(), order[: count - 1])

    def move(self, key: Any, last: bool) -> None:
        """Let a key that is there come last, or first."""
        number = self._words.count(key)
        at = self._find(number)
        if at is not _OPEN:
            pair = list.pop(self.state, at)
            list.insert(self.state, list.__len__(self.state) if last else 0, pair)
            return
        order = self._match(number).long().argsort(stable=True, descending=not last)
        self._choose(self._join(), order)

    def take_out(self, at: int) -> Any:
        """The first or last pair, of which there is one; it is taken out."""
        key, value = self.state.pop(at)
        return self._words.show(key), value

    def clear(self) -> None:
        list.clear(self.state)

    def list_keys(self) -> list[Any]:
        """Its keys, and what stands for some."""
        return [self._show(each) for each in self.state.list_parts()]

    def _show(self, part: Any) -> Any:
        if not isinstance(part, Appended):
            return self._words.show(part[0])
        if self._words:
            self._words.show(None)
        return part.parts[0]  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------ by Python

    def __reduce_ex__(self, protocol: Any) -> Any:
        if sys._getframe(1).f_code.co_filename != copy.__file__:
            raise refuse("a dict of which data decide the keys is pickled")
        return _make_again, (type(self), self._kind, self.state, self._words, self.default_factory)

    def copy(self) -> Any:
        found = type(self)(self._kind, self.state.list_parts(), self._words)
        found.default_factory = self.default_factory
        return found

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Any:
        if self.is_open:
            raise refuse("a dict of which data decide the keys is copied deeply", "d.copy()")
        found = self.copy()
        found.state[:] = copy.deepcopy(self.state.list_parts(), memo)
        return found

    __contains__ = by_python.contains

    def __iter__(self) -> Iterator[Any]:
        if self.is_open:
            return iter(ListOfUnknownLength(self.list_keys()))
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        count = len(self)
        for each in self.list_keys():
            yield each
            if self.is_open or len(self) != count:
                raise RuntimeError("dictionary changed size during iteration")

    def list_known(self) -> list[Any]:
        """Its keys, if it is known which there are."""
        if not self.is_open:
            return self.list_keys()
        raise CaptureError(
            f"data decide which keys a {self._kind.__name__} has, of which more is asked, or which "
            f"the module returns.\n  it is made at {self.where}\n"
            f"  at {user_location()}\n  why: {WHY}\n"
            "  instead: set the same keys on all ways, d['b'] = torch.zeros(()); or return "
            "torch.stack(list(d.values()))"
        )

    def make_plain(self) -> Any:
        """The same as Python has it, where it is known which keys there are."""
        raise NotImplementedError


def _take_numbers(part: Any) -> Tensor:
    if isinstance(part, Tuples):
        return part.parts[0].tensor  # type: ignore[attr-defined,no-any-return]
    return number_to_tensor(part[0], torch.int64).reshape(1)


def _make_again(cls: Any, kind: Any, state: Any, words: Words, factory: Any) -> Keyed:
    found: Keyed = cls(kind, state.list_parts(), words)
    found.default_factory = factory
    return found


class DictView(OpenLength):
    """`d.keys()`, `d.values()` or `d.items()`."""

    __slots__ = ("_kind", "_list", "held")

    def __init__(self, held: Keyed, kind: Any, make: Callable[[], list[Any]]) -> None:
        self.held, self._kind, self._list = held, kind, make

    def _lw_class(self) -> Any:
        return self._kind

    def list_parts(self) -> list[Any]:
        return self._list()

    def count_elements(self) -> Any:
        return self.held.count_elements()

    def __len__(self) -> int:
        return self.count_elements()  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.held)

    def __iter__(self) -> Iterator[Any]:
        return iter(ListOfUnknownLength(self._list()))

    def iterate_backwards(self) -> Iterator[Any]:
        return reversed(ListOfUnknownLength(self._list()))

    __reversed__ = iterate_backwards

    def __contains__(self, one: Any) -> Any:
        if self._kind is _KEYS:
            return self.held.has(one)
        return ListOfUnknownLength(self._list()).__contains__(one)


_KEYS: type = type({}.keys())
_VALUES: type = type({}.values())
_ITEMS: type = type({}.items())


class OpenDict(Keyed):
    """A dict, or what is one."""

    __slots__ = ()

    def keys(self) -> DictView:
        return DictView(self, _KEYS, self.list_keys)

    def values(self) -> DictView:
        return DictView(self, _VALUES, self._list_values)

    def items(self) -> DictView:
        return DictView(self, _ITEMS, self._list_items)

    def _list_values(self) -> list[Any]:
        parts = self.state.list_parts()
        return [each.parts[1] if isinstance(each, Tuples) else each[1] for each in parts]

    def _list_items(self) -> list[Any]:
        pairs = zip(self.list_keys(), self._list_values(), strict=True)
        return [Tuples(pair) if isinstance(pair[0], Scalars) else pair for pair in pairs]

    __getitem__ = by_python.get_item
    __setitem__ = put = Keyed.put
    __delitem__ = by_python.delete
    get = by_python.get
    setdefault = by_python.set_default
    pop = by_python.pop
    popitem = by_python.pop_item
    update = by_python.update
    __ior__ = by_python.update_in_place
    __or__ = by_python.unite
    __eq__ = by_python.equal
    __ne__ = by_python.differ
    move_to_end = by_python.move_to_end

    def iterate_backwards(self) -> Iterator[Any]:
        return reversed(ListOfUnknownLength(self.list_keys()))

    __reversed__ = iterate_backwards

    def __missing__(self, key: Any) -> Any:
        if self.is_counter:
            return 0
        if self.default_factory is None:
            raise KeyError(key)
        value = self.default_factory()
        self.put(key, value)
        return value

    def most_common(self, n: int | None = None) -> list[Any]:
        """Of a `Counter`: those that are there most often, of as many the first."""
        if not self.is_open:
            return self.make_plain().most_common(n)  # type: ignore[no-any-return]
        span = self._join()
        order = span.parts[1].tensor.argsort(stable=True, descending=True)
        if self._words:
            self._words.show(None)
        found = ListOfUnknownLength([span.choose(order)])
        return found if n is None else found[: max(n, 0)]

    def total(self) -> Any:
        return by_python.add_up(self)

    def __repr__(self) -> str:
        return repr(self.make_plain())

    def make_plain(self) -> Any:
        pairs = zip(self.list_known(), self._list_values(), strict=True)
        if self._kind is defaultdict:
            return defaultdict(self.default_factory, pairs)
        return self._kind(dict(pairs))


def _delegate(name: str) -> Any:
    """A method that needs to know which keys there are, and changes nothing."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        plain = [each.make_plain() if isinstance(each, Keyed) else each for each in args]
        return getattr(self.make_plain(), name)(*plain, **options)

    return method


for _name in ("__ror__", "__add__", "__sub__", "__and__", "elements"):
    setattr(OpenDict, _name, _delegate(_name))


def _refuse_change(name: str) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise refuse(f"{name} is asked of a dict that data change")

    return method


_COMPARED = ("eq", "ne", "le", "lt", "ge", "gt", "and", "or", "xor", "sub", "rand", "ror", "rsub")
for _name in (*(f"__{each}__" for each in _COMPARED), "isdisjoint", "mapping"):
    setattr(DictView, _name, _refuse_change(_name))
for _name in ("fromkeys", "subtract", "__iadd__", "__isub__", "__iand__", "__pos__", "__neg__"):
    setattr(OpenDict, _name, _refuse_change(_name))
MutableMapping.register(OpenDict)


def make_open_dict(made: Any) -> Any:
    """A dict to which data will give keys, or from which they take some; itself, if it cannot be
    one."""
    if not all(map(can_be_key, made)):
        return made
    found = OpenDict(type(made))
    found.default_factory = getattr(made, "default_factory", None)
    for key, value in made.items():
        found.put(key, value)
    return found


def is_lookup(function: Any, values: Any) -> bool:
    """Is it `d.get` or `d.__getitem__` of this dict, asked of its own keys?"""
    of = getattr(function, "__self__", None)
    if type(values) is not OpenDict or of is not values:
        return False
    return function.__func__ in (OpenDict.get, OpenDict.__getitem__)


def makes_plainly(made: Any, frame: FrameType) -> bool:
    """Is it made as {…} in a function that runs, and not by a hook yet?"""
    for code, _, names in find_makers(made, frame):
        steps = pairwise(read_steps(code))
        made_in = {str(b.argval) for a, b in steps if a.opname in _MAKING and "STORE" in b.opname}
        if not made_in.isdisjoint(names):
            return True
    return False


_MAKING = ("BUILD_MAP", "BUILD_CONST_KEY_MAP", "MAP_ADD", "DICT_UPDATE", "DICT_MERGE")


def ask_for_open(made: Any, frame: FrameType, refusal: CaptureError | None = None) -> None:
    """Data decide a key of a dict or set that is Python's own: if it is made in a function that
    runs, let it be one that knows of that."""
    makers = find_makers(made, frame) if isinstance(made, (dict, set)) else ()
    if makers:
        refusal = refusal or refuse(
            "data decide a key of a dict, or an element of a set, that is not made as {} or set() "
            "in a function that runs",
            "let it be a variable of the function, d = {}; or a tensor, counts[i] += 1",
        )
        raise DictChanges(makers, refusal)


def as_list(values: Any) -> Any:
    """The elements of a dict or of a view of one, as a list of which data decide how long it is."""
    if isinstance(values, DictView) and values.held.is_open:
        return ListOfUnknownLength(values.list_parts())
    if isinstance(values, OpenDict) and values.is_open:
        return ListOfUnknownLength(values.list_keys())
    return values
