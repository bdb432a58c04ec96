"""What gives another value each time it is asked, and keeps to itself where it stands: iterators
and generators of Python (`itertools.count()`), random generators of their own
(`random.Random(0)`, `numpy.random.default_rng()`).

A value that a module takes from one is baked into its program, which is told of. Random generators
are put back; no iterator can be. Must not take anything from them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import numpy as np

from lostwax.capture.python.containers import RANDOM, STREAMS

__all__ = ["RANDOM", "STREAMS", "Stream", "drawn_from", "taken"]


class Stream:
    """One of them, as it stood."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._before = _standing(value)

    def is_moved(self) -> bool:
        """Has something been taken from it? (Of some iterators it cannot be told.)"""
        return not _are_same(_standing(self.value), self._before)

    def put_back(self) -> None:
        if isinstance(self.value, RANDOM) and self.is_moved():
            _put(self.value, self._before)


def taken(stream: Stream, where: str) -> str:
    """What is said of one that was moved."""
    kind, is_random = type(stream.value).__name__, isinstance(stream.value, RANDOM)
    end = (
        "It stands where it did before. torch.rand would be drawn anew in each run."
        if is_random
        else "The export has taken it from there, too. A buffer would be kept."
    )
    return (
        f"the module takes a value from {where}, a {kind}; it is baked into the program, which "
        f"takes nothing. {end}"
    )


def drawn_from(streams: Iterable[Stream]) -> str:
    """What is said of those that have been drawn from, once they are put back; nothing if none."""
    moved = [each for each in streams if each.is_moved()]
    for each in moved:
        each.put_back()
    return taken(moved[0], "a random generator that it holds or names") if moved else ""


# ------------------------------------------------------------------------------- where they stand


def _standing(value: Any) -> Any:
    if isinstance(value, random.SystemRandom):
        return None  # it stands nowhere
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
        return (*held, _inner(value.gi_yieldfrom))
    if isinstance(value, (CoroutineType, AsyncGeneratorType)):
        return None
    return _reduced(value)


def _reduced(value: Any) -> Any:
    """What Python's own iterators say when they are copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = value.__reduce__()
        except TypeError:
            return repr(value) if "__repr__" in vars(type(value)) else None
    return tuple(map(_inner, found)) if isinstance(found, tuple) else found


def _inner(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_inner, value))
    return _standing(value) if STREAMS[type(value)] else value


def _are_same(one: Any, other: Any) -> bool:
    """By identity, but for what is made anew when it is asked for."""
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
    return type(one) in (int, float, str, bytes) and one == other


def _put(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        random.Random.setstate(value, state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    else:
        value.state = state
