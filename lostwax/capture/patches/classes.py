"""`type(x)` and `x.__class__` in the user's functions: while a capture runs, they answer of a fake
what they would answer of the tensor that the fake stands for.

Which functions ask is found by reading them. `type`, by whatever name they know it, stands for
something else, which answers as ever of all but fakes; fakes show another class to them. Must not
change what others see of a class.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.patches import swap
from lostwax.capture.python import code_names
from lostwax.capture.python.reach import Reach
from lostwax.capture.python.reachable import ReadFunction
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
    """From here on functions get the tensor's class for a fake."""
    changed = list[_TypePlace]()
    shown = list[ReadFunction]()

    def look(found: ReadFunction) -> None:
        for place in _find_type_reads(found):
            changed.append(place)
            place.put(Asking)
        if not shown and not _SHOWING.isdisjoint(found.code.names):
            shown.append(found)
            undo.add(partial(setattr, FakeTensor, "shown_class", FakeTensor))
            FakeTensor.shown_class = property(_show_class)
            swap.set_classes(_BUILTINS, undo)

    undo.add(partial(_put_back, changed))
    reach.add_look(look)


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


_TypePlace = _Global | _Variable | _Defaults


def _find_type_reads(found: ReadFunction) -> Iterator[_TypePlace]:
    """Where a function has `type` from."""
    function, code, named, classes, _ = found
    if "type" in code.names and "type" not in named:
        yield from _find_globals(found, ["type"])
    if type not in classes:
        return
    yield from _find_globals(found, [name for name, value in named.items() if value is type])
    for cell in function.__closure__ or ():
        if _read_cell(cell) is type:
            yield _Variable(cell)
    has_defaults = function.__defaults__ or function.__kwdefaults__
    if has_defaults and any(value is type for _, value in code_names.argument_defaults(function)):
        yield _Defaults(function)


def _find_globals(found: ReadFunction, names: list[str]) -> list[_Global]:
    """Those of these globals that the code reads."""
    known = found.function.__globals__
    read = set[str]().union(*map(code_names.globals_read, found.code.codes)) if names else set()
    return [_Global(known, name, name in known) for name in names if name in read]


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set
        return None


_SHOWING = frozenset(("__class__", "builtins", "__builtins__"))
"""By these names code reads `x.__class__` or `builtins.type`: fakes and `builtins` show it."""
