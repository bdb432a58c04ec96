"""Streams give another value each time they are asked: Python's iterators and generators
(`itertools.count()`), and random generators (`random.Random(0)`, `numpy.random.default_rng()`). So
do arrays whose numbers a call changes.

A value that a module takes from a stream is baked into the program, so we tell the user. Random
generators are put back; others are not. Must not take anything from a stream.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import numpy as np

from lostwax.capture.python.containers import ARRAYS, GENERATORS, STREAMS


class Stream:
    """An iterator, a random generator or an array, and its position before the call."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._before = _position(value)

    def is_moved(self) -> bool:
        """Has something been taken from it? (Some iterators do not show it.)"""
        return not _are_same(_position(self.value), self._before)

    def put_back(self) -> None:
        if GENERATORS[type(self.value)] and self.is_moved():
            _set_position(self.value, self._before)


def describe_taken(stream: Stream, where: str) -> str:
    """The text that tells the user of a stream that was moved."""
    kind, is_random = type(stream.value).__name__, GENERATORS[type(stream.value)]
    if isinstance(stream.value, ARRAYS):
        return (
            f"the module changes {where}, a {kind}, in place; the program does not: every run of "
            "it computes with what was in it at capture. The export has changed it, too. A buffer "
            "would be kept."
        )
    end = (
        "It stands where it did before. torch.rand would be drawn anew in each run."
        if is_random
        else "The export has taken it from there, too. A buffer would be kept."
    )
    return (
        f"the module takes a value from {where}, a {kind}; it is baked into the program, which "
        f"takes nothing. {end}"
    )


def put_back_drawn(streams: Iterable[Stream]) -> str:
    """Put back the streams that were moved, and return a text about the first; "" if none was."""
    moved = [each for each in streams if each.is_moved()]
    for each in moved:
        each.put_back()
    return describe_taken(moved[0], "a random generator that it holds or names") if moved else ""


# -------------------------------------------------------------------------------------- positions


def _position(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes()) if value.flags.writeable else None
    if isinstance(value, ARRAYS):
        return bytes(value)
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
    """The position of one of Python's own iterators: what it tells `copy`."""
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


def _are_same(one: Any, other: Any) -> bool:
    """By identity, except for values that each look makes anew."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(map(_are_same, one.values(), other.values()))
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_are_same, one, other))
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
