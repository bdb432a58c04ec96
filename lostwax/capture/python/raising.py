"""Exceptions that data raise, as values: a function gives back which one it raises, and what there
is in it, beside its result (`flow/rewriting/raises.py`).

Of an exception its class, its arguments and its attributes are kept; those of the ways that data
choose between become one, as all values do. What it comes of (`__context__`, `__cause__`), and
where it has come through, nobody may look at: it is known that there is something. Must not record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import Any, NamedTuple, NoReturn

from lostwax.classes import StandsFor
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.location import PASSING_ON, UNSEEN, is_own_file, is_user_code


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


class UnknownError(StandsFor, Exception):
    """What another exception comes of. To ask anything of it is refused."""

    is_unknown = True

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__(f"what a caught {kind.__name__} comes of")

    def _lw_class(self) -> type:
        raise self.refuse()

    def refuse(self) -> CaptureError:
        (what,) = Exception.__getattribute__(self, "args")
        return CaptureError.here(
            f"it is looked at {what}",
            why="data decide whether that is raised, and of an exception its arguments and its "
            "attributes are kept",
            instead="give it what has to be known, raise MyError(other)",
        )

    def __getattribute__(self, name: str) -> Any:
        asking = sys._getframe(1)
        if is_own_file(asking.f_code.co_filename):
            return super().__getattribute__(name)
        self._check(asking)
        return UnknownError if name == "__class__" else super().__getattribute__(name)

    def __str__(self) -> str:
        self._check(sys._getframe(1))
        return super().__str__()

    __repr__ = __str__

    def _check(self, asking: FrameType) -> None:
        """A library of Python's may show it."""
        if is_user_code(asking.f_code) or is_text_read(asking):
            raise self.refuse()


class _Unseen(dict[str, Any]):
    """The globals of a function that nobody may look at."""

    def __bool__(self) -> bool:
        if is_text_read(sys._getframe(1)):
            raise CaptureError.here(
                "it is looked at where a caught exception has come through",
                why="data decide whether it is raised, and where that is",
                instead="give the exception what has to be known, raise MyError(where)",
            )
        return False


def _make_trace() -> TracebackType:
    """Where an exception has come through that is made anew."""
    code = compile("get()", __file__, "eval").replace(co_name=UNSEEN)
    frame: FrameType = eval(code, _Unseen(get=sys._getframe))
    return TracebackType(None, frame, frame.f_lasti, 1)


THROUGH = _make_trace()


def keep_raised(error: BaseException, is_new: bool = True) -> tuple[Any, ...]:
    """What there is in an exception; and itself, if others may know it."""
    if isinstance(error, BaseExceptionGroup):
        raise CaptureError.here(
            "data decide whether several exceptions are raised at once, and that may be caught",
            why="what is in an ExceptionGroup cannot be set again",
            instead="raise one of them",
        )
    if type(error) is UnknownError:
        raise error.refuse()
    own = {**vars(error), **_find_members(error)}
    layout = " ".join([_find_origin(error), str(len(error.args)), *own])
    return type(error), layout, None if is_new else error, *error.args, *own.values()


def _find_origin(error: BaseException) -> str:
    """What it comes of, if it is raised now."""
    handled = sys.exception()
    has_context = error.__context__ is not None or handled not in (None, error)
    marks = has_context, error.__cause__ is not None, error.__suppress_context__
    return "".join(mark for mark, is_there in zip("xcs", marks, strict=True) if is_there) + "-"


def make_raised(kept: tuple[Any, ...]) -> BaseException:
    """An exception with that in it."""
    kind, layout, known, *values = kept
    origin, count, *names = layout.split(" ")
    error: BaseException = _make(kind, values[: int(count)]) if known is None else known
    for name, value in zip(names, values[int(count) :], strict=True) if known is None else ():
        if name in _list_members(kind):
            setattr(error, name, value)
        else:
            vars(error)[name] = value
    if error.__traceback__ is None:
        error.__traceback__ = THROUGH
    if "x" in origin and error.__context__ is None:
        error.__context__ = UnknownError(kind)
    if "c" in origin and error.__cause__ is None:
        error.__cause__ = UnknownError(kind)
    error.__suppress_context__ = "s" in origin
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
