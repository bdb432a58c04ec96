"""`type(x)` in the user's functions: while a capture runs, it answers of a fake what it would
answer of the tensor that the fake stands for.

Which functions ask is found by reading them. The name `type` stands for something else in their
modules, which answers as ever of all but fakes. Must not change what others see of a class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from lostwax.capture import names
from lostwax.capture.per_class import PerClass
from lostwax.capture.reachable import methods, reached
from lostwax.fake.tensor import FakeTensor
from lostwax.fake.undo import Undo


class _OfAsking(type):
    """What makes `type(x)`, `type(name, bases, attributes)` and `isinstance(c, type)` go on."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Asking:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        value = args[0]
        return _class_of(value) if value.__class__ is FakeTensor else type(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type) if cls is Asking else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Asking else super().__subclasscheck__(subclass)


class Asking(type, metaclass=_OfAsking):
    """Stands for `type`."""


def _class_of(fake: FakeTensor) -> type:
    fake.fake_mode.asked(fake, "class", 3)
    found = (cls for cls in (nn.Parameter, nn.Buffer) if isinstance(fake, cls))
    return next(found, torch.Tensor)


def answer(functions: Iterable[Any], modules: Iterable[nn.Module], undo: Undo) -> None:
    """From here on these functions, those of the modules, and those that they name, are answered
    so."""
    asking = {id(each): each for cls in {*map(type, modules)} for each in _OF_CLASSES[cls]}
    asking |= {id(each): each for each in _asking(functions)}
    changed = [known for known in asking.values() if "type" not in known]
    undo.add(partial(_take_away, changed))
    for known in changed:
        known["type"] = Asking


def _take_away(changed: list[dict[str, Any]]) -> None:
    for known in changed:
        known.pop("type", None)


def _asking(functions: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The globals of those that read the name `type`."""
    for function in reached(functions):
        code = getattr(function, "__code__", None)
        if code is not None and any("type" in _names(part) for part in names.codes(code)):
            yield function.__globals__


def _names(code: Any) -> frozenset[str]:
    return names.globals_read(code) if "type" in code.co_names else frozenset()


_OF_CLASSES = PerClass(lambda cls: tuple(_asking(methods(cls))))
