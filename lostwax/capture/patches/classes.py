"""`type(x)` and `x.__class__` in the user's functions: while a capture runs, they answer of a fake
what they would answer of the tensor that the fake stands for.

Which functions ask is found by reading them. `type`, by whatever name they know it, stands for
something else, which answers as ever of all but fakes; fakes show another class to them. Must not
change what others see of a class.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.patches import swap
from lostwax.capture.python import code_names
from lostwax.capture.python.reachable import Reach, ReadFunction
from lostwax.capture.threads import is_capturing
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, is_user_code
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)


class _OfAsking(type):
    """Keeps `type(x)`, `type(name, bases, attributes)` and `isinstance(c, type)` working."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Asking:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        value = args[0]
        return _class_of(value) if type(value) is FakeTensor else type(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type) if cls is Asking else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Asking else super().__subclasscheck__(subclass)


class Asking(type, metaclass=_OfAsking):
    """Stands for `type`."""

    stands_for = type


def _class_of(fake: FakeTensor) -> type:
    found = (cls for cls in (nn.Parameter, nn.Buffer) if isinstance(fake, cls))
    return next(found, torch.Tensor)


def _show_class(fake: FakeTensor) -> type:
    # C calls this: the frame before is the one that reads, also if it is one of the house's.
    is_asking = is_capturing() and is_user_code(sys._getframe(1).f_code)
    return _class_of(fake) if is_asking else FakeTensor


def answer_types(reach: Reach, undo: Undo) -> None:
    """From here on these functions get the tensor's class for a fake."""
    found = reach.find(_find_type_reads)
    if not found:
        return
    undo.add(partial(_put_back, found))
    for each in found:
        each.put(Asking)
    if any(isinstance(each, _ClassRead) for each in found):
        undo.add(partial(setattr, FakeTensor, "shown_class", FakeTensor))
        FakeTensor.shown_class = property(_show_class)
        swap.set_classes(_BUILTINS, undo)


def _put_back(found: list[_TypePlace]) -> None:
    for each in found:
        each.put(type)


_BUILTINS = swap.make_classes([swap.NameSwap(builtins, "type", Asking)])


# ------------------------------------------------------------------------------- reading the code


class _Global(NamedTuple):
    """A global that is `type`."""

    known: dict[str, Any]
    name: str
    is_there: bool
    """Else it is the builtin."""

    def put(self, value: Any) -> None:
        if self.known.get(self.name, type) not in (type, Asking):
            return  # it is something else by now
        if value is type and not self.is_there:
            self.known.pop(self.name, None)
        else:
            self.known[self.name] = value


class _Variable(NamedTuple):
    """A variable of the function around."""

    cell: Any

    def put(self, value: Any) -> None:
        self.cell.cell_contents = value


class _Defaults(NamedTuple):
    function: Any

    def put(self, value: Any) -> None:
        values = self.function.__defaults__ or ()
        if any(each is type or each is Asking for each in values):
            self.function.__defaults__ = tuple([_exchange(each, value) for each in values])
        by_name = self.function.__kwdefaults__ or {}
        by_name.update({name: _exchange(each, value) for name, each in by_name.items()})


def _exchange(each: Any, value: Any) -> Any:
    return value if each is type or each is Asking else each


class _ClassRead(NamedTuple):
    """A function that reads `x.__class__`, or `builtins.type`."""

    function: FunctionType

    def put(self, value: Any) -> None:
        """Fakes show it, and `builtins`."""


_TypePlace = _Global | _Variable | _Defaults | _ClassRead


def _find_type_reads(functions: Iterable[ReadFunction]) -> Iterator[_TypePlace]:
    """Where these functions have `type` from."""
    for function, code, named in functions:
        if not isinstance(function, FunctionType):
            continue
        if not _SHOWING.isdisjoint(code.names):
            yield _ClassRead(function)
        known = function.__globals__
        read = [name for name, value in named.items() if value is type]
        if "type" in code.names and "type" not in known:
            read.append("type")
        if read:
            loaded = set[str]().union(*map(code_names.globals_read, code.codes))
            found = loaded.intersection(read)
            yield from (_Global(known, name, name in known) for name in found)
        for cell in function.__closure__ or ():
            if _read_cell(cell) is type:
                yield _Variable(cell)
        has_defaults = function.__defaults__ or function.__kwdefaults__
        if has_defaults and any(
            value is type for _, value in code_names.argument_defaults(function)
        ):
            yield _Defaults(function)


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return None


_SHOWING = frozenset(("__class__", "builtins", "__builtins__"))
