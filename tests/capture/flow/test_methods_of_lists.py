"""What C does with a list of which data decide how long it is, in functions that ask no data, and
so have no hooks: the methods of the class, wherever a function has them from, are answered as those
of the list; all else that C would do with what lies in it is answered or refused."""

from __future__ import annotations

import copy
import functools
import heapq
import inspect
import itertools
import operator
import types
import typing
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LostwaxError

CALLS = [
    torch.tensor(values)
    for values in ([1.0, 2.0, -3.0, 4.0], [-1.0, -2.0, -3.0, -4.0], [-5.0, 1.0, 3.0, 2.0])
]
COPY, LENGTH, NAME = list.copy, list.__len__, "copy"
TABLE = {"copy": list.copy, "append": list.append, "length": list.__len__}
BY_METHOD = {list.copy: 5}
PART = functools.partial(list.append)
FIND = operator.attrgetter("copy")


class Stack(list[Any]):
    push = list.append
    size = list.__len__


class Operators:
    kind = list
    length = list.__len__

    def __init__(self) -> None:
        self.own = list.__len__


OPERATORS = Operators()


def apply(function: Any, *args: Any) -> Any:
    return function(*args)


def by_default(found: Any, function: Any = list.__len__) -> Any:
    return function(found)


def then_count(found: Any, *_: Any) -> Any:
    return len(found)


def pushed() -> Stack:
    stack = Stack()
    stack.push(1)
    return stack


ANSWERED: list[Callable[[Any], Any]] = [
    lambda found: list.__len__(found),
    lambda found: len(list.copy(found)),
    lambda found: LENGTH(found) + len(COPY(found)),
    lambda found: TABLE["length"](found),
    lambda found: Operators.length(found) + OPERATORS.own(found),
    lambda found: OPERATORS.kind.__len__(found),
    lambda found: by_default(found),
    lambda found: apply(list.__len__, found),
    lambda found: sum(map(list.__len__, [found, [1]])),
    lambda found: getattr(list, NAME)(found).__len__(),
    lambda found: vars(list)["__len__"](found),
    lambda found: list.__dict__["copy"](found).__len__(),
    lambda found: type(found).__len__(found) + found.__class__.__len__(found),
    lambda found: (lambda cls: cls.__len__(found))(list),
    lambda found: len(list[int].copy(found)) + len(typing.List.copy(found)),  # noqa: UP006
    lambda found: functools.partial(list.__len__, found)(),
    lambda found: list.__len__.__get__(found)(),
    lambda found: len(FIND(found)()),
    lambda found: len(Stack.copy(found)) + Stack.size(found) + len(pushed()),
    lambda found: len(list.__add__(found, [1])),
    lambda found: list.__contains__(found, 1),
    lambda found: len(list.__getitem__(found, slice(1, None))),
    lambda found: next(itertools.starmap(list.__len__, [(found,)])),
    lambda found: then_count(found, list.append(found, 7)),
    lambda found: then_count(found, list.insert(found, 0, 7)) + found[0],
    lambda found: then_count(found, list.extend(found, [7, 8])) + found[-1],
    lambda found: then_count(found, list.reverse(found)),
    lambda found: then_count(found, TABLE["append"](found, 1), PART(found, 2)),
    lambda found: then_count(found, *map(functools.partial(list.append, found), [1, 2])),
    lambda found: BY_METHOD[list.copy] + len(found),
    lambda found: {list.append: 1, list.copy: 2}[COPY] + len(found),
    lambda found: len(list.append.__qualname__) + len(found),
    lambda found: inspect.ismethoddescriptor(list.append) * len(found),
    lambda found: isinstance(list.append, types.MethodDescriptorType) * len(found),
    lambda found: (copy.copy(TABLE)["copy"] == list.copy) * len(found),
    lambda found: (copy.deepcopy(TABLE)["copy"] == list.copy) * len(found),
]  # fmt: skip
REFUSED: list[Callable[[Any], Any]] = [
    lambda found: list.count(found, 1),
    lambda found: len(list.__mul__(found, 2)),
    lambda found: len(list.__add__([1], found)),
    lambda found: len([1].__add__(found)),
    lambda found: [1].__eq__(found),
    lambda found: list.__eq__(found, []),
    lambda found: list.__ne__([], found),
    lambda found: len(list(list.__iter__(found))),
    lambda found: list.__repr__(found) == "[]",
    lambda found: then_count(found, list.insert(found, 1, 7)),
    lambda found: then_count(found, list.__delitem__(found, 0)),
    lambda found: then_count(found, list.sort(found)),
    lambda found: then_count(found, heapq.heappop(found)),
    lambda found: then_count(found, heapq.heapify(found)),
    lambda found: then_count(found, heapq.heapreplace(found, 3)),
    lambda found: then_count(found, *map(heapq.heappop, [found])),
]  # fmt: skip


def show(function: Any) -> str:
    text = inspect.getsource(function).strip().rstrip(",")
    return text.partition("found: ")[2]


def of_places(consume: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: torch.Tensor) -> Any:
        found = [i for i, each in enumerate(x) if each > 0]
        return x * consume(found)

    return program


def of_turns(consume: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: torch.Tensor) -> Any:
        found: list[int] = []
        while x.sum() > 0:
            x = x - 1
            found.append(3)
        return x * consume(found)

    return program


def run(function: Any, x: torch.Tensor) -> Any:
    try:
        return function(x)
    except (IndexError, RuntimeError):
        return "raises"


@pytest.mark.parametrize("make", [of_places, of_turns])
@pytest.mark.parametrize("consume", ANSWERED, ids=show)
def test_methods_of_the_class_are_those_of_the_list(consume: Any, make: Any) -> None:
    program = make(consume)
    captured = lostwax.export(program, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(run(captured, x), run(program, x))


@pytest.mark.parametrize("make", [of_places, of_turns])
@pytest.mark.parametrize("consume", REFUSED, ids=show)
def test_what_looks_into_the_list_is_refused(consume: Any, make: Any) -> None:
    with pytest.raises(LostwaxError) as error:
        lostwax.export(make(consume), (CALLS[0],))
    assert "test_methods_of_lists.py:" in str(error.value)
    assert "instead:" in str(error.value)


OF_QUEUES: list[Callable[[Any], Any]] = [
    lambda found: deque.__len__(found),
    lambda found: len(deque.copy(found)),
    lambda found: isinstance(found, deque) + 2 * isinstance(found, list),
    lambda found: then_count(found, deque.append(found, 1)),
    lambda found: then_count(found, deque.appendleft(found, 1)),
    lambda found: then_count(found, *map(deque.pop, [found])),
]  # fmt: skip


@pytest.mark.parametrize("consume", OF_QUEUES, ids=show)
def test_methods_of_deque(consume: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        found = deque([3])
        while x.sum() > 0:
            x = x - 1
            found.append(3)
        return x * consume(found)

    captured = lostwax.export(program, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(captured(x), program(x))


@pytest.mark.parametrize("consume", [lambda f: list.copy(f), lambda f: list.append(f, 1)])
def test_a_deque_is_no_list(consume: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        found = deque([3])
        while x.sum() > 0:
            x = x - 1
            found.append(3)
        return x * len(consume(found) or found)

    with pytest.raises(TypeError, match="for 'list' objects"):
        lostwax.export(program, (CALLS[0],))


def test_all_is_put_back() -> None:
    lostwax.export(of_places(lambda found: LENGTH(found) + OPERATORS.own(found)), (CALLS[0],))
    assert (
        type(LENGTH) is type(TABLE["length"]) is type(OPERATORS.own) is types.WrapperDescriptorType
    )
    assert type(vars(Stack)["push"]) is types.MethodDescriptorType
    assert PART.func is list.append
