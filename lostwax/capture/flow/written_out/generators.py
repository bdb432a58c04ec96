"""Loops over generators that are written out (`rewriting/giving.py`). Must not know of hooks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from gc import get_referents
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any

import torch.utils._pytree as pytree

from lostwax.capture.flow.items import Items, find_open, is_plain_source
from lostwax.capture.flow.retry import ITEMS, LoopGives
from lostwax.capture.flow.rewriting.names import GIVE, GIVEN
from lostwax.capture.flow.rewriting.picks import Place
from lostwax.capture.flow.truths import is_open_number
from lostwax.capture.flow.written_out import iteration
from lostwax.capture.flow.written_out.endings import (
    find_place,
    join_endings,
    slice_iterator,
    take_group,
    take_while,
)
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON, can_have_hooks, is_user_code

PASSING_ON.add(__file__)
_COUNTED = 2
"""So many hold an object that one has, while they are counted."""


def go_through(given: list[Any], give: Callable[[Any], Any], is_held: bool) -> Any:
    """Give what is in a list to a function, one value after the other, until that returns true.
    Returns whether it did. `given`: what has the values, which nobody else may have. `is_held`: it
    was in a variable, until now, and the function may go on before all values are given."""
    is_held = is_held and type(given[0]) is GeneratorType
    values = as_generator(given.pop())
    if type(values) is not GeneratorType:
        return iteration.give_each(values, give)
    function = _find_function(values)
    written = None if function is None else _find_given(function)
    if function is not None and written is None:
        loop = (*find_place(sys._getframe(2)), values.gi_code)
        raise LoopGives([loop], _refuse("its source is not to be had"))
    if written is None or sys.getrefcount(values) != _COUNTED:
        raise _refuse("it has begun before, or something else has it, too")
    if is_held and written.__code__.co_varnames[1] != GIVEN:
        raise _refuse("a variable has it, and it does something at its end")
    variables = dict(inspect.getgeneratorlocals(values))
    del values, function
    is_left = written(give, variables)
    return True if is_left is None else is_left  # of one without an end


def _refuse(why: str) -> CaptureError:
    return CaptureError.here(
        "data decide how far a loop goes over a generator, or whether that yields, and the "
        f"generator cannot be written out: {why}",
        why="what it does would depend on how often it was asked, which is known only when the "
        "program runs",
        instead="call it where it is gone over, for x in generator(…); or loop over a list",
    )


def as_generator(values: Any) -> Any:
    """The same, as a generator if that can be written out."""
    if type(values) is GeneratorType:
        return values
    if isinstance(getattr(type(values), "__iter__", None), FunctionType):
        values = iter(values)
    has_next = isinstance(getattr(type(values), "__next__", None), FunctionType)
    return iteration.ask_on(values) if has_next else values


def _find_function(generator: Any) -> FunctionType | None:
    """The function that has made a generator which has not begun."""
    if inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
        return None
    found = [each for each in get_referents(generator) if type(each) is FunctionType]
    return next((each for each in found if each.__code__ is generator.gi_code), None)


def _find_given(function: FunctionType) -> FunctionType | None:
    """The function that gives what it yields, if there is one."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_varnames[:1] == (GIVE,):
            closure = tuple(cells[name] for name in each.co_freevars)
            return FunctionType(each, function.__globals__, each.co_name, None, closure)
    return None


# ----------------------------------------------------------------------------- when it is wanted

Loop = tuple[CodeType, Place, CodeType]
"""What goes over a generator, where in it that stands, and the generator."""


def write_out_left(items: Items, refusal: CaptureError) -> BaseException:
    """A loop over an iterator is left where data say so: what to raise."""
    code = _find_code(items.values)
    if code is None or items.place is None:
        return refusal
    return LoopGives([(*items.place, code)], refusal)


def write_out_yielding(frame: FrameType, refusal: CaptureError) -> BaseException:
    """The same, where data decide whether the generator of a frame yields."""
    loops = [*_list_loops(frame)]
    return LoopGives(loops, refusal) if loops else refusal


def _find_code(values: Any) -> CodeType | None:
    if type(values) is GeneratorType:
        return values.gi_code
    kind = type(values)
    method = getattr(kind, "__iter__", None)
    if isinstance(method, FunctionType) and inspect.isgeneratorfunction(method):
        return method.__code__
    is_iterator = isinstance(getattr(kind, "__next__", None), FunctionType)
    return iteration.ask_on.__code__ if is_iterator else None


def _list_loops(frame: FrameType) -> Iterator[Loop]:
    """The loops over a generator that runs, and over the one that the loop stands in…"""
    back: Any = frame
    while back.f_code.co_flags & inspect.CO_GENERATOR:
        code, back = back.f_code, back.f_back
        place = back.f_locals["self"].place if back.f_code is Items.more.__code__ else None
        while not _goes_over(back.f_code):
            back = back.f_back
        yield *(place or find_place(back)), code


# ------------------------------------------------------- functions of Python's that are given them


def join(function: Any, /, *args: Any, **options: Any) -> Any:
    """`enumerate`, `zip` and `reversed`."""
    if function is enumerate and _find_code(args[0]) is not None:
        return iteration.number(*args, **options)
    return join_endings(function, *args, **options)


def slice_values(values: Any, /, *bounds: Any) -> Any:
    """`itertools.islice`."""
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1, 1)[:3]
    start, step = (0 if start is None else start), (1 if step is None else step)
    known = [each for each in (start, stop, step) if each is not None]
    is_known = all(type(each) is int and each >= 0 for each in known) and step
    if _find_code(values) is None or not is_known or (stop is not None and stop < start):
        return slice_iterator(values, *bounds)
    return iteration.cut(values, start, stop, step)


def take_values(function: Any, values: Any) -> Any:
    """`itertools.takewhile`."""
    is_own = _find_code(values) is not None
    return iteration.take_until(function, values) if is_own else take_while(function, values)


def group_values(original: Any, values: Any, key: Any = None) -> Any:
    """`itertools.groupby`."""
    is_known = find_open(values) is not None or not is_plain_source(values)
    found = [] if is_known else list(values)
    if not any(map(is_open_number, pytree.tree_leaves(found))):
        return original(values if is_known else found, key)
    return iteration.group(found, key, take_group)


def _goes_over(code: CodeType) -> bool:
    """May a loop in it be written out?"""
    is_generator = bool(code.co_flags & inspect.CO_GENERATOR)
    is_known = is_user_code(code) or (is_generator and can_have_hooks(code))
    return is_known and code.co_name not in ITEMS
