"""Exceptions that data raise, as values: a function gives back which one it raises, and what there
is in it, beside its result (`flow/rewriting/raises.py`).

Of an exception its class, its arguments and its attributes are kept; those of the ways that data
choose between become one, as all values do. Must not record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple, NoReturn

from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.location import PASSING_ON, is_own_file


class MayRaise(NamedTuple):
    """What a function gives back to one that expects it."""

    number: Any
    """Which exception it raises, from 1 on; 0: none. A number that may be symbolic."""
    raised: Sequence[Any]
    """What there is in them."""
    result: Any
    refuse: Callable[[], CaptureError]


class OpenText(str):
    """A text with numbers in it that only the program knows: it may be shown."""

    __slots__ = ()

    def __str__(self) -> str:
        return _show(self, sys._getframe(1))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return _show(self, sys._getframe(1))


def _show(text: OpenText, asking: FrameType) -> str:
    if is_text_read(asking):
        _refuse_text()
    return str.__str__(text)


def _refuse_text(*_: Any, **__: Any) -> NoReturn:
    raise CaptureError.here(
        "the text of an exception is looked at, and data decide what it says",
        why="there are numbers in it that are known only when the program runs",
        instead="give the numbers to the exception, raise ValueError(n), and read error.args",
    )


def _ask_text(name: str) -> Any:
    plain = getattr(str, name)

    def ask(self: OpenText, *args: Any, **options: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if is_own_file(file) and file not in PASSING_ON:
            return plain(self, *args, **options)
        return _refuse_text()

    return ask


_OWN = {"__new__", "__getattribute__", "__getnewargs__", "__str__", "__repr__", "__format__"}
for _name in vars(str).keys() - _OWN - {"__doc__"}:
    setattr(OpenText, _name, _ask_text(_name))


def seal_texts(error: Any, are_open: bool) -> Any:
    """The exception; its texts are not to be looked at, if they are open."""
    if are_open and not isinstance(error, type):
        error.args = tuple(map(_seal, error.args))
        vars(error).update({name: _seal(value) for name, value in vars(error).items()})
    return error


def _seal(value: Any) -> Any:
    return OpenText(value) if type(value) is str else value


def keep_raised(error: Any, is_new: bool = True) -> tuple[Any, ...]:
    """What there is in an exception; and itself, if others may know it."""
    if isinstance(error, BaseExceptionGroup):
        raise CaptureError.here(
            "data decide whether several exceptions are raised at once, and that may be caught",
            why="what is in an ExceptionGroup cannot be set again",
            instead="raise one of them",
        )
    own = {**vars(error), **_find_members(error)}
    layout = " ".join([str(len(error.args)), *own])
    return type(error), layout, None if is_new else error, *error.args, *own.values()


def make_raised(kept: tuple[Any, ...]) -> BaseException:
    """An exception with that in it."""
    kind, layout, known, *values = kept
    if known is not None:
        return known  # type: ignore[no-any-return]
    count, *names = layout.split(" ")
    args = values[: int(count)]
    error = _make(kind, args)
    for name, value in zip(names, values[len(args) :], strict=True):
        if name in _list_members(kind):
            setattr(error, name, value)
        else:
            vars(error)[name] = value
    return error


def _make(kind: Any, args: Sequence[Any]) -> BaseException:
    error: BaseException = kind.__new__(kind, *args)
    of_python: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    of_python.__init__(error, *args)  # `StopIteration(1).value`
    error.args = tuple(args)
    return error


def _find_members(error: BaseException) -> dict[str, Any]:
    """What Python has in it, beside its arguments, that these do not tell: `OSError.filename`; and
    what is in its slots."""
    kind, found = type(error), dict[str, Any]()
    names = _list_members(kind)
    plain = _make(kind, error.args) if names else error
    for name in names:
        value = getattr(error, name, found)
        if value is not found and value is not getattr(plain, name, found):
            found[name] = value
    return found


def _list_members(kind: type[BaseException]) -> list[str]:
    return [
        name
        for each in kind.__mro__[: kind.__mro__.index(BaseException)]
        for name, value in vars(each).items()
        if isinstance(value, (MemberDescriptorType, GetSetDescriptorType))
        and name not in ("__dict__", "__weakref__")
    ]
