"""Which functions of torch somebody has replaced by others, or by objects.

A look at what a module reads takes torch as it is (`capture/surroundings/`): in one process it
stays so. Must not import what is not loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch import nn

from lostwax.cache import Cache, PerClass, cached
from lostwax.export_cache.spelling import spell, spell_class

_PLACES: tuple[Any, ...] = (
    torch, torch.Tensor, torch.functional, nn.functional, torch.linalg, torch.fft, torch.special,
    torch.autograd.Function,
)  # fmt: skip


def _is_of_others(module: Any) -> bool:
    return str(module).partition(".")[0] not in _LIBRARIES


_LIBRARIES = frozenset(
    (*sys.stdlib_module_names, "torch", "lostwax", "typing_extensions", "pybind11_builtins")
)
_IS_USERS = PerClass(__name__, "classes of users", lambda cls: _is_of_others(cls.__module__))


def list_patches() -> Iterator[str]:
    """What is in torch's public places, and in classes of modules, and is not torch's."""
    places = *_PLACES, *_list_classes()
    found = [*chain.from_iterable(vars(place).values() for place in places)]
    known = _UNPATCHED.table.get(None, [])
    if len(found) != len(known) or not all(map(is_, found, known)):
        told = [*_list_patches(places)]
        if not told:
            _UNPATCHED.keep(None, found)
        yield from told


_UNPATCHED = Cache[None, list[Any]](__name__, "unpatched", 1)
"""What was in all places when nothing was another's."""


def _list_patches(places: Iterable[Any]) -> Iterator[str]:
    for place in places:
        for name, value in [*vars(place).items()]:
            cls = type(value)
            if cls is FunctionType:
                if _is_of_others(value.__globals__.get("__name__")):
                    yield f"{place.__name__}.{name} {spell(value)}"
            elif _IS_USERS[cls]:
                yield f"{place.__name__}.{name} {spell_class(cls)}"


@cached()
def _list_classes() -> tuple[type, ...]:
    found = [each for each in vars(nn).values() if isinstance(each, type)]
    return tuple(dict.fromkeys(base for each in found for base in each.__mro__[:-1]))
