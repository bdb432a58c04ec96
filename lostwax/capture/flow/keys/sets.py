"""Sets of which data decide what is in them: keys without values (`keyed.py`). In which order
Python gives the elements is not said, so nothing goes over them that asks for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableSet
from functools import reduce
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from lostwax.capture.flow.keys import by_python
from lostwax.capture.flow.keys.keyed import (
    KINDS,
    DictView,
    Keyed,
    OpenDict,
    as_list,
    can_be_key,
    make_open_dict,
    refuse,
)
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.spans import Scalars, Tuples, UnknownElements
from lostwax.capture.flow.numbers import INTEGERS, number_to_tensor
from lostwax.capture.flow.truths import is_open_number
from lostwax.location import PASSING_ON, user_location

PASSING_ON.add(__file__)


class OpenSet(Keyed):
    __slots__ = ("__weakref__",)

    add = Keyed.put
    discard = by_python.discard
    remove = by_python.delete

    def update(self, *others: Any) -> None:
        for other in others:
            self.state[:] = (self | other).state.list_parts()

    def __iter__(self) -> Iterator[Any]:
        raise refuse(
            "something goes over a set one by one, of which data decide what is in it",
            "for x in sorted(values); or keep the elements in a list, or in a dict",
        )

    def pop(self) -> Any:
        iter(self)

    def _numbers(self) -> Tensor:
        """The elements, which are integers."""
        if self._words:
            raise refuse("a set that data change, of words, is joined or compared with another")
        return _join_numbers(self.list_keys())

    def _is_in(self, other: Any) -> Tensor:
        """Which elements are in another set, too."""
        found: Tensor = (self._numbers()[:, None] == to_set(other)._numbers()).any(1)
        return found

    def _keep(self, are_kept: Tensor) -> OpenSet:
        found = OpenSet(self._kind)
        found.state[:] = [_stand_for(self._numbers()[are_kept])]
        return found

    def __and__(self, other: Any) -> Any:
        return self._keep(self._is_in(other))

    def __sub__(self, other: Any) -> Any:
        return self._keep(self._is_in(other).logical_not())

    def __rsub__(self, other: Any) -> Any:
        return to_set(other) - self

    def __or__(self, other: Any) -> Any:
        found = OpenSet(self._kind)
        numbers = torch.cat([self._numbers(), to_set(other)._numbers()])
        found.state[:] = [_stand_for(numbers[_find_first(numbers)])]
        return found

    def __xor__(self, other: Any) -> Any:
        return (self - other) | (to_set(other) - self)

    def __le__(self, other: Any) -> Any:
        return self._is_in(other).all().item()

    def __ge__(self, other: Any) -> Any:
        return to_set(other) <= self

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, (set, frozenset)):
            return False
        are_in, count = self._is_in(other), to_set(other).count_elements()
        return (are_in.all() & (self._numbers().numel() == count)).item()

    def __ne__(self, other: Any) -> Any:
        return torch.sym_not(self == other)

    def isdisjoint(self, other: Any) -> Any:
        return torch.sym_not(self._is_in(other).any().item())

    def __lt__(self, other: Any) -> Any:
        count = to_set(other).count_elements()
        return (self._is_in(other).all() & (self._numbers().numel() < count)).item()

    def __gt__(self, other: Any) -> Any:
        return to_set(other) < self

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    issubset, issuperset = __le__, __ge__

    def __repr__(self) -> str:
        raise refuse("the text of a set of which data decide what is in it")

    def make_plain(self) -> Any:
        return self._kind(self.list_known())


def _change_by(operator: Callable[[Any, Any], Any], gives_set: bool) -> Any:
    """`s |= t`, or `s.update(t)`: whoever has the set sees it."""

    def change(self: OpenSet, *others: Any) -> Any:
        for other in others:
            self.state[:] = operator(self, other).state.list_parts()
        return self if gives_set else None

    return change


def _join_by(operator: Callable[[Any, Any], Any]) -> Any:
    """`s.union(t, u)`."""

    def join(self: OpenSet, *others: Any) -> Any:
        return reduce(operator, others, self.copy())

    return join


for _name, _method, _operator in (
    ("or", "union", OpenSet.__or__),
    ("and", "intersection", OpenSet.__and__),
    ("sub", "difference", OpenSet.__sub__),
    ("xor", "symmetric_difference", OpenSet.__xor__),
):
    setattr(OpenSet, f"__i{_name}__", _change_by(_operator, gives_set=True))
    setattr(OpenSet, f"{_method}_update", _change_by(_operator, gives_set=False))
    setattr(OpenSet, _method, _join_by(_operator))


def _stand_for(*columns: Tensor) -> Tuples:
    return Tuples([Scalars(each, user_location()) for each in columns])


def _find_first(numbers: Tensor) -> Tensor:
    """Which are not there before."""
    found: Tensor = (numbers[:, None] == numbers).tril(-1).any(1).logical_not()
    return found


def _join_numbers(values: list[Any]) -> Tensor:
    """Integers, or what stands for some, as one tensor."""
    made = [torch.zeros(0, dtype=torch.int64)]
    for each in values:
        is_one = type(each) in INTEGERS
        if not (is_one or (isinstance(each, Scalars) and each.tensor.dtype is torch.int64)):
            raise refuse(
                "data decide what is in a set or a Counter, whose elements are not all integers",
                "take integers, int(x)",
            )
        number = number_to_tensor(each, torch.int64).reshape(1) if is_one else each.tensor
        made.append(number)
    return torch.cat(made)


def _list_parts(values: Any) -> list[Any]:
    values = as_list(values)
    if isinstance(values, ListOfUnknownLength):
        return values.list_parts()
    return values.list_keys() if isinstance(values, OpenSet) else list(values)


def to_set(values: Any) -> OpenSet:
    """A set of these, which may be one already."""
    if isinstance(values, OpenSet):
        return values
    found, parts = OpenSet(set), _list_parts(values)
    if any(map(_is_open, parts)):
        numbers = _join_numbers(parts)
        found.state[:] = [_stand_for(numbers[_find_first(numbers)])]
    else:
        for each in parts:
            found.put(each)
    return found


def _to_counter(values: Any) -> OpenDict:
    numbers = _join_numbers(_list_parts(values))
    counts = (numbers[:, None] == numbers).sum(1)
    is_first, found = _find_first(numbers), OpenDict(Counter)
    found.state[:] = [_stand_for(numbers[is_first], counts[is_first])]
    return found


def _to_dict(values: Any) -> OpenDict:
    found = values.copy() if isinstance(values, OpenDict) else OpenDict(dict)
    found._kind = dict
    if not isinstance(values, OpenDict):
        by_python.update(found, values)
    return found


def _is_open(value: Any) -> bool:
    """Do data decide a number, or one that is in a tuple?"""
    if type(value) is tuple:
        return bool(value) and _is_open(value[0])
    return isinstance(value, UnknownElements) or is_open_number(value)


_PASSING = (zip, map, enumerate, filter, GeneratorType)
_MADE: dict[Any, Callable[[Any], Any]] = {set: to_set, Counter: _to_counter, dict: _to_dict}


def make_of_open(kind: Any, /, *args: Any, **options: Any) -> Any:
    """`set`, `Counter` or `dict` of values that data decide."""
    if len(args) == 1 and not options:
        if isinstance(args[0], OpenSet) and kind is set:
            return args[0].copy()
        values = list(args[0]) if type(args[0]) in _PASSING else args[0]
        return _MADE[kind](values) if are_open(values) else kind(values)
    return kind(*args, **options)


def are_open(values: Any) -> bool:
    if isinstance(values, (Keyed, DictView)):
        held = values.held if isinstance(values, DictView) else values
        return held.is_open
    if isinstance(values, ListOfUnknownLength):
        return any(map(_is_open, values.list_parts()))
    return type(values) in (list, tuple) and any(map(_is_open, values))


def make_open(made: Any) -> Any:
    """A dict or set to which data will give keys; itself, if it cannot be one."""
    if type(made) is not set or not all(map(can_be_key, made)):
        return make_open_dict(made) if type(made) in KINDS else made
    return to_set(made)


def makes_new(function: Any) -> bool:
    """Does it make a dict or set that nobody else has?"""
    of = getattr(function, "__self__", None)
    is_class = type(function) is type and function in (set, *KINDS)
    return is_class or (of in KINDS and function.__name__ == "fromkeys")


def make_new(function: Any, /, *args: Any, **options: Any) -> Any:
    return make_open(function(*args, **options))


def take_unordered(values: Any) -> Any:
    """The elements for who asks for no order; of a set, too."""
    if not isinstance(values, OpenSet):
        return as_list(values)
    found = ListOfUnknownLength(values.list_keys())
    return found if found.is_open else found.list_parts()


MutableSet.register(OpenSet)
