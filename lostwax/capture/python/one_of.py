"""A variable that data make one thing or another: None or a tensor, 1 or 0.5, "run" or "halt".

Where the sides of an `if` do not agree in a variable and cannot go on apart, it holds a `OneOf`:
what it may be, and a number that says which it is. Nothing else is asked of it. Whoever asks more
stops the attempt (`OptionsAsked`), and in the next one the statement is written once for each
option (`flow/rewriting/options.py`). Must not record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree

from lostwax.classes import SYMBOLIC, StandsFor
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.pytree import Chosen
from lostwax.location import STANDING_IN, is_own_file
from lostwax.sym import known

Holders = Sequence[tuple[CodeType, Mapping[str, int]]]
"""Functions that run, innermost first, with their variables that hold such a thing, and of how many
options."""


class OneOf(StandsFor):
    """One of several values; data decide which."""

    __slots__ = ("_lw_asked", "_lw_index", "_lw_options", "_lw_refuse")

    def __init__(
        self,
        index: Any,
        options: Sequence[Any],
        refuse: Callable[[], CaptureError],
        asked: Callable[..., BaseException],
    ) -> None:
        """`asked` makes what stops the attempt, given the `Holders` and `refuse`; and this the
        error for who asks what no statement can answer."""
        self._lw_index, self._lw_options = index, tuple(options)
        self._lw_refuse, self._lw_asked = refuse, asked

    def __repr__(self) -> str:
        if is_text_read(sys._getframe(1)):
            ask(self)
        return f"one of {len(self._lw_options)} values"

    def _lw_class(self) -> type:
        ask(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return OneOf if _is_ours(sys._getframe(1)) else ask(self)

    def __getattr__(self, name: str) -> Any:
        if _is_ours(sys._getframe(1)):
            raise AttributeError(name)
        return ask(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs or {}))
        return ask(next(each for each in leaves if type(each) is OneOf))


def _is_ours(asking: FrameType) -> bool:
    """Is it our own code that asks, for nobody else?"""
    file = asking.f_code.co_filename
    return is_own_file(file) and file not in STANDING_IN


def ask(value: OneOf, *_: Any, **__: Any) -> NoReturn:
    """What the value is has to be known."""
    raise value._lw_asked(find_holders(sys._getframe(1)), value._lw_refuse)


_OWN = {
    *("__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__repr__"),
    *("__class_getitem__", "__init_subclass__", "__subclasshook__"),
}
_ASKING = {name for kind in (int, complex, str, dict) for name in dir(kind) if name[:2] == "__"}
for _name in {*_ASKING, "__call__", "__enter__", "__exit__", "__matmul__", "__rmatmul__"} - _OWN:
    if callable(getattr(object, _name, len)) and _name not in vars(OneOf):
        setattr(OneOf, _name, ask)


def find_holders(frame: FrameType | None) -> Holders:
    """Who has such a thing in a variable."""
    found: list[tuple[CodeType, Mapping[str, int]]] = []
    while frame is not None:
        names = {
            name: len(value._lw_options)
            for name, value in frame.f_locals.items()
            if type(value) is OneOf
        }
        if names:
            found.append((frame.f_code, names))
        frame = frame.f_back
    return found


def check_received(value: Any, frame: FrameType, name: str | None, place: Any) -> None:
    """A call has returned this, and a variable of a function gets it, which does not expect one of
    several values. None: it has no variable yet."""
    if type(value) is OneOf:
        code = find_function(frame)
        names = {} if name is None else {name: len(value._lw_options)}
        raise value._lw_asked([(code, names)], value._lw_refuse, place if name is None else None)


def find_function(frame: FrameType) -> CodeType:
    """The function in which a comprehension stands, if it is one with a frame of its own."""
    around = frame.f_back
    while around is not None and frame.f_code.co_name.endswith(("comp>", "genexpr>")):
        if frame.f_code not in around.f_code.co_consts:
            break
        frame, around = around, around.f_back
    return frame.f_code


def settle(value: Any) -> Any:
    """A value; of one of several, those that it may be here."""
    if type(value) is not OneOf:
        return value
    index, options = value._lw_index, value._lw_options
    left = [i for i in range(len(options)) if known(unwrap(index == i)) is not False]
    return options[left[0]] if len(left) == 1 else value


def choose_returned(result: Any) -> Any:
    """What a module returns, such things in it as a program has them."""
    leaves, spec = pytree.tree_flatten(result)
    if all(type(each) is not OneOf for each in leaves):
        return result
    return pytree.tree_unflatten(map(_make_chosen, leaves), spec)


def _make_chosen(value: Any) -> Any:
    if type(value) is not OneOf:
        return value
    return Chosen(value._lw_index, map(choose_returned, value._lw_options))


def is_option(one: Any, other: Any) -> Any:
    """`one is other`, of which one is such a thing: a truth, which data may decide."""
    value, other = (one, other) if type(one) is OneOf else (other, one)
    if type(other) is OneOf or any(_may_be_one(each, other) for each in value._lw_options):
        ask(value)
    return _choose(value, lambda each: each is other)


def equals_option(one: Any, other: Any) -> Any:
    """`one == other`, of which one is such a thing: the same, of texts."""
    value, other = (one, other) if type(one) is OneOf else (other, one)
    if type(other) is not str or not all(type(each) in _TEXTS for each in value._lw_options):
        ask(value)
    return _choose(value, lambda each: each == other)


_TEXTS = (str, type(None))


def _choose(value: OneOf, is_meant: Callable[[Any], bool]) -> Any:
    """Is it an option of these?"""
    index, last = value._lw_index, len(value._lw_options) - 1
    found = [_is_at(index, i, last) for i, each in enumerate(value._lw_options) if is_meant(each)]
    if len(found) in (0, last + 1):
        return bool(found)
    holds = found[0]
    for each in found[1:]:
        holds = holds | each
    return holds


def _is_at(index: Any, place: int, last: int) -> Any:
    """Is it this one? As bounds, where they say it: then those of the others are known, too."""
    return index < 1 if place == 0 else index >= last if place == last else index == place


def _may_be_one(one: Any, other: Any) -> bool:
    """Does it hang on more than which objects they are?"""
    kinds = (torch.Tensor, bool, int, float, *SYMBOLIC)
    return isinstance(one, (torch.Tensor, *SYMBOLIC)) and isinstance(other, kinds)
