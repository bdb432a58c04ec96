"""Functions of Python's and of torch's that take what only data know, in place of those that do
not: the one table, by the functions themselves. What a program calls them does not matter.

Rewritten code asks for each function that it calls. Must not know how it is rewritten.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from lostwax.capture.flow import stand_ins
from lostwax.capture.flow.items import Count, count_items, count_on, slice_items
from lostwax.capture.flow.keys.keyed import KINDS, ask_for_open
from lostwax.capture.flow.keys.sets import are_open, make_of_open
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.made import list_elements
from lostwax.capture.flow.lists.parts import list_numbers, split_into
from lostwax.capture.flow.truths import (
    OpenLength,
    is_open_number,
    make_tensor,
    read_truth,
    take_number,
)
from lostwax.capture.flow.written_out import integers, iteration, order
from lostwax.capture.flow.written_out.cached_calls import call_cached, is_cached
from lostwax.capture.flow.written_out.comparisons import Compared
from lostwax.capture.flow.written_out.endings import call_until
from lostwax.capture.flow.written_out.generators import (
    group_values,
    join,
    slice_values,
    take_values,
)
from lostwax.capture.python.cursors import Cursor, CycleCursor
from lostwax.classes import SYMBOLIC
from lostwax.fake.symbolic.classes import MethodOfNumber
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)
_METHODS = (BuiltinFunctionType, MethodType)


class _StandIn(NamedTuple):
    call: Callable[..., Any]
    is_truth: bool = False
    """Does it return a truth, which may be a tensor?"""
    takes_original: bool = False
    """Is its first argument the function that it stands for?"""


def find_callee(function: Any, is_asked: bool = False) -> Any:
    """What to call in the place of a function, or of a method of a tensor or a list; itself, if
    there is nothing else. `is_asked`: only the truth of what it returns counts."""
    if is_cached(function):
        return partial(call_cached, function)
    if type(function) is MethodType and is_cached(function.__func__):
        return partial(call_cached, function.__func__, function.__self__)
    row = _find_row(function, _FUNCTIONS, _METHODS_OF_TENSORS)
    if row is None:
        return _find_inside(function, is_asked) if type(function) is partial else function
    call = partial(row.call, function) if row.takes_original else row.call
    return partial(_read, call) if row.is_truth and not is_asked else call


def _find_inside(function: partial[Any], is_asked: bool) -> Any:
    found = find_callee(function.func, is_asked)
    is_same = found is function.func
    return function if is_same else partial(found, *function.args, **function.keywords)


def find_source(function: Any) -> Any:
    """The same where a loop goes over what is returned: it may be of a length that only the program
    knows, and be given such. None, if it is none of those that make what loops go over."""
    row = _find_row(function, _SOURCES, _SOURCES_OF_TENSORS)
    return None if row is None else partial(row.call, function)


def _find_row(
    function: Any, of_functions: dict[int, tuple[Any, _StandIn]], of_tensors: dict[str, _StandIn]
) -> _StandIn | None:
    kind = type(function)
    if kind is MethodOfNumber or (kind is MethodType and isinstance(function.__self__, SYMBOLIC)):
        row = _METHODS_OF_NUMBERS.get(function.__name__)
        return row and row._replace(call=partial(row.call, function.__self__))
    if kind in _METHODS and type(function.__self__) in (FakeTensor, list):
        of_owner = of_tensors if type(function.__self__) is FakeTensor else _METHODS_OF_LISTS
        row = of_owner.get(function.__name__)
        if row is None or row.takes_original:
            return row
        return row._replace(call=partial(row.call, function.__self__))
    if kind in _METHODS and type(function.__self__) is torch.Size:
        return _NUMEL if function.__name__ == "numel" else None
    if kind in _METHODS and type(function.__self__) in (set, *KINDS):
        return _OF_DICTS if function.__name__ in _CHANGING else None
    original = function
    if kind is FunctionType:  # a capture may have one in its place
        original = vars(function).get("stands_for", function)
    found = of_functions.get(id(original))
    return None if found is None else found[1]


def _read(call: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    return take_number(call(*args, **options))


# ------------------------------------------------------------------------------ lengths and numbers


def _count(values: Any, /) -> Any:
    """`len`, which is a symbolic number where data decide how long a tensor is."""
    if isinstance(values, OpenLength):
        return values.count_elements()
    if isinstance(values, Count):
        return torch.sym_max(values.length, 0)
    if type(values) is FakeTensor and values.ndim and is_open_number(values.shape[0]):
        return values.shape[0]
    return len(values)


def _copy(kind: Any, /, *args: Any, **options: Any) -> Any:
    """`list` of one whose length is open; or `tuple`, where torch takes it for the same."""
    found = list_elements(args[0]) if len(args) == 1 else None
    return kind(*args, **options) if found is None else found


def _make_range(original: Any, /, *args: Any) -> Any:
    """`range` of numbers that data decide."""
    found = count_items(original, *args) if any(map(is_open_number, args)) else None
    return found if isinstance(found, Count) else original(*args)


def _call_of_dict(method: Any, /, *args: Any, **options: Any) -> Any:
    """A method that changes a dict or set: Python wants to know the keys that it is given."""
    if args and (is_open_number(args[0]) or are_open(args[0])):
        ask_for_open(method.__self__, sys._getframe(1))
    return method(*args, **options)


def _iterate(original: Any, values: Any, /, *args: Any) -> Any:
    """`iter` of something of a known length."""
    kind = type(values)
    if len(args) == 1:
        return call_until(find_callee(values), *args)
    if args or (kind is FakeTensor and (not values.ndim or is_open_number(values.shape[0]))):
        return original(values, *args)
    if kind is FakeTensor:
        return Cursor(values.unbind(0))
    if kind in _MODULES:
        return Cursor(tuple(values))
    return Cursor(values) if kind in (list, tuple, range) else original(values)


_MODULES = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)


def _cycle(original: Any, values: Any, /) -> Any:
    kind = type(values)
    if kind is FakeTensor and values.ndim and not is_open_number(values.shape[0]):
        return CycleCursor(values, values.unbind(0))
    if kind in _MODULES or kind in (list, tuple, range):
        return CycleCursor(values, tuple(values)) if len(values) else original(values)
    return original(values)


def _take_while(function: Any, values: Any, /) -> Any:
    return take_values(_let_see(find_callee(function)), values)


def _group(original: Any, iterable: Any, key: Any = None) -> Any:
    return group_values(original, iterable, None if key is None else find_callee(key))


def _make_tensor(original: Any, data: Any = None, /, *args: Any, **options: Any) -> Any:
    """`torch.tensor`, also of a list whose length is open."""
    if not isinstance(data, ListOfUnknownLength) or not data.is_open or args:
        given = () if data is None else (data,)
        return original(*given, *args, **options)
    return data.make_tensor(**options)


def _multiply(original: Any, /) -> Any:
    """`x.shape.numel()`: C asks for the sizes one by one."""
    found: Any = 1
    for each in original.__self__:
        found = found * each
    return found


def _split(original: Any, /, *args: Any, **options: Any) -> Any:
    """`x.split(lengths)` of a list whose length is open."""
    found = split_into(original, args, options)
    return original(*args, **options) if found is None else found


def copy_for_torch(function: Any) -> Any:
    """What to call to make the list or tuple that a function of torch joins."""
    return partial(_copy, function) if function is tuple else find_callee(function)


def _read_truth(*args: Any) -> Any:
    return read_truth(*args) if len(args) == 1 and is_open_number(args[0]) else bool(*args)


def _make_number(kind: Any, /, *args: Any, **options: Any) -> Any:
    """`int` or `float`."""
    if len(args) != 1 or options or not is_open_number(args[0]):
        return kind(*args, **options)
    (value,) = args
    if isinstance(value, torch.SymBool) or getattr(value, "dtype", None) is torch.bool:
        value = make_tensor(value).long()
    number = take_number(value)
    if kind is float:
        return number if isinstance(number, torch.SymFloat) else torch.sym_float(number)
    return number if isinstance(number, torch.SymInt) else torch.sym_int(number)


# ------------------------------------------------------------------------------ a function's own


def _list_variables() -> dict[str, Any]:
    """`locals`, without those that hooks have beside the user's: their names have a space."""
    return {name: v for name, v in sys._getframe(1).f_locals.items() if " " not in name}


def _list_own(original: Any, /, *args: Any) -> Any:
    """`vars` or `dir`."""
    if args:
        return original(*args)
    found = {name: v for name, v in sys._getframe(1).f_locals.items() if " " not in name}
    return found if original is vars else sorted(found)


# ------------------------------------------------------------------ functions that are given others


def _give_callee(original: Any, function: Any, /, *args: Any, **options: Any) -> Any:
    return original(_let_see(find_callee(function)), *args, **options)


def _give_function(original: Any, function: Any, /, *args: Any, **options: Any) -> Any:
    """`partial`, which shows what it is given."""
    return original(_let_see(function), *args, **options)


def _let_see(function: Any) -> Any:
    """C calls methods of C's without notice, so what these change is not seen
    (`heap/hidden.py`): let Python call it."""
    is_of_c = type(function) is BuiltinFunctionType
    if not is_of_c or isinstance(function.__self__, ModuleType):
        return function
    return lambda *args, **options: function(*args, **options)


def _compare_by(mycmp: Any) -> Any:
    return partial(Compared, find_callee(mycmp))


def _take_key(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_with_key(*args: Any, key: Any = None, **options: Any) -> Any:
        key = None if key is None else find_callee(key)
        return call(*args, key=key, **options)

    return call_with_key


def _by_identity(rows: dict[Any, _StandIn]) -> dict[int, tuple[Any, _StandIn]]:
    return {id(function): (function, row) for function, row in rows.items()}


_TRUTHS: dict[Any, Callable[..., Any]] = {
    torch.equal: stand_ins.equal,
    torch.allclose: stand_ins.allclose,
    torch.is_nonzero: stand_ins.is_nonzero,
    operator.truth: stand_ins.truth,
    math.isnan: stand_ins.isnan,
    math.isinf: stand_ins.isinf,
    math.isfinite: stand_ins.isfinite,
    math.isclose: stand_ins.isclose,
    any: stand_ins.any_of,
    all: stand_ins.all_of,
    bool: _read_truth,
}
_FUNCTIONS = _by_identity(
    {
        **{function: _StandIn(call, is_truth=True) for function, call in _TRUTHS.items()},
        max: _StandIn(_take_key(stand_ins.take_largest), takes_original=True),
        min: _StandIn(_take_key(stand_ins.take_smallest), takes_original=True),
        sorted: _StandIn(_take_key(stand_ins.order_values)),
        iter: _StandIn(_iterate, takes_original=True),
        itertools.takewhile: _StandIn(_take_while),
        itertools.islice: _StandIn(slice_values),
        itertools.groupby: _StandIn(_group, takes_original=True),
        itertools.cycle: _StandIn(_cycle, takes_original=True),
        next: _StandIn(stand_ins.take_next, takes_original=True),
        sum: _StandIn(stand_ins.add_up, takes_original=True),
        len: _StandIn(_count),
        torch.tensor: _StandIn(_make_tensor, takes_original=True),
        torch.split: _StandIn(_split, takes_original=True),
        list: _StandIn(_copy, takes_original=True),
        **dict.fromkeys((set, Counter, dict), _StandIn(make_of_open, takes_original=True)),
        range: _StandIn(_make_range, takes_original=True),
        locals: _StandIn(_list_variables),
        **dict.fromkeys((vars, dir), _StandIn(_list_own, takes_original=True)),
        int: _StandIn(_make_number, takes_original=True),
        float: _StandIn(_make_number, takes_original=True),
        **{
            each: _StandIn(_give_callee, takes_original=True)
            for each in (map, filter, functools.reduce)
        },
        functools.cmp_to_key: _StandIn(_compare_by),
        functools.partial: _StandIn(_give_function, takes_original=True),
        math.gcd: _StandIn(integers.find_common_divisor),
        math.lcm: _StandIn(integers.find_common_multiple),
        math.isqrt: _StandIn(integers.find_root),
        math.factorial: _StandIn(integers.multiply_up_to),
        bisect.bisect_left: _StandIn(order.find_first_place),
        bisect.bisect_right: _StandIn(order.find_last_place),
        heapq.nlargest: _StandIn(_take_key(order.take_some_largest)),
        heapq.nsmallest: _StandIn(_take_key(order.take_some_smallest)),
    }
)
_METHODS_OF_NUMBERS = {
    "bit_length": _StandIn(integers.count_digits),
    "bit_count": _StandIn(integers.count_ones),
}
_METHODS_OF_TENSORS = {
    "equal": _StandIn(stand_ins.equal, is_truth=True),
    "allclose": _StandIn(stand_ins.allclose, is_truth=True),
    "is_nonzero": _StandIn(stand_ins.is_nonzero, is_truth=True),
    "__bool__": _StandIn(stand_ins.is_nonzero, is_truth=True),
    "tolist": _StandIn(list_numbers, takes_original=True),
    **dict.fromkeys(("split", "split_with_sizes"), _StandIn(_split, takes_original=True)),
}
_NUMEL = _StandIn(_multiply, takes_original=True)
_CHANGING = frozenset(("add", "discard", "remove", "update", "setdefault", "pop", "move_to_end"))
_OF_DICTS = _StandIn(_call_of_dict, takes_original=True)
_METHODS_OF_LISTS = {
    "sort": _StandIn(_take_key(stand_ins.order_list)),
    "index": _StandIn(stand_ins.find_place),
    "count": _StandIn(stand_ins.count_equal),
}
_PARTS = _StandIn(slice_items, takes_original=True)
_SOURCES = _by_identity(
    {
        range: _StandIn(count_items),
        itertools.count: _StandIn(count_on),
        itertools.dropwhile: _StandIn(iteration.drop_first),
        **{each: _StandIn(join) for each in (enumerate, zip, reversed)},
        **dict.fromkeys((torch.unbind, torch.split, torch.chunk), _PARTS),
    }
)
_SOURCES_OF_TENSORS = dict.fromkeys(("unbind", "split", "chunk"), _PARTS)
