"""`type(x)`, `x.__class__`, `id(x)` and `operator.is_(x, y)` in the user's functions: while a
capture runs, they answer of a fake and of a symbolic number what they would answer of what it
stands for.

Which functions ask is found by reading them. For `type`, wherever they have it from
(`held.py`), stands something else, which answers as ever of all but fakes; fakes show another class
to them. Must not change what others see of a class.
"""

from __future__ import annotations

import builtins
import operator
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

from lostwax.capture.patches import swap
from lostwax.capture.python.identities import is_same
from lostwax.capture.python.reach import Reach
from lostwax.capture.python.reachable import ReadFunction
from lostwax.capture.threads import is_capturing
from lostwax.classes import SHOWN
from lostwax.fake.asked_tensor import IDENTITY
from lostwax.fake.symbolic.objects import refuse_address
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, asks_for_user
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
        own = type(value)
        return _class_of(value) if own is FakeTensor else SHOWN.get(own, own)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type) if cls is Asking else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Asking else super().__subclasscheck__(subclass)


class Asking(type, metaclass=_OfAsking):
    """Stands for `type`."""

    stands_for = type


def _identify(value: Any, /) -> int:
    """`id`: refused, if it is another object on another way that data decide."""
    own = type(value)
    if own is FakeTensor and is_capturing():
        value.fake_mode.observer.note_question(value, IDENTITY)
    elif own in SHOWN and is_capturing():
        refuse_address(SHOWN[own])
    return id(value)


def _is_other(one: Any, other: Any, /) -> Any:
    found = is_same(one, other)
    return not found if isinstance(found, bool) else torch.sym_not(found)


NAME_SWAPS = [
    swap.NameSwap(operator, "is_", swap.stand_for(operator.is_, lambda a, b, /: is_same(a, b))),
    swap.NameSwap(operator, "is_not", swap.stand_for(operator.is_not, _is_other)),
]
_IN_BUILTINS = [
    swap.NameSwap(builtins, "type", Asking),
    swap.NameSwap(builtins, "id", swap.stand_for(id, _identify)),
]
STAND_INS = {
    type: Asking,
    id: _IN_BUILTINS[1].function,
    operator.is_: NAME_SWAPS[0].function,
    operator.is_not: NAME_SWAPS[1].function,
}


def _class_of(fake: FakeTensor) -> type:
    found = (cls for cls in (nn.Parameter, nn.Buffer) if isinstance(fake, cls))
    return next(found, torch.Tensor)


def _show_class(fake: FakeTensor) -> type:
    # C calls this: the frame before is the one that reads, also if it is one of the house's.
    is_asking = is_capturing() and asks_for_user(sys._getframe(1).f_code)
    return _class_of(fake) if is_asking else FakeTensor


def show_classes(reach: Reach, undo: Undo) -> None:
    """From here on functions that read `x.__class__` get the tensor's class for a fake."""
    shown = list[ReadFunction]()

    def look(found: ReadFunction) -> None:
        if not shown and not _SHOWING.isdisjoint(found.code.names):
            shown.append(found)
            undo.add(partial(setattr, FakeTensor, "shown_class", FakeTensor))
            FakeTensor.shown_class = property(_show_class)
            swap.set_classes(_BUILTINS, undo)

    reach.add_look(look)


_BUILTINS = swap.make_classes(_IN_BUILTINS)
_SHOWING = frozenset(("__class__", "builtins", "__builtins__"))
"""By these names code reads `x.__class__` or `builtins.id`: fakes and `builtins` show it."""
