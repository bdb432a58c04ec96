"""Functions of Python's and of torch's that ask what data decide, written in Python.

Rewritten code calls them in the places of the originals (`callees.py`). What they ask is captured
as what the user's functions ask: the next attempt has hooks in them. (So they call an original by
`operator.call`, in whose place nothing stands.) Must not know of hooks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from operator import call
from typing import Any

import torch

from lostwax.capture.flow.items import Count, read_at
from lostwax.capture.flow.keys.keyed import as_list, is_lookup
from lostwax.capture.flow.keys.sets import take_unordered
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.spans import Scalars
from lostwax.capture.flow.truths import find_known, is_open_number
from lostwax.capture.flow.written_out.comparisons import Compared, rank
from lostwax.capture.python.cursors import Cursor, CycleCursor, Ending
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.location import STANDING_IN

STANDING_IN.add(__file__)
_MOST_SORTED = 16


def are_compared(values: Sequence[Any]) -> bool:
    """Do data decide which of these is the largest? (Of integers it is an expression.)"""
    is_open = any(map(is_open_number, values))
    return is_open and not all(isinstance(each, (int, torch.SymInt)) for each in values)


# ------------------------------------------------------------------------------------------ truths


def equal(input: Any, other: Any) -> Any:
    """`torch.equal`: tensors of other sizes are not equal."""
    if not (_are_fakes(input, other) and input.dtype is other.dtype):
        return torch.equal(input, other)
    found = torch.zeros((), dtype=torch.bool, device=input.device)
    if input.shape == other.shape:
        found = (input == other).all()
    return found


def allclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    return torch.isclose(input, other, rtol, atol, equal_nan).all()


def is_nonzero(input: Any) -> Any:
    if not (_are_fakes(input) and is_open_number(input)):
        return torch.is_nonzero(input)
    return input.reshape(()) != 0


def truth(value: Any) -> Any:
    return is_nonzero(value) if _are_fakes(value) else operator.truth(value)


def isnan(value: Any) -> Any:
    number = _read(value)
    return math.isnan(value) if number is None else number != number


def isinf(value: Any) -> Any:
    number = _read(value)
    return math.isinf(value) if number is None else abs(number) == math.inf


def isfinite(value: Any) -> Any:
    number = _read(value)
    return math.isfinite(value) if number is None else abs(number) < math.inf


def isclose(a: Any, b: Any, *, rel_tol: float = 1e-09, abs_tol: float = 0.0) -> Any:
    one, other = _read(a), _read(b)
    if one is None and other is None:
        return math.isclose(a, b, rel_tol=rel_tol, abs_tol=abs_tol)
    one, other = (a if one is None else one), (b if other is None else other)
    apart = abs(one - other)
    is_near = apart <= max(rel_tol * max(abs(one), abs(other)), abs_tol)
    return one == other or (apart < math.inf and is_near)


def any_of(values: Any, /) -> Any:
    return any(each for each in values)


def all_of(values: Any, /) -> Any:
    return all(each for each in values)


def _are_fakes(*values: Any) -> bool:
    return all(type(each) is FakeTensor for each in values)


def _read(value: Any) -> Any:
    """A number that depends on data; else None."""
    if not is_open_number(value):
        return None
    return value.item() if isinstance(value, torch.Tensor) else value


# ------------------------------------------------------------------------------------------- order


def take_largest(original: Any, /, *args: Any, **options: Any) -> Any:
    return _take_extreme(original, operator.gt, *args, **options)


def take_smallest(original: Any, /, *args: Any, **options: Any) -> Any:
    return _take_extreme(original, operator.lt, *args, **options)


def _take_extreme(
    original: Any, is_better: Any, /, *args: Any, key: Any = None, **options: Any
) -> Any:
    """Of those that none is better than, the first."""
    if len(args) == 1 and is_lookup(key, args[0]) and args[0].is_open:
        return _take_of_open(is_better, as_list(args[0].items()), _take_value, **options)[0]
    args = (take_unordered(args[0]),) if len(args) == 1 and key is None else args
    args = (as_list(args[0]),) if len(args) == 1 else args
    if len(args) == 1 and _is_open(args[0]):
        return _take_of_open(is_better, args[0], key, **options)
    values = list(args[0]) if len(args) == 1 else args
    keys = values if key is None else [key(each) for each in values]
    if not (are_compared(keys) or (key is not None and any(map(is_open_number, keys)))):
        if key is None or not values:
            return call(original, *([values] if len(args) == 1 else args), **options)
        return values[call(original, range(len(values)), key=keys.__getitem__)]
    found, found_key = values[0], keys[0]
    for i in range(1, len(values)):
        if is_better(keys[i], found_key):
            found, found_key = values[i], keys[i]
    return found


def _take_value(pair: Any) -> Any:
    return pair[1]


def _take_of_open(is_better: Any, values: Any, key: Any, **options: Any) -> Any:
    if not values:
        if "default" in options:
            return options["default"]
        raise ValueError("max() or min() of an empty list")
    found = values[0]
    found_key = found if key is None else key(found)
    for each in values[1:]:
        each_key = each if key is None else key(each)
        if is_better(each_key, found_key):
            found, found_key = each, each_key
    return found


def _is_open(values: Any) -> bool:
    """Is it a list of which data decide how long it is?"""
    return isinstance(values, ListOfUnknownLength) and values.is_open


def _count_open(values: Any) -> Any:
    """How many elements a list or a tensor has, if data or a size decide it; else None."""
    if _is_open(values):
        return values.count_elements()
    is_open = _are_fakes(values) and values.ndim and is_open_number(values.shape[0])
    return values.shape[0] if is_open else None


def take_next(original: Any, values: Any, /, *default: Any) -> Any:
    """`next`."""
    if type(values) not in (Cursor, CycleCursor) or not values.is_open:
        return call(original, values, *default)
    if not values.has_more():
        if default:
            return default[0]
        raise CaptureError.here(
            "an iterator may have come to its end, and data decide how far it went",
            why="Python raises StopIteration then, and a program cannot catch anything",
            instead="say what comes after the end, next(iterator, default)",
        )
    at = values.advance()
    found = read_at(values, at)
    if found is not None:
        return found[0]
    elements = values.state[1]
    for i in range(len(elements) - 1):
        if at == i:
            return elements[i]
    return elements[-1]


def add_up(original: Any, values: Any, /, start: Any = 0) -> Any:
    """`sum`."""
    values = take_unordered(values)
    count = _count_open(values)
    is_rest = type(values) is Cursor and values.is_open
    if count is None and not (is_rest or type(values) in (Count, Ending)):
        return call(original, values, start)
    is_number = count is not None and not isinstance(start, torch.Tensor)
    if is_number and find_known(count > 0) is True:  # then it is as the first is
        start, values = start + values[0], values[1:]
    for each in values:
        start = start + each
    return start


def order_values(given: Any, /, *, key: Any = None, reverse: bool = False) -> list[Any]:
    values = list(take_unordered(given) if key is None else given)
    if _is_open(values):
        keys = values if key is None else [key(each) for each in values]
        return _order_open(values, keys, reverse)
    keys = [*values] if key is None else [key(each) for each in values]
    if any(type(each) is Compared and each.is_of_data() for each in keys):
        keys = rank(keys)
    if not any(map(is_open_number, keys)):
        order = call(sorted, range(len(values)), key=keys.__getitem__, reverse=reverse)
        return [values[i] for i in order]
    _check_sortable(keys)
    # Of two, Python swaps them or not. Where NaN leaves more of them depends on how it sorts, and
    # Python 3.13 sorts otherwise than 3.12.
    for each in keys if len(keys) > 2 else ():
        if each != each:
            raise ValueError(
                "NaN has no place in an order, and where sorted() leaves it depends on the version "
                "of Python: replace it before, torch.nan_to_num(x)"
            )
    for end in range(1, len(values)):
        for i in range(end, 0, -1):
            one, other = (i - 1, i) if reverse else (i, i - 1)
            if keys[one] < keys[other]:
                values[i - 1], values[i] = values[i], values[i - 1]
                keys[i - 1], keys[i] = keys[i], keys[i - 1]
    return values


def find_place(values: list[Any], one: Any, /, *bounds: Any) -> Any:
    """`values.index(one)`."""
    if bounds or not _are_integers([one, *values]):
        return call(list.index, values, one, *bounds)
    for i in range(len(values)):
        if values[i] == one:
            return i
    raise ValueError("it is not in the list")


def count_equal(values: list[Any], one: Any, /) -> Any:
    """`values.count(one)`."""
    if not _are_integers([one, *values]):
        return call(list.count, values, one)
    found = 0
    for each in values:
        if each == one:
            found = found + 1
    return found


def _are_integers(values: Sequence[Any]) -> bool:
    """Are some of these integers open, and the others no numbers that are? (Of NaN, and of a tensor
    that may have it, it matters which object it is.)"""
    is_any = any(isinstance(each, torch.SymInt) and is_open_number(each) for each in values)
    return is_any and all(isinstance(each, (int, torch.SymInt)) for each in values)


def _order_open(values: Any, keys: Any, reverse: bool) -> list[Any]:
    span, of_keys = values.find_span(), keys.find_span()
    if not isinstance(of_keys, Scalars) or of_keys.tensor.dtype is not torch.int64:
        raise CaptureError.here(
            "a list of which data decide how long it is, is sorted by something else than integers",
            why="where Python leaves NaN among floats hangs on how many there are",
            instead="sort a tensor, torch.sort(torch.stack(values))",
        )
    order = of_keys.tensor.argsort(stable=True, descending=reverse)
    return ListOfUnknownLength([span.choose(order)])


def order_list(values: list[Any], /, **options: Any) -> None:
    values[:] = order_values(values, **options)


def _check_sortable(keys: Sequence[Any]) -> None:
    what = ""
    if len(keys) > _MOST_SORTED:
        what = f"{len(keys)} values, of which data decide the order, are sorted one by one"
    elif not all(isinstance(each, (int, float)) or is_open_number(each) for each in keys):
        what = "values are sorted of which data decide the order, and which are no numbers"
    if what:
        raise CaptureError.here(
            what,
            why="each comparison of two becomes a branch of the program",
            instead="sort a tensor, torch.sort(torch.stack(values)), and take what you need by "
            "its indices",
        )
