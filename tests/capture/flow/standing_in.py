"""Functions in which something of ours stands in for an iterator, a list, a number or a function,
and which ask what it is."""

# ruff: noqa: E721, F841, RUF015, UP031
# mypy: ignore-errors

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import functools
import heapq
import inspect
import json
import logging
import operator
import pickle
import pprint
import reprlib
import sys
import types

import torch
from torch.utils import _pytree as pytree

TYPE = type


def _moved(x):
    """An iterator, in a function that data take apart."""
    it = iter([1.0, 2.0])
    return it, (x + 1 if x[0] > 0 else x)


def _positive(x):
    """A list of as many elements as data say."""
    found = []
    for each in x:
        if each > 0:
            found.append(each)
    return found


def _ones(x):
    found = [1]
    for each in x:
        if each > 0:
            found.append(2)
    return found


def _count(x):
    n = 0
    for each in x:
        if each > 0:
            n += 1
    return n


# --------------------------------------------------------------------------------------- iterators


def name_of_an_iterator(x):
    it, x = _moved(x)
    return x * len(type(it).__name__) * len(it.__class__.__name__)


def name_in_the_function_that_makes_it(x):
    it = iter([1.0, 2.0])
    if x[0] > 0:
        x = x + 1
    return x * len(type(it).__name__)


def name_by_another_name(x):
    it, x = _moved(x)
    return x * len(TYPE(it).__name__) + len(operator.attrgetter("__class__")(it).__name__)


def names_by_a_map(x):
    it, x = _moved(x)
    return x * len([*map(type, [it])][0].__name__) + len([type(v).__name__ for v in (it, x)])


def _name(value):
    return len(type(value).__name__)


def name_in_another_function(x):
    it, x = _moved(x)
    return x * _name(it)


def name_among_variables(x):
    it, x = _moved(x)
    return x * sum(_name(v) for k, v in locals().items() if k == "it")


def class_of_a_tuples_iterator(x):
    it = iter((1.0, 2.0))
    if x[0] > 0:
        x = x + 1
    is_same = type(it) is type(iter(())) and type(it) in (list, type(iter(())))
    return x * {type(iter(())): 2, type(iter([])): 5}.get(type(it), 7) * (1 + is_same)


def kinds_of_an_iterator(x):
    it, x = _moved(x)
    kinds = (
        inspect.isgenerator(it),
        isinstance(it, collections.abc.Sized),
        isinstance(it, collections.abc.Iterator),
        isinstance(it, collections.abc.Reversible),
        isinstance(it, types.GeneratorType),
        callable(it),
        isinstance(it, type(iter([]))),
    )
    return x * sum(2**i * kind for i, kind in enumerate(kinds))


@functools.singledispatch
def _dispatch(value):
    return 7


_dispatch.register(type(iter([])))(lambda value: 2)
_dispatch.register(list)(lambda value: 3)
_dispatch.register(int)(lambda value: 4)


def dispatched(x):
    it, x = _moved(x)
    return x * _dispatch(it) * _dispatch(_positive(x)) * _dispatch(_count(x))


def text_of_an_iterator(x):
    it, x = _moved(x)
    return x * len(repr(it).split(" at ")[0]) + len(f"{it}".split(" at ")[0])


def pickled_iterator(x):
    it, x = _moved(x)
    next(it)
    return x * len(pickle.dumps(it))


def copied_iterator(x):
    it = iter([1.0, 2.0, 3.0])
    if x[0] > 0:
        next(it)
    other = copy.deepcopy(it)
    return x * next(other) + next(it)


def reduced_iterator(x):
    it, x = _moved(x)
    made = it.__reduce__()
    return x * (len(made) + 10 * (made[0] is iter) + 100 * len(made[1]))


def iterator_set_back(x):
    it, x = _moved(x)
    it.__setstate__(1)
    return x * next(it)


def attributes_of_an_iterator(x):
    it, x = _moved(x)
    names = ("at", "state", "is_open", "advance", "__setstate__", "__next__", "__len__")
    has = [hasattr(it, name) for name in names]
    return x * sum(2**i * each for i, each in enumerate(has)) + getattr(it, "at", 5)


def iterator_takes_no_attribute(x):
    it, x = _moved(x)
    try:
        it.note = 1
    except AttributeError:
        x = x * 2
    return x


# ------------------------------------------------------------------------------------------- lists


def type_of_a_list(x):
    found = _positive(x)
    names = (type(found).__name__, found.__class__.__name__)
    return x * ((type(found) is list) + 2 * (type(found) in (tuple, list))) + len("".join(names))


def type_of_what_a_comprehension_makes(x):
    found = [each for each in x if each > 0]
    return x * (2 if type(found) is list else 3)


def kinds_of_a_list(x):
    found = _positive(x)
    is_one = isinstance(found, collections.abc.MutableSequence)
    return x * (is_one + 2 * issubclass(type(found), list) + 4 * isinstance(found, tuple))


def methods_of_the_class(x):
    found = []
    for each in x:
        if each > 0:
            found.append(each)
    return x * list.__len__(found) + sum(map(len, map(list.copy, [found, found])))


def element_by_a_method_of_the_class(x):
    found = [1]
    for each in x:
        if each > 0:
            found.append(2)
    return x * list.__getitem__(found, -1)


def attributes_of_a_list(x):
    found = _positive(x)
    has = [hasattr(found, name) for name in ("list_parts", "make_tensor", "append", "shape")]
    return x * sum(2**i * each for i, each in enumerate(has))


def leaves_of_a_list(x):
    found = []
    for each in x[:2]:
        found.append(each + 1)
        if each > 0:
            found[-1] = each * 2
    leaves, spec = pytree.tree_flatten({"a": found})
    is_same = spec == pytree.tree_structure({"a": [1, 2]})
    return sum(pytree.tree_map(lambda each: each * 2, found)) * len(leaves) * (2 if is_same else 3)


def shown_list(x):
    found = _ones(x)
    logging.getLogger(__name__).debug("%s %r", found, [found])
    print(found, file=sys.stderr)
    return x * len(found)


# ----------------------------------------------------------------------------- numbers, functions


def text_of_what_data_choose(x):
    best = "one"
    if x[0] > 0:
        best = None
    return x * len(repr(sys._getframe().f_locals["best"]))


def attributes_of_a_number(x):
    n = _count(x)
    has = [hasattr(n, name) for name in ("node", "bit_length", "__index__", "__dict__")]
    return x * sum(2**i * each for i, each in enumerate(has)) + getattr(n, "node", 3)


def types_of_numbers(x):
    n, is_large, scale = _count(x), False, 0.5
    if x[0] > 2:
        is_large, scale = True, 1.5
    return x * len(f"{type(n).__name__} {type(is_large).__name__} {type(scale).__name__}")


def type_of_types(x):
    if x[0] > 0:
        x = x + 1
    is_type = type(int) is type, type(torch.nn.Linear) == type, type(type) is type
    return x * sum(is_type) * {type: 5}[type(int)] * len(type.__name__)


def what_a_partial_has(x):
    larger = functools.partial(max, 1.0)
    y = x * (2 if larger.func is max else 3) * len(larger.func.__name__)
    return y * larger(x[0].item())


def generator_of_a_filter(x):
    found = (each * 2 for each in x if each > 0)
    return x * len(f"{type(found).__name__} {found.__name__}") * (1 + inspect.isgenerator(found))


CAPTURED = [
    name_of_an_iterator, name_in_the_function_that_makes_it, name_by_another_name, names_by_a_map,
    name_in_another_function, name_among_variables, class_of_a_tuples_iterator,
    kinds_of_an_iterator, dispatched, text_of_an_iterator, pickled_iterator, copied_iterator,
    reduced_iterator, iterator_set_back, attributes_of_an_iterator, iterator_takes_no_attribute,
    type_of_a_list, type_of_what_a_comprehension_makes, kinds_of_a_list, methods_of_the_class,
    element_by_a_method_of_the_class, attributes_of_a_list, leaves_of_a_list, shown_list,
    text_of_what_data_choose, attributes_of_a_number, types_of_numbers, type_of_types,
    what_a_partial_has, generator_of_a_filter,
]  # fmt: skip


def pickled_where_data_say(x):
    it = iter([1.0, 2.0])
    if x[0] > 0:
        next(it)
    return x * len(pickle.dumps(it))


def text_of_a_list(x):
    return x * len(repr(_ones(x)))


def text_of_a_list_in_another(x):
    return x * len("%s" % ({"a": _ones(x)},))


def short_text_of_a_list(x):
    return x * len(reprlib.repr(_ones(x)))


def pretty_text_of_a_number(x):
    return x * len(pprint.pformat(_count(x) * 100))


def short_text_of_a_number(x):
    return x * len(reprlib.repr(x[0].int().item()))


def pickled_list(x):
    return x * len(pickle.dumps(_ones(x)))


def json_of_a_list(x):
    return x * len(json.dumps(_ones(x)))


def json_of_a_number(x):
    return x * len(json.dumps([x[0].int().item()]))


def leaves_of_an_open_list(x):
    return x * len(pytree.tree_leaves([_positive(x)]))


def fields_of_a_list(x):
    @dataclasses.dataclass
    class Found:
        values: list

    return x * len(dataclasses.asdict(Found(_ones(x)))["values"])


def concatenated(x):
    return x * len(functools.reduce(operator.concat, [[1], _ones(x)]))


def popped_from_a_heap(x):
    found = _ones(x)
    heapq.heapify(found)
    return x * heapq.heappop(found)


REFUSED = [
    pickled_where_data_say, text_of_a_list, text_of_a_list_in_another, short_text_of_a_list,
    pretty_text_of_a_number, short_text_of_a_number, pickled_list, json_of_a_list,
    json_of_a_number, leaves_of_an_open_list, fields_of_a_list, concatenated, popped_from_a_heap,
]  # fmt: skip
